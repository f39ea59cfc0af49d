//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

var errTimeout = errors.New("timeout")

// run boots the VM, runs the program in it and returns the exit status. An error means that there
// is no status: the VM didn't start, died or was killed. It returns when QEMU has ended.
//
// A boot that doesn't reach the program within the boot timeout is repeated with twice the time,
// until o.timeout: QEMU without hardware virtualization sometimes hangs before the kernel's first
// message, mostly with more than one processor.
func run(o *options) (int, error) {
	began := time.Now()
	kernel, err := filepath.EvalSymlinks(filepath.Join(o.cache, "vmlinux"))
	if err != nil {
		return 0, fmt.Errorf("the VM's kernel: %w (run test/vm/setup.sh)", err)
	}
	image, err := buildImage(o)
	if err != nil {
		return 0, err
	}
	defer image.Close()
	st, err := image.Stat()
	if err != nil {
		return 0, err
	}
	mem, err := o.memory(st.Size())
	if err != nil {
		return 0, err
	}
	if o.verbose {
		fmt.Fprintf(os.Stderr, "vmrun: image %v\n", ms(time.Since(began)))
	}

	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	stop := watch(cancel, o.timeout)
	defer stop()
	for limit := o.bootTimeout; ; limit *= 2 {
		vm, err := startQEMU(o, mem, kernel, image)
		if err != nil {
			return 0, err
		}
		code, err := vm.run(ctx, o, limit)
		if !errors.Is(err, errNotBooted) {
			return code, err
		}
		fmt.Fprintf(os.Stderr, "vmrun: %v; booting again\n", err)
	}
}

// errNotBooted is the error of a VM that was killed at its boot timeout, before the program
// started. A new VM can run the program.
var errNotBooted = errors.New("the VM did not boot")

// run waits until the VM's program has ended, and returns its exit status. It kills the VM then,
// when ctx ends, and when the program has not started within bootTimeout.
func (vm *qemu) run(ctx context.Context, o *options, bootTimeout time.Duration) (int, error) {
	began := time.Now()
	started := make(chan time.Time, 1)
	type result struct {
		exitStatus
		err error
	}
	results := make(chan result, 1)
	go func() {
		st, err := receive(vm.control, o.collect, func() { started <- time.Now() })
		results <- result{st, err}
	}()
	late := time.NewTimer(bootTimeout)
	defer late.Stop()

	var boot time.Time // when the program started
	for {
		select {
		case boot = <-started:
			late.Stop()
		case <-late.C:
			vm.stop()
			<-results
			select {
			case <-started: // the program may have had an effect already
				return 0, fmt.Errorf("the VM was killed after %v, when the program was starting", bootTimeout)
			default:
				return 0, fmt.Errorf("%w within %v%s", errNotBooted, bootTimeout, vm.postMortem())
			}
		case r := <-results:
			done := time.Now()
			vm.stop()
			if r.err != nil {
				return 0, fmt.Errorf("the VM ended before the program did (%w)%s", r.err, vm.postMortem())
			}
			if boot.IsZero() {
				boot = <-started // it was sent before the status
			}
			if o.verbose {
				fmt.Fprintf(os.Stderr, "vmrun: boot %v, program %v, end %v\n", ms(boot.Sub(began)), ms(done.Sub(boot)), ms(time.Since(done)))
			}
			if r.Signal != 0 {
				fmt.Fprintf(os.Stderr, "vmrun: the program was ended by a signal: %v\n", syscall.Signal(r.Signal))
				return 128 + r.Signal, nil
			}
			return r.Code, nil
		case <-ctx.Done():
			vm.stop()
			<-results
			phase := "the program had not started"
			if !boot.IsZero() || len(started) > 0 {
				phase = "the program was running"
			}
			cause := context.Cause(ctx)
			if s := (signalError{}); errors.As(cause, &s) {
				fmt.Fprintf(os.Stderr, "vmrun: %v: %s\n", cause, phase)
				return 128 + int(s.sig), nil
			}
			return 0, fmt.Errorf("%w: %s%s", cause, phase, vm.postMortem())
		}
	}
}

func ms(d time.Duration) time.Duration { return d.Round(time.Millisecond) }

// signalError is the cause of a run's end by a signal.
type signalError struct{ sig syscall.Signal }

func (e signalError) Error() string { return "got the signal " + e.sig.String() }

// watch cancels on a signal, at the timeout, and when the parent process has ended. It polls for
// the parent, because a parent-death signal would also come when only the parent's thread that
// forked this process ends.
func watch(cancel context.CancelCauseFunc, timeout time.Duration) (stop func()) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT)
	var expired <-chan time.Time
	if timeout > 0 {
		expired = time.After(timeout)
	}
	parent := os.Getppid()
	tick := time.NewTicker(200 * time.Millisecond)
	quit := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		defer tick.Stop()
		defer signal.Stop(signals)
		for {
			select {
			case s := <-signals:
				cancel(signalError{s.(syscall.Signal)})
				return
			case <-expired:
				cancel(fmt.Errorf("%w: killed the VM after %v", errTimeout, timeout))
				return
			case <-tick.C:
				if os.Getppid() != parent {
					cancel(errors.New("the parent process is gone"))
					return
				}
			case <-quit:
				return
			}
		}
	})
	return func() { close(quit); wg.Wait() }
}

