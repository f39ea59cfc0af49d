package announcer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/announce/control"
	"github.com/ironvip/ironvip/announce/l2"
	"github.com/ironvip/ironvip/internal/mirror"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/scope"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

// fakeOutput is an output that remembers what it was told.
type fakeOutput struct {
	mu     sync.Mutex
	has    map[netip.Addr]bool // with whether it was to be probed
	beats  int
	whole  bool
	closed bool
	drains bool
}

func (f *fakeOutput) lock() func() { f.mu.Lock(); return f.mu.Unlock }

func (f *fakeOutput) configure(*announce.Settings) error { return nil }

func (f *fakeOutput) set(_, now *announce.Announcement, probe bool) {
	defer f.lock()()
	if delete(f.has, now.Addr); now.Here {
		f.has[now.Addr] = probe
	}
}

func (f *fakeOutput) act(beat bool) {
	defer f.lock()()
	if beat {
		f.beats++
	}
}

func (f *fakeOutput) complete() { defer f.lock()(); f.whole = true }

func (f *fakeOutput) drain(on bool) { defer f.lock()(); f.drains = on }

func (f *fakeOutput) close(bool) { defer f.lock()(); f.closed = true }

func (f *fakeOutput) vips() int { defer f.lock()(); return len(f.has) }

// host is an announcer with an agent's side.
type host struct {
	t      *testing.T
	out    *fakeOutput
	socket string
	stop   func() // SIGTERM, and wait
	control.Tables
	link     *mirror.Client
	eligible *table.Table[netip.Addr, announce.Eligible]
	ready    func() // the agent knows all VIPs
	unlink   func()
	settings *table.Table[struct{}, announce.Settings]
}

func loopback(i int, port int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, byte(i)}), uint16(port))
}

func newHost(t *testing.T, name string, listen netip.AddrPort, peers ...netip.AddrPort) *host {
	t.Helper()
	h := &host{t: t, out: &fakeOutput{has: map[netip.Addr]bool{}}, socket: filepath.Join(t.TempDir(), "control.sock"), settings: control.NewSettings(&table.Clock{})}
	h.settings.Set(announce.Settings{Node: name, Weight: 1, Pools: []announce.Pool{{Name: "lan", Mode: announce.L2, CIDRs: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}},
		Listen: listen.String(), Peers: peers, Keys: [][]byte{[]byte("key")}, Heartbeat: 20 * time.Millisecond, Missed: 20, Settle: 50 * time.Millisecond, Hold: time.Minute})
	a := New(Options{Socket: h.socket, Version: "test", Log: slog.New(slog.DiscardHandler)})
	a.outputs[announce.L2] = h.out
	end := scope.Go(t, a.Run)
	h.stop = sync.OnceFunc(func() {
		end()
		expect.True(t, h.out.closed, "the output is not closed")
	})
	t.Cleanup(h.stop)
	h.connect()
	return h
}

// connect starts an agent without VIPs.
func (h *host) connect() {
	clock := table.NewClock(time.Now())
	h.eligible = table.New(clock, announce.KeyOfEligible, nil)
	h.ready = h.eligible.Initializer()
	h.Tables = control.NewTables(clock)
	h.link = &mirror.Client{Path: h.socket, Publish: control.Publish(h.settings, h.eligible), Mirror: h.Mirror(), Log: slog.New(slog.DiscardHandler)}
	h.unlink = scope.Go(h.t, h.link.Run)
}

func (h *host) set(change func(*announce.Settings)) {
	s, _, _ := h.settings.Get(struct{}{})
	change(&s)
	h.settings.Set(s)
}

func (h *host) offer(n int) {
	for i := range n {
		h.eligible.Set(announce.Eligible{Addr: simVIP(i), Mode: announce.L2, Services: 1})
	}
}

func simVIP(i int) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}) }

func (h *host) awaitVIPs(n int) {
	h.t.Helper()
	wait.Until(h.t, fmt.Sprintf("%d VIPs", n), func() bool { return h.out.vips() == n }, func() any { return h.out.vips() })
}

