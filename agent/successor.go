package agent

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/takeover"
)

// takeOverFlag is the flag of Options.TakeOver.
const takeOverFlag = "--take-over"

// followUpgrades starts a successor at each SIGUSR2, like nginx. It uses this process's arguments
// and the program that has its name now, which may be a newer release. A signal that arrives while
// this agent takes over itself waits until it has. It also awaits the successors that a switch starts.
func (a *agent) followUpgrades(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-a.replaces():
	}
	for {
		select {
		case <-ctx.Done():
			return
		case s := <-a.switches:
			go a.awaitSuccessor(ctx, s)
			continue
		case <-a.signals.upgrade:
		}
		a.log.Info("starting a process that takes over")
		s, err := startSuccessor(ctx, "")
		if err != nil {
			a.log.Error("successor not started; this agent goes on", "err", err)
			continue
		}
		go a.awaitSuccessor(ctx, s)
	}
}

// awaitSuccessor waits until a successor has taken over or this agent ends, and reports if the successor ends before. The
// failure is known before the end of the switch is.
func (a *agent) awaitSuccessor(ctx context.Context, s *successor) {
	err := s.wait(ctx)
	if ctx.Err() != nil { // this agent ends, and says nothing more of a switch
		return
	}
	if err != nil {
		a.log.Error("the process that this agent started does not take over; this agent goes on", "err", err)
		f := &takeoverFailure{at: time.Now(), why: err.Error()}
		a.failed.Store(f)
		a.events.Add(f.event())
	}
	if s.mode != nil {
		a.wish.CompareAndSwap(s.mode, nil)
	}
}

// successor is a process that this one has started. Its reports are lines: asking, when it is about to ask; then takenOver, or
// the error with which it ends. Its end ends them, too.
type successor struct {
	mode     *string // of the dataplane, for a switch; nil: as configured
	reports  *os.File
	process  takeover.Process
	patience time.Duration // successorTime, except in tests
}

const (
	asking    = "asking"
	takenOver = "taken over"
)

// successorTime bounds the time until a successor asks to take over, and then until it has the listening sockets.
const successorTime = 2 * time.Minute

// wait returns when the successor has the listening sockets or ctx ends, or an error if it has ended before or takes too long.
// A successor that takes too long is killed: if it asked later, it would take over after the failure has been reported.
// From then on, the successor can't report that it asks.
func (s *successor) wait(ctx context.Context) error {
	defer s.process.Close()
	defer s.reports.Close()
	defer context.AfterFunc(ctx, func() { _ = s.reports.SetReadDeadline(time.Unix(1, 0)) })()
	last, lines := "", bufio.NewScanner(s.reports)
	for {
		_ = s.reports.SetReadDeadline(time.Now().Add(s.patience))
		if ctx.Err() != nil || !lines.Scan() {
			break
		}
		last = lines.Text()
	}
	switch {
	case last == takenOver, ctx.Err() != nil:
		return nil
	case errors.Is(lines.Err(), os.ErrDeadlineExceeded):
		if err := s.process.Kill(ctx); err != nil {
			return fmt.Errorf("nothing is heard of it for %s, and it may take over later: %w", s.patience, err)
		}
		return fmt.Errorf("nothing was heard of it for %s, so this agent has ended it", s.patience)
	case last == "", last == asking:
		return errors.New("it ended before it took over, and gave no reason")
	}
	return errors.New("it ended: " + last)
}

// successorVariable is set in a successor, to the dataplane that it must run, or to asConfigured.
const (
	successorVariable = "IRONVIP_SUCCESSOR"
	asConfigured      = "-"
)

// reportDescriptor is where a successor reports.
const reportDescriptor = 3

// succession is what a process knows of the agent that has started it as a successor. Nil: no agent has.
type succession struct {
	mode    string   // of the dataplane; "": as configured
	reports *os.File // nil: everything is reported
}

// beginSuccession removes the variable, so that no child takes it for its own. Call it before the process opens anything.
func beginSuccession() *succession {
	mode, started := os.LookupEnv(successorVariable)
	os.Unsetenv(successorVariable)
	if !started {
		return nil
	}
	unix.CloseOnExec(reportDescriptor)
	return &succession{strings.TrimSuffix(mode, asConfigured), os.NewFile(reportDescriptor, "reports")}
}

// asks reports that this process is about to ask. It returns the dataplane that it must run, unless the one who wished that
// no longer waits.
func (s *succession) asks() (mode string) {
	if s == nil || s.reports == nil {
		return ""
	}
	if _, err := s.reports.WriteString(asking + "\n"); err != nil {
		return ""
	}
	return s.mode
}

// done reports that this process has taken over, or that it ends with an error. Only the first call counts.
func (s *succession) done(err error) {
	if s == nil || s.reports == nil {
		return
	}
	last := takenOver
	if err != nil {
		last = firstLine(err)
	}
	_, _ = s.reports.WriteString(last + "\n")
	s.reports.Close()
	s.reports = nil
}

// startSuccessor starts this program as a process that takes over, with the dataplane mode, or "": as configured. A shell
// starts it in the background and ends, so that the successor isn't a child of this process: systemd must see its end. The
// shell tells the number of the successor.
func startSuccessor(ctx context.Context, mode string) (*successor, error) {
	reports, report, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer report.Close()
	number, told, err := os.Pipe()
	if err != nil {
		reports.Close()
		return nil, err
	}
	defer number.Close()
	defer told.Close()
	args := append([]string{"-c", `"$@" 4>&- & echo $! >&4`, "sh"}, os.Args...)
	if !slices.Contains(args, takeOverFlag) {
		args = append(args, takeOverFlag)
	}
	cmd := exec.CommandContext(ctx, "/bin/sh", args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	// systemd expects its watchdog from this process; the successor gets it with MAINPID.
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "WATCHDOG_PID=") })
	cmd.Env = append(cmd.Env, successorVariable+"="+cmp.Or(mode, asConfigured))
	cmd.ExtraFiles = []*os.File{report, told} // reportDescriptor, and the next one
	if err := cmd.Run(); err != nil {
		reports.Close()
		return nil, fmt.Errorf("start %s: %w", os.Args[0], err)
	}
	told.Close()
	var pid int
	if _, err := fmt.Fscan(number, &pid); err != nil { // it runs nevertheless
		pid = 0
	}
	return &successor{reports: reports, process: takeover.OpenProcess(pid), patience: successorTime}, nil
}
