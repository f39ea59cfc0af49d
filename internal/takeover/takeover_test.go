package takeover

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/sockets"
	"github.com/ironvip/ironvip/test/bubble"
)

// agents are both sides of a conversation over a real socket.
type agents struct {
	old *Request
	new *Predecessor
	set *sockets.Set // of new
	ran chan error   // the result of Run
}

// begin makes a request and answers it.
func begin(t *testing.T) *agents {
	t.Helper()
	path := filepath.Join(t.TempDir(), "takeover.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var own sockets.Set
	if _, err := own.ListenTCP(t.Context(), netip.MustParseAddrPort("127.0.0.1:0")); err != nil {
		t.Fatal(err)
	}
	given, err := own.Next()
	if err != nil {
		t.Fatal(err)
	}
	a := &agents{set: &sockets.Set{}, ran: make(chan error, 1)}
	done := make(chan error, 1)
	go func() {
		conn, err := l.AcceptUnix()
		if err == nil {
			a.old, err = ReadRequest(conn)
		}
		if err == nil {
			err = a.old.Give(given)
		}
		done <- err
	}()
	p, problems, err := RequestFrom(t.Context(), path, a.set)
	if err != nil || len(problems) > 0 {
		t.Fatal(err, problems)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	a.new = p
	go func() { a.ran <- p.Run(t.Context()) }()
	t.Cleanup(func() { a.new.Close(); a.old.Close() })
	return a
}

// The whole conversation.
func TestConversation(t *testing.T) {
	a := begin(t)
	if a.set.Unclaimed() != 1 {
		t.Errorf("%d sockets", a.set.Unclaimed())
	}
	ready := make(chan error, 1)
	go func() { ready <- a.old.AwaitReady(t.Context()) }()
	type result struct {
		Farewell
		err error
	}
	farewell := Farewell{Reload: true}
	bye := make(chan result, 1)
	go func() {
		f, err := a.new.Ready(t.Context())
		bye <- result{f, err}
	}()
	if err := <-ready; err != nil {
		t.Fatal(err)
	}
	if err := a.old.Bye(farewell); err != nil {
		t.Fatal(err)
	}
	if r := <-bye; r.err != nil || r.Farewell != farewell {
		t.Errorf("%+v, want %+v", r, farewell)
	}
	a.old.Close()
	if err := <-a.ran; err != nil {
		t.Error(err)
	}
}

// The old agent goes on: the new one must end, whether or not it believes to be ready.
func TestResumed(t *testing.T) {
	for name, ready := range map[string]bool{"before ready": false, "at ready": true} {
		t.Run(name, func(t *testing.T) {
			a := begin(t)
			got := make(chan error, 1)
			if ready {
				go func() { _, err := a.new.Ready(t.Context()); got <- err }()
			}
			if err := a.old.Resume(t.Context(), &NotReadyError{Why: "it is late"}); err != nil {
				t.Fatal(err)
			}
			want := func(err error) {
				t.Helper()
				if _, ok := errors.AsType[*ResumedError](err); !ok {
					t.Errorf("%v, want a ResumedError", err)
				}
			}
			want(<-a.ran)
			if ready {
				want(<-got)
			}
		})
	}
}

// answer plays a running agent for one client.
func answer(t *testing.T, play func(*net.UnixConn)) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "takeover.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	work.Go(func() {
		if conn, err := l.AcceptUnix(); err == nil {
			play(conn)
			conn.Close()
		}
	})
	t.Cleanup(func() { l.Close(); work.Wait() })
	return path
}

