package takeover

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

func backend(port uint16) Backend {
	return Backend{vip.FrontendKey{Addr: netip.MustParseAddr("127.96.0.1"), Port: 80, Protocol: vip.TCP}, netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), port)}
}

// counted are connections by backend.
type counted struct {
	mu   sync.Mutex
	open map[Backend]int64
}

func (c *counted) set(b Backend, n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open == nil {
		c.open = map[Backend]int64{}
	}
	if c.open[b] = n; n == 0 {
		delete(c.open, b)
	}
}

func (c *counted) all() (out []Count) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for b, n := range c.open {
		out = append(out, Count{b, n})
	}
	return out
}

func (c *counted) await(t *testing.T, want map[Backend]int64) {
	t.Helper()
	wait.Until(t, "the counts are known", func() bool { c.mu.Lock(); defer c.mu.Unlock(); return maps.Equal(c.open, want) }, func() any { return c.all() })
}

// relays is a process that relays connections.
type relays struct {
	*Relay
	counted
	ended chan Backend
}

func relay(t *testing.T, dir string) *relays {
	t.Helper()
	p := &relays{ended: make(chan Backend, 10)}
	var err error
	p.Relay, err = OpenRelay(dir, Connections{Open: func() func() []Count { return p.all }, End: func(b Backend) { p.ended <- b }}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// follower follows one process.
type follower struct {
	counted
	states chan State
	over   chan struct{}
	stop   context.CancelFunc
}

func follow(t *testing.T, r *Relaying) *follower {
	f := &follower{states: make(chan State, 100), over: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	f.stop = cancel
	go func() {
		defer close(f.over)
		r.Follow(ctx, func(s State) { f.states <- s }, func(c Count) { f.set(c.Backend, c.N) })
	}()
	t.Cleanup(func() { cancel(); <-f.over })
	return f
}

// found returns the processes in dir.
func found(t *testing.T, dir string, want int) []*Relaying {
	t.Helper()
	all, err := FindRelays(t.Context(), dir)
	if err != nil || len(all) != want {
		t.Fatalf("%d processes, want %d; %v", len(all), want, err)
	}
	return all
}

// Each agent that looks finds all processes that relay connections, with what they have at the moment, and follows them until
// their end.
func TestRelay(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "relays")
	found(t, dir, 0)
	p, q := relay(t, dir), relay(t, dir)
	p.set(backend(1), 3)
	p.set(backend(2), 1)
	q.set(backend(1), 7)
	var of *Relaying
	var all []*Relaying
	wait.Until(t, "both answer in time", func() bool {
		all = found(t, dir, 2)
		late := slices.ContainsFunc(all, func(r *Relaying) bool { return r.State.PID == 0 })
		for _, r := range all {
			if late {
				r.Close()
			}
		}
		return !late
	})
	for _, r := range all {
		if r.State.PID != os.Getpid() || r.State.Within != time.Hour {
			t.Errorf("%+v", r.State)
		}
		if len(r.Open) == 2 {
			of = r
		} else {
			r.Close()
		}
	}
	first := follow(t, of)
	first.await(t, map[Backend]int64{backend(1): 3, backend(2): 1})
	p.set(backend(1), 2)
	p.set(backend(2), 0)
	p.set(backend(3), 5)
	now := map[Backend]int64{backend(1): 2, backend(3): 5}
	first.await(t, now)
	of.End(backend(3))
	if b := <-p.ended; b != backend(3) {
		t.Errorf("ended %v", b)
	}
	q.Close()
	p.Retire(time.Minute)
	for s := range first.states {
		if s.Within <= time.Minute {
			break
		}
	}
	second := follow(t, found(t, dir, 1)[0]) // beside the first, and after the time has begun
	if s := <-second.states; s.Within > time.Minute {
		t.Errorf("%+v", s)
	}
	second.await(t, now)
	first.stop()
	<-first.over
	p.set(backend(3), 0)
	p.Close() // the last counts arrive before
	<-second.over
	second.await(t, map[Backend]int64{backend(1): 2})
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// What a dead process has left is removed, and other files are not. One that hangs delays nobody, and is followed when it
// answers.
func TestRelayThatDoesNotAnswer(t *testing.T) {
	dir := t.TempDir()
	listen := func(name string) *net.UnixListener {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, name), Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		return l
	}
	listen("1-0.sock").Close()
	hangs := listen("2-0.sock")
	defer hangs.Close()
	if err := os.WriteFile(filepath.Join(dir, "note"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	all := found(t, dir, 1)
	t.Logf("found after %s", time.Since(start))
	if left, err := os.ReadDir(dir); err != nil || len(left) != 2 {
		t.Errorf("left: %v, %v", left, err)
	}
	f := follow(t, all[0])
	answer := func(c Count) {
		t.Helper()
		for {
			conn, err := hangs.AcceptUnix()
			if err != nil {
				t.Fatal(err)
			}
			// The first client was FindRelays, which has ended.
			if err := converse(conn).send(message{Relay: &State{PID: 2}}, message{Open: &c}, message{Start: true}); err == nil {
				f.await(t, map[Backend]int64{c.Backend: c.N})
				conn.Close()
				return
			}
		}
	}
	answer(Count{backend(1), 4})
	answer(Count{backend(2), 1}) // after the conversation was cut off
	hangs.Close()
	wait.Until(t, "its end", func() bool {
		select {
		case <-f.over:
			return true
		default:
			return false
		}
	}, func() any { return fmt.Sprint(f.all()) })
}
