//go:build system

package program

import (
	"errors"
	"os/exec"
	"strings"
	"time"
)

// takeOver starts an agent that replaces h's, and returns it.
func (h *host) takeOver() *host {
	h.t.Helper()
	next := &host{t: h.t, dir: h.dir, pool: h.pool, inside: h.inside, log: &lockedBuffer{}, adjust: func(cmd *exec.Cmd) {
		if h.adjust != nil {
			h.adjust(cmd)
		}
		cmd.Args = append(cmd.Args, "--take-over")
	}}
	h.t.Cleanup(func() {
		next.stop()
		if h.t.Failed() {
			h.t.Logf("the new agent's log:\n%s", next.log)
		}
	})
	next.launch()
	h.eventually("the agent has handed over", func() error {
		if !strings.Contains(h.log.String(), "handed over") {
			return errors.New(next.log.String())
		}
		return nil
	})
	next.ready()
	return next
}

// ended waits for the end of the process by itself, without an error.
func (h *host) ended() {
	h.t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	select {
	case err := <-h.done:
		if err != nil {
			h.t.Errorf("the agent ended: %v", err)
		}
		h.cmd = nil
	case <-time.After(maxWait):
		h.t.Fatalf("the agent did not end within %s", maxWait)
	}
}