func TestNoTakeOver(t *testing.T) {
	refused := answer(t, func(c *net.UnixConn) {
		if r, err := ReadRequest(c); err == nil {
			r.Refuse("process 7 takes over")
		}
	})
	_, _, err := RequestFrom(t.Context(), refused, &sockets.Set{})
	if r, ok := errors.AsType[*RefusedError](err); !ok || r.Why != "process 7 takes over" {
		t.Errorf("refused: %v", err)
	}
	for name, path := range map[string]string{
		"no socket":          filepath.Join(t.TempDir(), "none"),
		"ends without reply": answer(t, func(c *net.UnixConn) { c.Read(make([]byte, 100)) }),
	} {
		if _, _, err := RequestFrom(t.Context(), path, &sockets.Set{}); !errors.Is(err, ErrNoAgent) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, text := range map[string]string{"no JSON": "hello\n", "another message": `{"alive":true}` + "\n", "cut off": `{"sockets":true}` + "\n"} {
		path := answer(t, func(c *net.UnixConn) { c.Read(make([]byte, 100)); c.Write([]byte(text)) })
		if _, _, err := RequestFrom(t.Context(), path, &sockets.Set{}); err == nil || errors.Is(err, ErrNoAgent) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What isn't a request is told apart from a client that only connects.
func TestNoRequest(t *testing.T) {
	for text, silent := range map[string]bool{"": true, "takeover 2\n": false, "takeover": false} {
		got := make(chan error, 1)
		path := answer(t, func(c *net.UnixConn) { _, err := ReadRequest(c); got <- err })
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		c.Write([]byte(text))
		c.Close()
		if err := <-got; err == nil || errors.Is(err, ErrSilent) != silent {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// A process that hangs or takes too long is noticed in a bounded time, and one that ends at once.
func TestNotReady(t *testing.T) {
	for name, c := range map[string]struct {
		play   func(*conversation, context.Context)
		hangs  bool
		within time.Duration
	}{
		"silent": {func(_ *conversation, ctx context.Context) { <-ctx.Done() }, true, silence * 11 / 10},
		"hangs after a while": {func(c *conversation, ctx context.Context) {
			for range 20 {
				c.send(message{Alive: true})
				time.Sleep(aliveTime)
			}
			<-ctx.Done()
		}, true, 20*aliveTime + silence*11/10},
		"never ready": {func(c *conversation, ctx context.Context) {
			for c.send(message{Alive: true}) == nil && ctx.Err() == nil {
				time.Sleep(aliveTime)
			}
		}, true, readyTime + silence/10 + aliveTime},
		"ends":     {func(c *conversation, _ context.Context) { time.Sleep(time.Second); c.conn.Close() }, false, time.Second},
		"nonsense": {func(c *conversation, _ context.Context) { c.conn.Write([]byte("x\n")) }, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				here, there := net.Pipe()
				defer here.Close()
				defer there.Close()
				ctx, cancel := context.WithCancel(t.Context())
				var playing sync.WaitGroup
				playing.Go(func() { c.play(converse(there), ctx) })
				start := time.Now()
				err := (&Request{conversation: converse(here)}).AwaitReady(ctx)
				took := time.Since(start)
				why, ok := errors.AsType[*NotReadyError](err)
				if !ok || why.Hangs != c.hangs || took > c.within {
					t.Errorf("%v after %s, want it within %s", err, took, c.within)
				}
				cancel()
				here.Close()
				playing.Wait()
			})
		})
	}
}

// A process that stops to read before it has the sockets hangs, too.
func TestNotReading(t *testing.T) {
	for name, hangs := range map[string]bool{"hangs": true, "ends": false} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				here, there := net.Pipe()
				defer here.Close()
				defer there.Close()
				if !hangs {
					there.Close()
				}
				start := time.Now()
				err := (&Request{conversation: converse(here)}).Give(&sockets.Set{})
				why, ok := errors.AsType[*NotReadyError](err)
				if took := time.Since(start); !ok || why.Hangs != hangs || took > writeTime {
					t.Errorf("%v after %s", err, took)
				}
			})
		})
	}
}

// suspended is a connection of a process that was itself suspended: its deadline is over although
// messages have arrived.
type suspended struct {
	net.Conn
	late atomic.Bool
}

func (s *suspended) Read(b []byte) (int, error) {
	if s.late.Swap(false) {
		return 0, os.ErrDeadlineExceeded
	}
	return s.Conn.Read(b)
}

// An agent that was suspended doesn't take a successor for one that hangs.
func TestSuspendedAgent(t *testing.T) {
	a := begin(t)
	s := &suspended{Conn: a.old.conn}
	s.late.Store(true)
	a.old.conversation = converse(s)
	go a.new.Ready(t.Context())
	if err := a.old.AwaitReady(t.Context()); err != nil {
		t.Error(err)
	}
	if err := a.old.Bye(Farewell{}); err != nil {
		t.Error(err)
	}
}

// A process that hangs is killed; one that ends by itself has time for that.
func TestHangingProcessIsEnded(t *testing.T) {
	for name, stop := range map[string]bool{"hangs": true, "ends": false} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command("sleep", "1000")
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			p := OpenProcess(cmd.Process.Pid)
			defer p.Close()
			sig := unix.SIGTERM
			if stop {
				sig = unix.SIGSTOP
			}
			if err := cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			most := time.Minute
			if stop {
				most = 50 * time.Millisecond
			}
			if err := p.end(t.Context(), most); err != nil {
				t.Error(err)
			}
			cmd.Wait()
			if got, want := cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL, stop; got != want {
				t.Errorf("%v, want killed: %v", cmd.ProcessState, want)
			}
			if err := p.end(t.Context(), most); err != nil {
				t.Errorf("once it has ended: %v", err)
			}
		})
	}
	if p := OpenProcess(os.Getpid()); p.fd != -1 {
		t.Error("a process could end itself")
	}
}