func port(t *testing.T) int {
	t.Helper()
	c := must.Get(net.ListenPacket("udp", ":0"))(t)
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).Port
}

// A VIP that the agent offers is announced, and the agent's mirror shows it. Without the agent it
// stays for hold, and is withdrawn then. An agent that comes back changes nothing until it has sent
// all.
func TestAgentComesAndGoes(t *testing.T) {
	h := newHost(t, "lb1", loopback(1, port(t)))
	h.set(func(s *announce.Settings) { s.Hold = 300 * time.Millisecond })
	h.offer(3)
	h.ready()
	h.awaitVIPs(3)
	wait.Until(t, "the mirror", func() bool { return h.link.State().Synced && h.Announcements.Len() == 3 })
	if a, _, _ := h.Announcements.Get(simVIP(1)); !a.Here || a.Owner != "lb1" || a.Why != "lb1: the only eligible host" {
		t.Errorf("%+v", a)
	}
	expect.False(t, h.out.has[simVIP(1)], "a VIP of the start is probed")
	h.eligible.Set(announce.Eligible{Addr: simVIP(9), Mode: announce.L2, Services: 1})
	h.awaitVIPs(4)
	expect.True(t, h.out.has[simVIP(9)], "a new VIP is not probed")

	h.unlink()
	h.awaitVIPs(0)
	h.connect()
	h.offer(2)
	h.ready()
	h.awaitVIPs(2)
	wait.Until(t, "the mirror", func() bool { return h.Announcements.Len() == 2 })

	h.unlink()
	h.connect() // within hold, and not synced
	wait.Until(t, "a connection", func() bool { return h.link.State().Synced })
	expect.Equal(t, h.out.vips(), 2, "an agent that has just started changes announcements")
	h.eligible.Set(announce.Eligible{Addr: simVIP(1), Mode: announce.L2, Services: 1})
	h.ready()
	h.awaitVIPs(1)
}

// Two hosts share the VIPs. A drain, a stop and an end move them.
func TestPairOfProcesses(t *testing.T) {
	p := port(t)
	a, b := newHost(t, "lb1", loopback(1, p), loopback(2, p)), newHost(t, "lb2", loopback(2, p), loopback(1, p))
	const vips = 40
	for _, h := range []*host{a, b} {
		h.offer(vips)
		h.ready()
	}
	share := func() {
		t.Helper()
		wait.Until(t, "a share for each", func() bool { return a.out.vips() > 5 && b.out.vips() > 5 && a.out.vips()+b.out.vips() == vips }, func() any { return fmt.Sprint(a.out.vips(), " ", b.out.vips()) })
	}
	share()
	a.set(func(s *announce.Settings) { s.Draining = true })
	a.awaitVIPs(0)
	b.awaitVIPs(vips)
	wait.Until(t, "the reason", func() bool {
		n, _, _ := a.Announcements.Get(simVIP(1))
		return n.Why == "lb2: the only eligible host; lb1 is draining"
	})
	wait.Until(t, "the peer", func() bool {
		p, _, _ := b.Peers.Get(announce.PeerKey{Kind: announce.Neighbor, Name: "lb1"})
		return p.Up && p.Draining && p.Eligible == vips
	})
	a.set(func(s *announce.Settings) { s.Draining = false })
	share()
	b.set(func(s *announce.Settings) { s.Settle = time.Second })
	wait.Until(t, "the difference", func() bool {
		p, _, _ := a.Peers.Get(announce.PeerKey{Kind: announce.Neighbor, Name: "lb2"})
		return strings.Contains(p.Reason, "settings, pools or version differ")
	})
	for _, h := range []*host{a, b} {
		h.set(func(s *announce.Settings) { s.Missed = 1e6 }) // only a planned end gives the VIPs to the other host
	}
	share()
	b.stop()
	a.awaitVIPs(vips)
	expect.True(t, a.out.whole, "the output does not know that all was set")
}

