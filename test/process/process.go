// Package process runs a program for a test, again and again: started in a
// network namespace where asked, ended politely or at once, stalled and revived.
//
// In go a program's path and arguments; its output is collected in a file. Every
// process is ended by its own id, and dies with the test's process. The package
// knows nothing of what the program does.
package process

import (
	"cmp"
	"context"
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

// patience is how long a process may take to end when it is asked to, or to stop.
const patience = 2 * time.Minute

// Place is where a process runs when not here: a network namespace. A node of
// test/netlab is one.
type Place interface {
	// Do runs f in the namespace: processes made by it are there.
	Do(f func())
}

// Process is a program that may end and be started with the same arguments. All
// methods may be called from any goroutine.
type Process struct {
	bin  string
	args []string
	in   Place
	log  string

	mu     sync.Mutex
	cmd    *exec.Cmd     // nil: never started
	done   chan struct{} // closed at the end of cmd
	paused bool
}

// New makes a process that is not running yet. What it writes goes to the end of
// the file log. In is nil for here.
func New(bin, log string, in Place, args ...string) *Process {
	return &Process{bin: bin, args: args, in: in, log: log}
}

// Start starts the process, and doesn't wait for anything it does.
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
		// The kernel sends Pdeathsig when the thread that started the child ends,
		// not the process: so this thread does nothing else until the child's end.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		var err error
		inside(p.in, func() { err = cmd.Start() })
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

// alive says whether there is a process; p.mu is held.
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

// Running says whether the process is there and not paused.
func (p *Process) Running() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.alive() && !p.paused
}

// Pid is the process's id, 0 while there is none.
func (p *Process) Pid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.alive() {
		return 0
	}
	return p.cmd.Process.Pid
}

// Ending says how the last process ended.
func (p *Process) Ending() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil || p.alive() {
		return "no process has ended"
	}
	return p.cmd.ProcessState.String()
}

// Stop asks the process to end and waits for it. One that doesn't is killed, and
// that is an error.
func (p *Process) Stop() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.alive() {
		return nil
	}
	p.cmd.Process.Signal(syscall.SIGTERM)
	p.cmd.Process.Signal(syscall.SIGCONT)
	p.paused = false
	patient := time.NewTimer(patience)
	defer patient.Stop()
	select {
	case <-p.done:
		return nil
	case <-patient.C:
		p.cmd.Process.Kill()
		<-p.done
		return fmt.Errorf("it did not end within %s of SIGTERM", patience)
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

// waitStopped waits until the kernel says that all threads of a process are
// stopped: a signal takes its time.
func waitStopped(pid int) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var gone error
	err := wait.Poll(ctx, func() error {
		var stopped bool
		if stopped, gone = allStopped(pid); gone == nil && !stopped {
			return fmt.Errorf("process %d not stopped within %s", pid, patience)
		}
		return nil
	})
	return cmp.Or(gone, err)
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
			continue // a thread that ended
		}
		// "pid (name) state ...": the name is the binary's, without a space.
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

// LogEnd is the end of what the process wrote, over all its starts: at most so
// many bytes.
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

// inside runs f at the place, or here when that is nil.
func inside(in Place, f func()) {
	if in == nil {
		f()
		return
	}
	in.Do(f)
}