// qemu is a running VM with its three serial ports. The program's output goes to stdout, the caller
// reads control, and the console is stored.
type qemu struct {
	cmd     *exec.Cmd
	control *os.File
	console *tail
	stderr  *tail
	pumps   sync.WaitGroup // end when QEMU has closed its side
	end     error          // how the process ended, set by stop
}

// processor names the guest's processor. Features that cost much under translation are off: ERMS copies and clears memory
// byte by byte, LA57 makes each walk of the page tables a step longer, and SMAP splits the translator's cache of addresses.
const processor = "max,-cx16,-erms,-la57,-smap,-smep"

// accelerator names the translator. It counts instructions in one thread only.
func accelerator(o *options) string {
	if o.icount {
		return "tcg,thread=single"
	}
	return "tcg,thread=multi"
}

func startQEMU(o *options, mem int, kernel string, image *os.File) (*qemu, error) {
	bin, err := findProgram("qemu-system-x86_64")
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	vm := &qemu{console: &tail{}, stderr: &tail{}}
	// With norandmaps, a program's libraries are at the same addresses each time, so QEMU translates them once.
	cmdline := "console=ttyS2 quiet panic=-1 oops=panic 8250.nr_uarts=4 mitigations=off nokaslr norandmaps " +
		"tsc=reliable no_timer_check random.trust_cpu=on cryptomgr.notests rcupdate.rcu_expedited=1 rdinit=/init"
	if !o.icount {
		cmdline += clockParameters()
	}
	if o.root != "" {
		cmdline += " systemd.getty_auto=no systemd.log_color=no systemd.status_unit_format=name"
	}
	if o.verbose {
		cmdline = strings.Replace(cmdline, " quiet", "", 1)
		vm.console.also = os.Stderr
	}
	// The child's file 3 is the image. Files 4, 5 and 6 are the serial ports, which QEMU opens
	// again by path, so that it makes only its own side non-blocking.
	args := []string{
		"-M", "pc", "-accel", accelerator(o), "-cpu", processor, "-smp", strconv.Itoa(o.cpus), "-m", strconv.Itoa(mem) + "M",
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-kernel", kernel, "-initrd", "/proc/self/fd/3", "-append", cmdline,
		"-chardev", "file,id=output,path=/proc/self/fd/4", "-serial", "chardev:output",
		"-chardev", "file,id=control,path=/proc/self/fd/5", "-serial", "chardev:control",
		// The console must be the third port, because a waiting reader doesn't need that port's
		// interrupt (4).
		"-chardev", "file,id=console,path=/proc/self/fd/6", "-serial", "chardev:console",
	}
	if o.icount {
		args = append(args, "-icount", "shift=0,sleep=off")
	}
	args = append(args, reachArgs(o.reach, self)...)
	vm.cmd = exec.Command(bin, args...)
	vm.cmd.Stderr = vm.stderr
	// The caller holds the main thread, so the signal comes only when the runner dies.
	vm.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	vm.cmd.ExtraFiles = []*os.File{image}

	var readers, writers []*os.File
	closeAll := func(files []*os.File) {
		for _, f := range files {
			f.Close()
		}
	}
	for range 3 {
		r, w, err := os.Pipe()
		if err != nil {
			closeAll(append(readers, writers...))
			return nil, err
		}
		readers, writers = append(readers, r), append(writers, w)
	}
	vm.cmd.ExtraFiles = append(vm.cmd.ExtraFiles, writers...)
	err = vm.cmd.Start()
	closeAll(writers)
	if err != nil {
		closeAll(readers)
		return nil, fmt.Errorf("start %s: %w", bin, err)
	}
	vm.control = readers[1]
	pump := func(w io.Writer, r *os.File) {
		vm.pumps.Go(func() {
			defer r.Close()
			if _, err := io.Copy(w, r); err != nil {
				io.Copy(io.Discard, r) // a closed reader must not stall the guest
			}
		})
	}
	pump(os.Stdout, readers[0])
	pump(vm.console, readers[2])
	return vm, nil
}

// stop kills QEMU and waits until it has ended and all of its output was passed on. The guest
// drains its ports before it reports the end, so the output is complete. A kill is the fastest end.
func (vm *qemu) stop() {
	vm.cmd.Process.Kill()
	vm.end = vm.cmd.Wait()
	vm.pumps.Wait()
	vm.control.Close()
}

// postMortem describes a VM that ended with an error. Call it after stop.
func (vm *qemu) postMortem() string {
	var b strings.Builder
	if s := strings.TrimSpace(vm.stderr.String()); s != "" {
		fmt.Fprintf(&b, "\n--- qemu: %v\n%s", vm.end, s)
	}
	if s := strings.TrimSpace(vm.console.String()); s != "" {
		fmt.Fprintf(&b, "\n--- the guest's console:\n%s\n---", s)
	} else {
		b.WriteString("\n--- the guest's console is empty")
	}
	return b.String()
}

// tail keeps the last tailSize bytes written to it, or a little more. Its zero value is ready; safe for concurrent use.
type tail struct {
	mu   sync.Mutex
	buf  []byte
	also io.Writer // also gets everything, immediately
}

const tailSize = 64 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if extra := len(t.buf) - tailSize; extra > tailSize {
		t.buf = append(t.buf[:0], t.buf[extra:]...)
	}
	if t.also != nil {
		t.also.Write(p)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.ReplaceAll(string(t.buf[max(0, len(t.buf)-tailSize):]), "\r\n", "\n")
}
