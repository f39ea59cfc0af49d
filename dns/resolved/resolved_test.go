package resolved

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/godbus/dbus/v5"

	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/wait"
)

// fake is a kernel with at most one interface, and a systemd-resolved.
type fake struct {
	mu      sync.Mutex
	index   int // of the interface; 0: it doesn't exist
	address bool
	known   int            // the interface of which systemd-resolved knows
	links   map[int]stored // what is set
	refuse  error          // of every change
	down    bool           // systemd-resolved doesn't run
	sets    int

	events  chan string
	changed chan struct{}
	closed  chan struct{}
}

func newFake() *fake {
	return &fake{links: map[int]stored{}, events: make(chan string), changed: make(chan struct{}, 1), closed: make(chan struct{})}
}

func (f *fake) do(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func (f *fake) Find(name string) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.index == 0 || name != "ironvip0" {
		return 0, errNoLink(name)
	}
	return f.index, nil
}

func (f *fake) Watch(ctx context.Context) (<-chan string, error) {
	out := make(chan string)
	go func() {
		defer close(out)
		for {
			select {
			case <-ctx.Done():
				return
			case name := <-f.events:
				out <- name
			}
		}
	}()
	return out, nil
}

func (f *fake) check(index int) error {
	switch {
	case f.down:
		return dbus.Error{Name: "org.freedesktop.DBus.Error.NameHasNoOwner"}
	case index != f.known:
		return dbus.Error{Name: "org.freedesktop.resolve1.NoSuchLink", Body: []any{"Link not known"}}
	}
	return nil
}

func (f *fake) Link(_ context.Context, index int) (stored, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.check(index); err != nil {
		return stored{}, err
	}
	x, ok := f.links[index]
	if !ok {
		x = stored{dnssec: "allow-downgrade", tls: "no"}
	}
	x.inUse = f.address && len(x.servers) > 0
	return x, nil
}

func (f *fake) Set(_ context.Context, index int, s Settings) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.check(index); err != nil {
		return err
	}
	if f.refuse != nil {
		return f.refuse
	}
	f.sets++
	f.links[index] = stored{servers: serversOf(s), domains: domainsOf(s), dnssec: "no", tls: "no"}
	return nil
}

func (f *fake) Revert(_ context.Context, index int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.links, index)
	return f.check(index)
}

func (f *fake) Changed() <-chan struct{} { return f.changed }
func (f *fake) Closed() <-chan struct{}  { return f.closed }
func (f *fake) Close()                   {}

var sample = NewSettings("ironvip0", "vip.internal", []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:8653")}, []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")})

// follow runs a Follower in a bubble until end is called.
func follow(t *testing.T, f *fake) (follower *Follower, end func()) {
	t.Helper()
	follower = New(Options{Log: slog.New(slog.DiscardHandler), links: f, connect: func(context.Context) (manager, error) { return f, nil }})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- follower.Run(ctx) }()
	return follower, func() {
		cancel()
		expect.Is(t, <-ended, context.Canceled, "Run ended with")
	}
}

func (f *fake) expect(t *testing.T, follower *Follower, sets int, problem string) {
	t.Helper()
	synctest.Wait()
	s := follower.State()
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.sets != sets:
		t.Errorf("settings were stored %d times, want %d", f.sets, sets)
	case problem == "" && (!s.Applied || s.Problem != nil):
		t.Errorf("state %+v (%v), want applied", s, s.Problem)
	case problem != "" && (s.Problem == nil || s.Applied || !strings.Contains(s.Problem.Message, problem)):
		t.Errorf("state %+v (%v), want the problem %q", s, s.Problem, problem)
	}
}

