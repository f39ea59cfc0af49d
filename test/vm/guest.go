//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const guestHostname = "vmrun"

// guestMain is pid 1 of the guest. It ends with the VM. It writes its errors to the console, which
// the host prints if the VM ends without an exit status.
func guestMain() {
	if err := guest(); err != nil {
		fmt.Fprintf(os.Stderr, "vmrun: guest: %v\n", err)
		drain(2)
		unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART) // QEMU has -no-reboot: it ends
	}
	for { // the host has the results and kills the VM
		time.Sleep(time.Hour)
	}
}

func guest() error {
	if err := mountAll(); err != nil {
		return err
	}
	j, err := readJob()
	if err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(guestHostname)); err != nil {
		return fmt.Errorf("hostname: %w", err)
	}
	if err := loopbackUp(); err != nil {
		return fmt.Errorf("lo up: %w", err)
	}
	for _, m := range j.Modules {
		if err := loadModule(m); err != nil {
			return fmt.Errorf("load %s: %w", m, err)
		}
	}
	if j.Network {
		if err := networkUp(); err != nil {
			return fmt.Errorf("%s up: %w", guestDevice, err)
		}
	}
	if j.Systemd {
		return becomeSystemd()
	}
	// As on a server: some tests hold thousands of sockets.
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 65536, Max: 1 << 20}); err != nil {
		return fmt.Errorf("RLIMIT_NOFILE: %w", err)
	}
	return perform(j)
}

func readJob() (*job, error) {
	body, err := os.ReadFile(jobFile)
	if err != nil {
		return nil, err
	}
	j := &job{}
	if err := json.Unmarshal(body, j); err != nil {
		return nil, fmt.Errorf("%s: %w", jobFile, err)
	}
	return j, nil
}

// perform runs the program of the job, and sends its results to the host.
func perform(j *job) error {
	output, err := openSerial("/dev/ttyS0")
	if err != nil {
		return err
	}
	controlFD, err := openSerial("/dev/ttyS1")
	if err != nil {
		return err
	}
	control := fdWriter(controlFD)
	if err := sendStart(control); err != nil {
		return err
	}
	status, err := runProgram(j, output)
	if err != nil {
		// Not an error of the VM: use a shell's status, and write the reason to the program's
		// output.
		fmt.Fprintf(fdWriter(output), "vmrun: %s: %v\n", j.Args[0], err)
		status = exitStatus{Code: 126}
	}
	drain(output)
	return sendResults(control, j.Collect, status)
}

// runProgram runs the program with its output on one port, waits for it, and reaps all orphans
// meanwhile. It calls wait4 itself, because os/exec's wait would lose its child to the reaper.
func runProgram(j *job, output int) (exitStatus, error) {
	null, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return exitStatus{}, fmt.Errorf("/dev/null: %w", err)
	}
	child, err := syscall.ForkExec(j.Args[0], j.Args, &syscall.ProcAttr{
		Dir:   j.Dir,
		Env:   j.Env,
		Files: []uintptr{uintptr(null), uintptr(output), uintptr(output)},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return exitStatus{}, err
	}
	for {
		var ws unix.WaitStatus
		pid, err := unix.Wait4(-1, &ws, 0, nil)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return exitStatus{}, fmt.Errorf("wait: %w", err)
		case pid != child:
		case ws.Signaled():
			return exitStatus{Signal: int(ws.Signal())}, nil
		default:
			return exitStatus{Code: ws.ExitStatus()}, nil
		}
	}
}

func mountAll() error {
	// Nothing is mounted over /tmp, because the test binary is there. "ip netns add" makes its own
	// directory shared, so nothing over / or /run is shared yet.
	for _, m := range []struct{ source, target, fstype, data string }{
		{"proc", "/proc", "proc", ""},
		{"sysfs", "/sys", "sysfs", ""},
		{"devtmpfs", "/dev", "devtmpfs", ""},
		{"devpts", "/dev/pts", "devpts", "ptmxmode=666"},
		{"tmpfs", "/dev/shm", "tmpfs", "mode=1777"},
		{"tmpfs", "/run", "tmpfs", "mode=755"},
		{"bpf", "/sys/fs/bpf", "bpf", ""},
		{"cgroup2", "/sys/fs/cgroup", "cgroup2", ""},
	} {
		if err := os.MkdirAll(m.target, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.source, m.target, m.fstype, 0, m.data); err != nil {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	for name, target := range map[string]string{
		"/dev/fd": "/proc/self/fd", "/dev/stdin": "fd/0", "/dev/stdout": "fd/1", "/dev/stderr": "fd/2",
	} {
		if err := os.Symlink(target, name); err != nil {
			return err
		}
	}
	return os.MkdirAll("/run/netns", 0o755)
}

// loadModule loads a module as insmod does. A loaded module is not an error. The file remains, for
// tests that unload the module and load it again.
func loadModule(name string) error {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.FinitModule(fd, "", 0); err != nil && err != unix.EEXIST {
		return err
	}
	return nil
}

func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return linkUp(fd, "lo")
}

func linkUp(fd int, device string) error {
	req, err := unix.NewIfreq(device)
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, req); err != nil {
		return err
	}
	req.SetUint16(req.Uint16() | unix.IFF_UP)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req)
}

// openSerial opens a port for raw bytes. The file is a plain, blocking descriptor without the Go
// poller, because the program inherits it.
func openSerial(name string) (int, error) {
	fd, err := unix.Open(name, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("%s: %w", name, err)
	}
	t, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return -1, fmt.Errorf("%s: termios: %w", name, err)
	}
	t.Iflag, t.Oflag, t.Lflag = 0, 0, 0
	t.Cflag = unix.CS8 | unix.CLOCAL | unix.CREAD | unix.B115200
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, t); err != nil {
		return -1, fmt.Errorf("%s: termios: %w", name, err)
	}
	return fd, nil
}

// drain waits until everything written to a terminal has been sent.
func drain(fd int) { unix.IoctlSetInt(fd, unix.TCSBRK, 1) }

// fdWriter writes to a blocking descriptor.
type fdWriter int

func (w fdWriter) Write(p []byte) (int, error) {
	n := 0
	for n < len(p) {
		m, err := unix.Write(int(w), p[n:])
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return n, os.NewSyscallError("write", err)
		}
		n += m
	}
	return n, nil
}
