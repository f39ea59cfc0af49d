package kubetest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/process"
	"github.com/ironvip/ironvip/test/wait"
)

// Server is one of a cluster's two servers. It keeps its data, address and port until the end of
// the test.
type Server struct {
	name    string
	proc    *process.Process
	ready   func(context.Context) error
	changed func() // called when the process has ended
}

// Start runs a stopped server, and doesn't wait for it.
func (s *Server) Start(t testing.TB) {
	t.Helper()
	must(t, s.name+": start", s.proc.Start())
}

// Stop ends the server as an operator does (SIGTERM), and waits for its end.
func (s *Server) Stop(t testing.TB) {
	t.Helper()
	must(t, s.name+": stop", s.proc.Stop())
	s.changed()
}

// Kill ends the server at once (SIGKILL), and waits for its end.
func (s *Server) Kill(t testing.TB) {
	t.Helper()
	s.proc.Kill()
	s.changed()
}

// Stall stops the server's threads (SIGSTOP): its connections remain, but it doesn't answer.
func (s *Server) Stall(t testing.TB) {
	t.Helper()
	must(t, s.name+": stall", s.proc.Pause())
}

// Resume ends a Stall.
func (s *Server) Resume(t testing.TB) {
	t.Helper()
	must(t, s.name+": resume", s.proc.Resume())
}

// Restart stops the server if it runs, starts it, and waits until it is ready.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	s.Stop(t)
	s.Start(t)
	s.WaitReady(t)
}

// Running reports whether the server's process exists and is not stalled.
func (s *Server) Running() bool { return s.proc.Running() }

// Pid returns the id of the server's process, 0 without one.
func (s *Server) Pid() int { return s.proc.Pid() }

// Log returns the end of the server's log, over all its restarts: 16 KiB.
func (s *Server) Log() string { return s.proc.LogEnd(16 << 10) }

// maxWait bounds every wait; asking bounds one request.
const (
	maxWait = 2 * time.Minute
	asking  = 5 * time.Second
)

// WaitReady waits until the server answers requests.
func (s *Server) WaitReady(t testing.TB) {
	t.Helper()
	wait.Within(t, maxWait, "kubetest: "+s.name+" ready", func() error {
		if !s.proc.Running() {
			t.Fatalf("kubetest: %s ended by itself, or is stopped: %s\n%s", s.name, s.proc.Ending(), s.Log())
		}
		ctx, cancel := context.WithTimeout(context.Background(), asking)
		defer cancel()
		if err := s.ready(ctx); err != nil {
			return fmt.Errorf("%w\n%s", err, s.Log())
		}
		return nil
	})
}

// end kills the server at the end of the test.
func (s *Server) end(t testing.TB) {
	s.proc.Kill()
	if t.Failed() {
		t.Logf("%s: the end of its log:\n%s", s.name, s.Log())
	}
}