// The settings are set once, and again when the link or systemd-resolved was replaced or somebody
// reverted them. They are removed when they are off, and stay at the end.
func TestFollows(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFake()
		follower, end := follow(t, f)
		synctest.Wait()
		if s := follower.State(); s.Applied || s.Problem != nil {
			t.Errorf("state %+v without settings", s)
		}
		follower.Configure(sample)
		f.expect(t, follower, 0, "interface ironvip0 does not exist")

		f.do(func() { f.index, f.known, f.address = 7, 7, true })
		f.events <- "ironvip0"
		f.expect(t, follower, 1, "")
		f.events <- "eth0"
		follower.Configure(sample)
		f.expect(t, follower, 1, "")

		// The kernel reports the new link before systemd-resolved knows it.
		f.do(func() { f.index = 8 })
		f.events <- "ironvip0"
		f.expect(t, follower, 1, "Link not known")
		f.do(func() { f.known = 8 })
		time.Sleep(soon)
		f.expect(t, follower, 2, "")

		// systemd-resolved restarts, and has forgotten the link.
		f.do(func() { f.down = true })
		f.changed <- struct{}{}
		f.expect(t, follower, 2, "systemd-resolved is not running")
		f.do(func() { f.down = false; clear(f.links) })
		f.changed <- struct{}{}
		f.expect(t, follower, 3, "")

		f.do(func() { clear(f.links) }) // without an event
		time.Sleep(slowPoll)
		f.expect(t, follower, 4, "")

		other := sample
		other.Domains = []string{"lb.example.com"}
		follower.Configure(other)
		f.expect(t, follower, 5, "")
		expect.SameList(t, f.links[8].domains, []domain{{"lb.example.com", true}}, "domains")
		follower.Configure(off(other))
		synctest.Wait()
		if len(f.links) > 0 || follower.State().Applied {
			t.Errorf("%v remains after the settings were removed", f.links)
		}
		follower.Configure(sample)
		f.expect(t, follower, 6, "")
		end()
		expect.Equal(t, len(f.links), 1, "the settings were reverted at the end")
	})
}

func off(s Settings) Settings {
	s.On = false
	return s
}

// The leftovers of an earlier process are removed once at the start if the settings are off. Settings
// of others stay.
func TestRemovesRemains(t *testing.T) {
	ours := stored{servers: serversOf(sample), domains: domainsOf(sample), dnssec: "no", tls: "no"}
	elsewhere := NewSettings("ironvip0", "vip.internal", nil, nil)
	moved := off(NewSettings("ironvip0", "lb.example.com", sample.Servers, nil))
	for _, c := range []struct {
		name   string
		want   Settings
		change func(x *stored)
		stays  bool
	}{
		{"the same settings", off(sample), func(*stored) {}, false},
		{"no server", elsewhere, func(*stored) {}, false},
		{"another domain", moved, func(*stored) {}, false},
		{"another domain and server", off(NewSettings("ironvip0", "lb.example.com", nil, nil)), func(*stored) {}, true},
		{"another reverse zone only", off(NewSettings("ironvip0", "lb.example.com", nil, []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")})), func(*stored) {}, true},
		{"a default route", off(sample), func(x *stored) { x.defaultRoute = true }, true},
		{"DNSSEC", off(sample), func(x *stored) { x.dnssec = "yes" }, true},
		{"a search domain", off(sample), func(x *stored) { x.domains = []domain{{"vip.internal", false}} }, true},
		{"wanted", sample, func(*stored) {}, true},
	} {
		bubble.Run(t, c.name, func(t *testing.T) {
			f := newFake()
			f.index, f.known, f.address = 7, 7, true
			x := ours
			c.change(&x)
			f.links[7] = x
			follower, end := follow(t, f)
			follower.Configure(c.want)
			synctest.Wait()
			if _, stays := f.links[7]; stays != c.stays {
				t.Errorf("the settings stay: %v, want %v", stays, c.stays)
			}
			s := follower.State()
			expect.True(t, s.Problem == nil, "problem %v", s.Problem)
			end()
		})
	}
}

// Without systemd-resolved, nothing was left, and that is no problem.
func TestNothingRemains(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFake()
		f.index, f.known, f.down = 7, 7, true
		follower, end := follow(t, f)
		follower.Configure(off(sample))
		synctest.Wait()
		if s := follower.State(); s.Problem != nil || s.Applied {
			t.Errorf("state %+v", s)
		}
		end()
	})
}

// Settings are also removed if the connection with which they were set has broken.
func TestRemovesWithAnotherConnection(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFake()
		f.index, f.known, f.address = 7, 7, true
		follower, end := follow(t, f)
		follower.Configure(sample)
		f.expect(t, follower, 1, "")
		close(f.closed)
		synctest.Wait()
		follower.Configure(off(NewSettings("ironvip0", "lb.example.com", nil, nil)))
		synctest.Wait()
		expect.Empty(t, f.links, "remains")
		end()
	})
}