func TestSecondAnnouncerIsRefused(t *testing.T) {
	h := newHost(t, "lb1", loopback(1, port(t)))
	wait.Until(t, "a connection", func() bool { return h.link.State().Connected })
	err := New(Options{Socket: h.socket}).Run(t.Context())
	if err == nil || !strings.Contains(err.Error(), "another announcer runs") {
		t.Errorf("%v", err)
	}
}

const dialEnv = "IRONVIP_TEST_DIAL"

// TestOtherUsersAreRefused connects as another user, even where the socket's permissions allow it.
func TestOtherUsersAreRefused(t *testing.T) {
	if path := os.Getenv(dialEnv); path != "" { // in the child
		c, err := net.Dial("unix", path)
		if err == nil {
			_ = json.NewEncoder(c).Encode(map[string]int{"protocol": mirror.Protocol})
			_, err = c.Read(make([]byte, 1))
		}
		fmt.Println("child:", err)
		return
	}
	need.Root(t)
	dir, err := os.MkdirTemp("/tmp", "announcer") // t.TempDir is closed to others
	must.Succeed(t, err)
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "control.sock")
	scope.Go(t, func(ctx context.Context) error { return New(Options{Socket: path}).Run(ctx) })
	wait.Until(t, "the socket", func() bool { _, err := os.Stat(path); return err == nil })
	program := filepath.Join(dir, "child")
	self := must.Get(os.ReadFile("/proc/self/exe"))(t)
	must.Succeed(t, os.WriteFile(program, self, 0o755))
	for _, step := range []struct {
		mode os.FileMode
		want string
	}{{0o600, "permission denied"}, {0o666, "EOF"}} {
		must.Succeed(t, os.Chmod(path, step.mode))
		_ = os.Chmod(dir, 0o755)
		cmd := exec.CommandContext(t.Context(), program, "-test.run=TestOtherUsersAreRefused")
		cmd.Dir = "/"
		cmd.Env = []string{dialEnv + "=" + path, "GORACE=atexit_sleep_ms=0"}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), step.want) && !strings.Contains(string(out), "reset") {
			t.Errorf("mode %o: %v, %s", step.mode, err, out)
		}
	}
}

// ordered is an output that remembers the order of the calls in a step.
type ordered struct {
	fakeOutput
	calls []string
}

func (o *ordered) set(_, now *announce.Announcement, _ bool) {
	o.calls = append(o.calls, fmt.Sprintf("set %s %v", now.Addr, now.Here))
}

func (o *ordered) act(bool) { o.calls = append(o.calls, "act") }

// A VIP that is no longer eligible is withdrawn in the step that takes the agent's message, at the
// same time, before other hosts learn it, and without a heartbeat that is due.
func TestIneligibleIsWithdrawnInTheSameStep(t *testing.T) {
	a := New(Options{Socket: filepath.Join(t.TempDir(), "control.sock"), Log: slog.New(slog.DiscardHandler)})
	out := &ordered{}
	a.outputs[announce.L2], a.outputs[announce.BGP] = out, out
	now := time.Now()
	settings := announce.Settings{Node: "lb1", Weight: 1, Heartbeat: 100 * time.Millisecond, Missed: 3, Settle: 10 * time.Second, Hold: time.Minute,
		Pools: []announce.Pool{{Name: "lan", Mode: announce.L2, CIDRs: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}}}
	eligible := func(mode announce.Mode, services int) {
		agentEligible{a}.SetAll([]announce.Eligible{{Addr: simVIP(int(mode)), Mode: mode, Services: services}})
	}
	a.configure(&settings, now)
	for _, mode := range []announce.Mode{announce.L2, announce.BGP} {
		eligible(mode, 1)
	}
	a.synced()
	a.step(now, nil)
	must.True(t, a.carries(simVIP(int(announce.L2)), announce.L2) && a.carries(simVIP(int(announce.BGP)), announce.BGP), "both are announced")
	for _, mode := range []announce.Mode{announce.L2, announce.BGP} {
		now = now.Add(time.Millisecond)
		out.calls = nil
		eligible(mode, 0)
		a.step(now, nil)
		// Both modes have this output, so it acts twice.
		want := []string{"set " + simVIP(int(mode)).String() + " false", "act", "act"}
		expect.SameList(t, out.calls, want, "%v: calls", mode)
	}
}

