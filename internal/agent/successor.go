package agent

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// takeOverFlag is the flag of Options.TakeOver.
const takeOverFlag = "--take-over"

// followUpgrades starts a successor at each SIGUSR2, like nginx. It uses this process's arguments
// and the program that has its name now, which may be a newer release. A signal that arrives while
// this agent takes over itself waits until it has.
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
		case <-a.signals.upgrade:
		}
		a.log.Info("starting a process that takes over")
		if err := startSuccessor(ctx); err != nil {
			a.log.Error("successor not started; this agent goes on", "err", err)
		}
	}
}

// startSuccessor starts this program as a process that takes over. A shell starts it in the
// background and ends, so that the successor isn't a child of this process: systemd must see its
// end.
func startSuccessor(ctx context.Context) error {
	args := append([]string{"-c", `"$@" &`, "sh"}, os.Args...)
	if !slices.Contains(args, takeOverFlag) {
		args = append(args, takeOverFlag)
	}
	cmd := exec.CommandContext(ctx, "/bin/sh", args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	// systemd expects its watchdog from this process; the successor gets it with MAINPID.
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "WATCHDOG_PID=") })
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("start %s: %w", os.Args[0], err)
	}
	return nil
}