// A bus that accepts connections and doesn't answer doesn't prevent the end.
func TestSilentBus(t *testing.T) {
	at := filepath.Join(t.TempDir(), "bus")
	l := must.Get(net.Listen("unix", at))(t)
	defer l.Close()
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path="+at)
	accepted := make(chan net.Conn, 1)
	go func() {
		if c, err := l.Accept(); err == nil {
			accepted <- c
		}
	}()
	f := newFake()
	f.index = 7
	follower := New(Options{Log: slog.New(slog.DiscardHandler), links: f})
	follower.Configure(sample)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- follower.Run(ctx) }()
	defer (<-accepted).Close()
	cancel()
	select {
	case <-ended:
	case <-time.After(wait.Timeout):
		t.Error("Run does not end")
	}
}

// Each refusal has a reason and a hint.
func TestProblems(t *testing.T) {
	for _, c := range []struct {
		name          string
		change        func(f *fake)
		problem, hint string
	}{
		{"no address", func(f *fake) { f.address = false }, "interface ironvip0 has no address", "create a service"},
		{"no rule", func(f *fake) {
			f.refuse = dbus.Error{Name: "org.freedesktop.DBus.Error.InteractiveAuthorizationRequired"}
		}, "no polkit rule", RuleFile},
		{"no polkit", func(f *fake) { f.refuse = dbus.Error{Name: "org.freedesktop.DBus.Error.AccessDenied"} }, "no polkit rule", RuleFile},
		{"networkd", func(f *fake) { f.refuse = dbus.Error{Name: "org.freedesktop.resolve1.LinkBusy"} }, "systemd-networkd", "Unmanaged=yes"},
		{"old", func(f *fake) {
			f.refuse = dbus.Error{Name: "org.freedesktop.DBus.Error.UnknownMethod", Body: []any{"x"}}
		}, "too old: x", "systemd 246"},
		{"other", func(f *fake) { f.refuse = errors.New("broken") }, "broken", ""},
		{"not running", func(f *fake) { f.down = true }, "systemd-resolved is not running", "systemctl enable --now systemd-resolved"},
	} {
		bubble.Run(t, c.name, func(t *testing.T) {
			f := newFake()
			f.index, f.known, f.address = 7, 7, true
			c.change(f)
			follower, end := follow(t, f)
			defer end()
			follower.Configure(sample)
			synctest.Wait()
			p := follower.State().Problem
			if p == nil || !strings.Contains(p.Message, c.problem) || !strings.Contains(p.Hint, c.hint) {
				t.Fatalf("problem %+v", p)
			}
			f.do(func() { f.refuse, f.down, f.address = nil, false, true })
			time.Sleep(rare)
			synctest.Wait()
			s := follower.State()
			expect.True(t, s.Applied, "state %+v (%v) after the cause has ended", s, s.Problem)
		})
	}
}

// A broken connection to the bus is opened again.
func TestReconnects(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		first, second := newFake(), newFake()
		second.index, second.known, second.address = 7, 7, true
		tries := 0
		follower := New(Options{Log: slog.New(slog.DiscardHandler), links: second, connect: func(context.Context) (manager, error) {
			tries++
			switch tries {
			case 1:
				return nil, errNoBus(errors.New("no such file"))
			case 2:
				return first, nil
			}
			return second, nil
		}})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- follower.Run(ctx) }()
		follower.Configure(sample)
		synctest.Wait()
		if p := follower.State().Problem; p == nil || !strings.Contains(p.Message, "system bus unreachable: no such file") {
			t.Errorf("problem %v", p)
		}
		time.Sleep(soon)
		close(first.closed)
		time.Sleep(rare)
		second.expect(t, follower, 1, "")
		cancel()
		<-ended
	})
}

func TestTooManyDomains(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFake()
		f.index, f.known, f.address = 7, 7, true
		follower, end := follow(t, f)
		defer end()
		many := sample
		many.Domains = make([]string, MaxDomains+1)
		follower.Configure(many)
		f.expect(t, follower, 0, "257 domains are more than the 256")
	})
}