// The gate of an earlier run is removed once when nothing is to be announced at layer 2. If no speaker begins,
// it stays: other hosts announce the VIPs.
func TestGateOfAnEarlierRun(t *testing.T) {
	a := New(Options{Socket: filepath.Join(t.TempDir(), "control.sock"), Log: slog.New(slog.DiscardHandler)})
	o := newL2(a, "record")
	removed := 0
	var fails error
	o.removeGate = func(_ context.Context, record string) error {
		if removed++; record != "record" {
			t.Errorf("record %q", record)
		}
		return fails
	}
	o.open = func(context.Context, l2.Config) (l2Speaker, error) { return nil, errors.New("no permission") }
	defer o.close(false)
	on := &announce.Settings{Pools: []announce.Pool{{Name: "lan", Mode: announce.L2}}}
	if err := o.configure(on); err == nil || removed != 0 {
		t.Errorf("without a speaker: %v, removed %d times", err, removed)
	}
	o.ran, fails = true, errors.New("no answer")
	for range 3 {
		expect.Succeed(t, o.configure(&announce.Settings{}))
		if fails = nil; removed == 1 && a.problems["l2 gate"] == "" {
			t.Error("a failure is not reported")
		}
	}
	if removed != 2 || len(a.problems) != 0 {
		t.Errorf("removed %d times, problems %v", removed, a.problems)
	}
}

// Routes of an earlier run are removed once when nothing is to be announced by routes.
func TestRoutesOfAnEarlierRun(t *testing.T) {
	a := New(Options{Socket: filepath.Join(t.TempDir(), "control.sock"), Log: slog.New(slog.DiscardHandler)})
	o := newRoutes(a)
	removed := 0
	fails := errors.New("no answer")
	o.removeRoutes = func(context.Context) error { removed++; return fails }
	for i := range 3 {
		expect.Succeed(t, o.configure(&announce.Settings{}))
		if fails = nil; (len(a.problems) == 0) != (i > 0) {
			t.Errorf("problems %v", a.problems)
		}
	}
	expect.Equal(t, removed, 2, "removed %d times, want the failure and a success", removed)
}

// The results of routes are those of their announcements.
func TestResultsOfRoutes(t *testing.T) {
	a := New(Options{Socket: filepath.Join(t.TempDir(), "control.sock"), Log: slog.New(slog.DiscardHandler)})
	o := newRoutes(a)
	applied := table.New(new(table.Clock), func(r *reconcile.Applied[netip.Prefix]) netip.Prefix { return r.Tried.Value }, nil)
	feed := applied.Watch()
	defer feed.Close()
	prefix := netip.MustParsePrefix("10.96.0.1/32")
	state := func(want, wantReason string) {
		t.Helper()
		batch, _ := feed.TryNext()
		o.report(batch)
		var places []announce.Announced
		for _, r := range a.tables.Announced.All() {
			places = append(places, r)
		}
		got, reason := announce.Outcome(announce.Routes, places)
		expect.Equal(t, [2]string{got, reason}, [2]string{want, wantReason}, "outcome")
	}
	row := reconcile.Applied[netip.Prefix]{Tried: &table.Row[netip.Prefix]{Value: prefix}}
	state(announce.StateWaiting, "the route has not been set yet")
	row.Problem = &refusedRoute
	applied.Set(row)
	state(announce.StateWaiting, "table 179: no buffer space available")
	row.Problem = nil
	applied.Set(row)
	state(announce.StateAnnounced, "")
	applied.Delete(prefix)
	state(announce.StateWaiting, "the route has not been set yet")
}

var refusedRoute = vip.Problem{Message: "no buffer space available"}
