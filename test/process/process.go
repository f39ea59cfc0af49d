// Package process runs a program repeatedly for a test: it starts it, optionally in a network
// namespace, and stops, kills, pauses and resumes it.
//
// Its input is a program's path and arguments. The program's output goes to a file. Every process
// is ended by its own id, and dies with the test's process. The package doesn't depend on what the
// program does.
package process

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/ironvip/ironvip/test/wait"
)

// Place is a network namespace for a process, for example a node of test/netlab.
type Place interface {
	// Do runs f in the namespace. Processes that f starts are in it.
	Do(f func())
}

// Process is a program that may end and be started again with the same arguments. Any goroutine may
// call its methods.
type Process struct {
	bin  string
	args []string
	in   Place
	log  string
	// Nice is the scheduling priority, as in a systemd unit. A value below 0 needs root. It applies
	// from the next start on.
	Nice int

	mu     sync.Mutex
	cmd    *exec.Cmd     // nil: never started
	done   chan struct{} // closed at the end of cmd
	paused bool
}

// New creates a process that is not running yet. Its output is appended to the file log. In may be
// nil for this namespace.
func New(bin, log string, in Place, args ...string) *Process {
	return &Process{bin: bin, args: args, in: in, log: log}
}

// Start starts the process, and doesn't wait for any effect.
func (p *Process) Start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.alive() {
		return errors.New("it runs already")
	}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(p.bin, p.args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started, done := make(chan error), make(chan struct{})
	go func() {
		// The kernel sends Pdeathsig when the thread that started the child ends, not when the
		// process ends. So this thread does nothing else until the child's end.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		var err error
		inside(p.in, func() { err = p.start(cmd) })
		started <- err
		if err == nil {
			cmd.Wait()
		}
		close(done)
	}()
	if err := <-started; err != nil {
		return err
	}
	p.cmd, p.done, p.paused = cmd, done, false
	return nil
}

// start starts cmd with the process's priority, which a child inherits from the thread that starts it.
func (p *Process) start(cmd *exec.Cmd) error {
	if p.Nice == 0 {
		return cmd.Start()
	}
	if err := syscall.Setpriority(syscall.PRIO_PROCESS, 0, p.Nice); err != nil {
		return err
	}
	err := cmd.Start()
	return errors.Join(err, syscall.Setpriority(syscall.PRIO_PROCESS, 0, 0))
}

// alive reports whether the process exists. The caller holds p.mu.
func (p *Process) alive() bool {
	if p.cmd == nil {
		return false
	}
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Running reports whether the process exists and is not paused.
func (p *Process) Running() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.alive() && !p.paused
}

// Pid returns the process's id, 0 without one.
func (p *Process) Pid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.alive() {
		return 0
	}
	return p.cmd.Process.Pid
}

// Ending describes how the last process ended.
func (p *Process) Ending() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil || p.alive() {
		return "no process has ended"
	}
	return p.cmd.ProcessState.String()
}

// Stop asks the process to end and waits for it. It kills a process that doesn't end, and returns
// an error for that.
func (p *Process) Stop() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.alive() {
		return nil
	}
	p.cmd.Process.Signal(syscall.SIGTERM)
	p.cmd.Process.Signal(syscall.SIGCONT)
	p.paused = false
	timer := time.NewTimer(wait.Timeout)
	defer timer.Stop()
	select {
	case <-p.done:
		return nil
	case <-timer.C:
		p.cmd.Process.Kill()
		<-p.done
		return fmt.Errorf("it did not end within %s of SIGTERM", wait.Timeout)
	}
}

// Kill ends the process at once, if there is one, and waits for its end.
func (p *Process) Kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.alive() {
		p.cmd.Process.Kill()
		<-p.done
	}
}

// Pause stalls the process (SIGSTOP) and returns when every thread of the process has stopped.
func (p *Process) Pause() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.alive() {
		return errors.New("it does not run")
	}
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	p.paused = true
	return waitStopped(p.cmd.Process.Pid)
}

// Resume ends a Pause.
func (p *Process) Resume() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.alive() {
		return errors.New("it does not run")
	}
	p.paused = false
	return p.cmd.Process.Signal(syscall.SIGCONT)
}

// waitStopped waits until all threads of a process are stopped according to the kernel, because a
// signal takes effect later. No caller accepts its error.
func waitStopped(pid int) error {
	for late := time.Now().Add(wait.Timeout); ; time.Sleep(time.Millisecond) {
		if stopped, err := allStopped(pid); stopped || err != nil {
			return err
		}
		if time.Now().After(late) {
			return fmt.Errorf("process %d not stopped within %s", pid, wait.Timeout)
		}
	}
}

func allStopped(pid int) (bool, error) {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil {
		return false, err
	}
	if len(tasks) == 0 {
		return false, fmt.Errorf("process %d is gone", pid)
	}
	for _, task := range tasks {
		b, err := os.ReadFile(task)
		if err != nil {
			continue // the thread has ended
		}
		// "pid (name) state ...": the name is the binary's, which has no space.
		var id int
		var name, state string
		if _, err := fmt.Sscan(string(b), &id, &name, &state); err != nil {
			return false, fmt.Errorf("%s: %w", task, err)
		}
		if state != "T" {
			return false, nil
		}
	}
	return true, nil
}

// LogEnd returns the end of the output, over all starts of the process: at most most bytes.
func (p *Process) LogEnd(most int64) string {
	f, err := os.Open(p.log)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	if end, err := f.Seek(0, io.SeekEnd); err == nil {
		f.Seek(max(0, end-most), io.SeekStart)
	}
	b, _ := io.ReadAll(f)
	return string(b)
}

// inside runs f at the place, or here if in is nil.
func inside(in Place, f func()) {
	if in == nil {
		f()
		return
	}
	in.Do(f)
}

// Gone reports whether a process has ended, even if its parent has not read its exit status.
func Gone(pid int) bool {
	if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return true
	}
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return bytes.Contains(stat, []byte(") Z "))
}
