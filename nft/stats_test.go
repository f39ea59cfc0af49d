package nft

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/internal/nftwire"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

func all(vip.FrontendKey) bool { return true }

// tracked is an entry as the kernel writes it in /proc, with its own counters.
type tracked struct {
	reconcile.Connection
	in, out reconcile.Volume
}

// countedWorld is a world with a kernel that counts connections by itself.
func countedWorld(t *testing.T) *world {
	if _, err := os.Stat("/proc/net/nf_conntrack"); err != nil {
		need.Lack(t, need.ReasonModule, "nf_conntrack with /proc/net/nf_conntrack")
	}
	w := newWorld(t)
	w.Director.Sysctl("netfilter/nf_conntrack_acct", "1")
	return w
}

// tracked returns the translated entries.
func (w *world) tracked() (all []tracked) {
	w.t.Helper()
	var text []byte
	var err error
	w.Director.Do(func() { text, err = os.ReadFile("/proc/thread-self/net/nf_conntrack") })
	must.Succeed(w.t, err)
	for line := range strings.Lines(string(text)) {
		part := strings.Fields(line)
		values := map[string][]string{}
		for _, p := range part {
			if k, v, ok := strings.Cut(p, "="); ok {
				values[k] = append(values[k], v)
			}
		}
		if len(values["sport"]) != 2 {
			continue
		}
		at := func(addr, port string, i int) netip.AddrPort {
			n := must.Get(strconv.ParseUint(values[port][i], 10, 16))(w.t)
			return netip.AddrPortFrom(netip.MustParseAddr(values[addr][i]), uint16(n))
		}
		volume := func(i int) (v reconcile.Volume) {
			must.Get(fmt.Sscan(values["packets"][i], &v.Packets))(w.t)
			must.Get(fmt.Sscan(values["bytes"][i], &v.Bytes))(w.t)
			return v
		}
		to := at("dst", "dport", 0)
		x := tracked{in: volume(0), out: volume(1)}
		x.Frontend = vip.FrontendKey{Addr: to.Addr(), Port: to.Port(), Protocol: vip.UDP}
		x.Client, x.Backend, x.State = at("src", "sport", 0), at("src", "sport", 1), reconcile.StateUDP
		if part[2] == "tcp" {
			x.Frontend.Protocol, x.State = vip.TCP, part[5]
		}
		if x.Backend.Addr() != to.Addr() {
			all = append(all, x)
		}
	}
	return all
}

// traffic returns what the entries of a frontend add up to, in all and by backend.
func traffic(f *vip.Frontend, entries []tracked) (sum reconcile.Breakdown) {
	sum.Endpoints = map[netip.AddrPort]reconcile.Traffic{}
	for _, b := range f.Backends {
		sum.Endpoints[b.Addr] = reconcile.Traffic{}
	}
	for _, e := range entries {
		if e.Frontend.Addr != f.Key.Addr || e.Frontend.Protocol != f.Key.Protocol || e.Frontend.Port < f.Key.Port || e.Frontend.Port > max(f.Key.Port, f.Key.LastPort) {
			continue
		}
		one := reconcile.Traffic{Connections: 1, In: e.in, Out: e.out, Active: 1}
		if e.State != "ESTABLISHED" && e.State != reconcile.StateUDP {
			one.Active, one.Inactive = 0, 1
		}
		sum.Add(one)
		at := e.Backend
		if _, known := sum.Endpoints[at]; !known {
			at = netip.AddrPortFrom(at.Addr(), 0)
		}
		b := sum.Endpoints[at]
		b.Add(one)
		sum.Endpoints[at] = b
	}
	return sum
}

// agrees waits until the statistics of all frontends are what connection tracking counts. Some packets of a
// connection that has ended may still be on their way.
func (w *world) agrees() {
	w.t.Helper()
	var state any
	wait.Until(w.t, "the counters agree with those of connection tracking", func() bool {
		before := w.tracked()
		totals := must.Get(w.Totals(w.t.Context(), all))(w.t)
		for k, f := range w.have {
			got, found, err := w.Breakdown(w.t.Context(), k)
			must.Succeed(w.t, err)
			want := traffic(f, before)
			if state = fmt.Sprintf("%s: %t %+v and %+v, want %+v", k, found, totals[k], got, want); !found || totals[k] != want.Traffic || got.Traffic != want.Traffic || !maps.Equal(got.Endpoints, want.Endpoints) {
				return false
			}
		}
		return true
	}, func() any { return state })
}

// The counters are those of connection tracking, of clients elsewhere and here, with backends elsewhere and here.
func TestStatisticsAgreeWithConnectionTracking(t *testing.T) {
	w := countedWorld(t)
	for i, c := range []struct {
		addr     string
		protocol vip.Protocol
		ranged   bool
	}{{"10.96.0.1", vip.TCP, false}, {"fd96::1", vip.TCP, false}, {"10.96.0.2", vip.UDP, false}, {"fd96::2", vip.UDP, true}, {"10.96.0.3", vip.TCP, true}} {
		network, six := c.protocol.String(), strings.Contains(c.addr, ":")
		f := frontend(c.addr, 80, c.protocol)
		port := uint16(0)
		if c.ranged {
			f.Key.LastPort, port = 180, 90
		}
		f.Backends = w.servers(network, six, port)
		if here := w.Director.Addr4; !six {
			f.Backends = append(f.Backends, vip.Endpoint{Addr: w.Director.Serve(network, netip.AddrPortFrom(here, port)), Weight: 1})
		}
		if c.ranged {
			for i := range f.Backends {
				f.Backends[i].Addr = netip.AddrPortFrom(f.Backends[i].Addr.Addr(), 0)
			}
		}
		slices.SortFunc(f.Backends, vip.CompareEndpoints)
		w.set(f)
		asked := uint16(80)
		if c.ranged {
			asked = 90
		}
		w.asks(w.Client, f.Key, asked, 12)
		w.asks(w.Director, f.Key, asked, 7+i)
		open := must.Get(w.Client.Dial(network, netip.AddrPortFrom(f.Key.Addr, asked)))(t)
		must.Get(open.Ask())(t)
	}
	// No service, another program's translation, and nobody.
	w.refused(w.Client, "tcp", netip.MustParseAddrPort("10.96.0.1:81"))
	w.nft(fmt.Sprintf("add table ip other\nadd chain ip other c { type nat hook prerouting priority -101; }\nadd rule ip other c tcp dport 5999 dnat to %s\n", w.Backends[0].Addr4))
	w.Client.Ask("tcp", netip.AddrPortFrom(w.Director.Addr4, 5999))
	w.set(frontend("10.96.0.9", 80, vip.TCP, w.servers("tcp", false, 0)...))
	w.agrees()
	expect.AtLeast(t, len(w.tracked()), 80, "entries")
	w.list()
}

// Counters survive changes of the service and of its other backends, and a restart. A frontend keeps the counts of
// backends that left, and a backend that returns begins at 0.
func TestCountersSurvive(t *testing.T) {
	w := countedWorld(t)
	servers := w.servers("udp", false, 0) // UDP: no packet of a connection comes after its answer
	f := frontend("10.96.0.1", 80, vip.UDP, servers...)
	w.set(f)
	w.asks(w.Client, f.Key, 80, 10)
	w.agrees()
	before, _, err := w.Breakdown(t.Context(), f.Key)
	must.Succeed(t, err)
	same := func(when string, want map[netip.AddrPort]reconcile.Traffic) {
		t.Helper()
		got, found, err := w.Breakdown(t.Context(), f.Key)
		if err != nil || !found || got.Connections != before.Connections || got.In != before.In || got.Out != before.Out {
			t.Errorf("%s: %t, %v, %+v, want %+v", when, found, err, got.Traffic, before.Traffic)
		}
		expect.Equal(t, len(got.Endpoints), len(want), "%s: backends", when)
		for a, x := range want {
			if y := got.Endpoints[a]; y.In != x.In || y.Out != x.Out || y.Connections != x.Connections {
				t.Errorf("%s: %s: %+v, want %+v", when, a, y, x)
			}
		}
	}
	f.Scheduler, f.Affinity = vip.SourceHash, time.Minute
	w.set(f)
	same("another scheduler", before.Endpoints)
	idle := vip.Endpoint{Addr: netip.MustParseAddrPort("10.99.9.9:80")}
	f.Backends = append(slices.Clone(servers), idle)
	w.set(f)
	with := maps.Clone(before.Endpoints)
	with[idle.Addr] = reconcile.Traffic{}
	same("another backend", with)
	w.planeIn = newPlane(t, w.Director)
	w.check(w.planeIn)
	same("a restart", with)
	f.Backends = []vip.Endpoint{servers[0], idle}
	w.set(f)
	delete(with, servers[1].Addr)
	same("a backend left", with)
	f.Backends = append(slices.Clone(servers), idle)
	w.set(f)
	with[servers[1].Addr] = reconcile.Traffic{}
	same("a backend is back", with)
	w.planeIn = newPlane(t, w.Director)
	w.check(w.planeIn)
	same("a restart", with)
	w.remove(f.Key)
	if _, found, err := w.Breakdown(t.Context(), f.Key); found || err != nil {
		t.Errorf("a frontend that is gone: %t, %v", found, err)
	}
	w.set(f)
	before = reconcile.Breakdown{}
	same("a frontend is back", map[netip.AddrPort]reconcile.Traffic{servers[0].Addr: {}, servers[1].Addr: {}, idle.Addr: {}})
}

// traffic makes the counters of backends, as their packets would.
func (w *world) traffic(k vip.FrontendKey, backends []vip.Endpoint) {
	w.t.Helper()
	var text strings.Builder
	for _, b := range backends {
		for way := range ways {
			fmt.Fprintf(&text, "add element inet ironvip_nft %s { %s . %s . %d . %s . %d counter packets 1 bytes 40 }\n",
				setID{kindShares, vip.FamilyOf(k.Addr), counterOrigin(k), way}, k.Addr, k.Protocol, k.Port, b.Addr.Addr(), b.Addr.Port())
		}
	}
	w.nft(text.String())
}

// nft runs commands of the nft program.
func (w *world) nft(commands string) {
	w.t.Helper()
	w.Director.Do(func() {
		c := exec.Command(need.Program(w.t, "nft"), "-f", "-")
		c.Stdin = strings.NewReader(commands)
		out, err := c.CombinedOutput()
		must.Succeed(w.t, err, "%v: %.1000s", err, out)
	})
}

// A change of a backend that has counters costs no more messages and allocations than one of an idle backend.
func TestCountersCostNoChange(t *testing.T) {
	w := newWorld(t)
	f := frontend("10.96.0.1", 80, vip.TCP)
	for b := range 10 {
		f.Backends = append(f.Backends, vip.Endpoint{Addr: backendAt(b), Weight: 1})
	}
	g := f
	g.Backends = f.Backends[1:]
	w.Put(t, updateOf{Key: f.Key, New: &f})
	cost := func() (messages uint64, allocations float64) {
		there, back := updateOf{Key: f.Key, Old: &f, New: &g}, updateOf{Key: f.Key, Old: &g, New: &f}
		w.Put(t, there) // makes the class
		w.Put(t, back)
		const rounds = 20
		before := w.Stats().NFTMessages
		allocations = testing.AllocsPerRun(rounds, func() { w.Put(t, there); w.Put(t, back) })
		return (w.Stats().NFTMessages - before) / (rounds + 1), allocations
	}
	messages, allocations := cost()
	w.traffic(f.Key, f.Backends)
	if n, a := cost(); n != messages || n > 12 || a > allocations*1.05+1 {
		t.Errorf("there and back cost %d messages and %.0f allocations, want at most 12 and those of an idle backend: %d and %.0f", n, a, messages, allocations)
	}
}

// The counters of backends that left are deleted together, so that a change costs no more messages because its backend
// has had traffic.
func TestCountersGoTogether(t *testing.T) {
	w := newWorld(t)
	f := frontend("10.96.0.1", 80, vip.TCP)
	for b := range 251 {
		f.Backends = append(f.Backends, vip.Endpoint{Addr: backendAt(b), Weight: 1})
	}
	f.Scheduler = vip.MaglevHash
	w.Put(t, updateOf{Key: f.Key, New: &f})
	w.traffic(f.Key, f.Backends)
	others := frontend("10.96.0.2", 80, vip.TCP, f.Backends[:20]...)
	w.Put(t, updateOf{Key: others.Key, New: &others})
	another := frontend("10.96.0.3", 80, vip.TCP, f.Backends[0])
	w.Put(t, updateOf{Key: another.Key, New: &another}) // makes its class
	w.Put(t, updateOf{Key: another.Key, Old: &another})
	put := func() uint64 {
		before := w.Stats().NFTMessages
		w.Put(t, updateOf{Key: another.Key, New: &another})
		return w.Stats().NFTMessages - before
	}
	alone := put()
	w.Put(t, updateOf{Key: another.Key, Old: &another})
	w.unused.clear()
	w.Put(t, updateOf{Key: f.Key, Old: &f}, updateOf{Key: others.Key, Old: &others})
	must.AtLeast(t, w.unused.n, maxUnusedShares, "backends have left")
	if n := put(); n != alone+3 {
		t.Errorf("with the counters of %d backends, a frontend costs %d messages, want those of one alone (%d) and one for each set", len(f.Backends), n, alone)
	}
	expect.Equal(t, w.unused.n, 0, "backends have left")
}

// No counter outlasts its frontend: what is left is deleted with the next read of the table, or before the frontend
// is back.
func TestCountersGo(t *testing.T) {
	w := countedWorld(t)
	counters := func() (n int) {
		for set := range counterSets {
			w.Node.Do(func() {
				must.Succeed(t, w.Target.stats.list(t.Context(), set, func(*nftwire.Element) { n++ }))
			})
		}
		return n
	}
	servers := w.servers("tcp", false, 80)
	for _, ranged := range []bool{false, true} {
		f := frontend("10.96.0.1", 80, vip.TCP, servers...)
		if ranged {
			f.Key.LastPort, f.Backends = 90, []vip.Endpoint{{Addr: netip.AddrPortFrom(servers[0].Addr.Addr(), 0), Weight: 1}}
		}
		w.Put(t, updateOf{Key: f.Key, New: &f})
		w.asks(w.Client, f.Key, 80, 4)
		expect.AtLeast(t, counters(), 6, "counters")
		w.Put(t, updateOf{Key: f.Key, Old: &f})
		w.check(w.planeIn)
		expect.Equal(t, counters(), 0, "counters are left")
		w.Put(t, updateOf{Key: f.Key, New: &f})
		w.asks(w.Client, f.Key, 80, 4)
		w.Put(t, updateOf{Key: f.Key, Old: &f})
		w.Put(t, updateOf{Key: f.Key, New: &f})
		expect.Equal(t, counters(), 3, "counters")
		w.Put(t, updateOf{Key: f.Key, Old: &f})
	}
}

// The clients of both audiences are counted once, for the frontend for everyone.
func TestStatisticsOfAudiences(t *testing.T) {
	w := countedWorld(t)
	servers := w.servers("tcp", false, 0)
	f := frontend("10.96.0.1", 80, vip.TCP, servers[0])
	w.Put(t, updateOf{Key: f.Key, New: &f})
	internal := f
	internal.Key.Audience, internal.Backends = vip.InternalClients, servers[1:]
	w.Put(t, updateOf{Key: internal.Key, New: &internal})
	idle := frontend("10.96.0.2", 80, vip.TCP, servers...) // missing in the totals
	w.Put(t, updateOf{Key: idle.Key, New: &idle})
	w.asks(w.Client, f.Key, 80, 3)
	w.asks(w.Director, f.Key, 80, 4)
	got, found, err := w.Breakdown(t.Context(), f.Key)
	if err != nil || !found || got.Connections != 7 || got.Endpoints[servers[0].Addr].Connections != 3 || got.Endpoints[servers[1].Addr].Connections != 4 {
		t.Errorf("%t, %v, %+v", found, err, got)
	}
	if _, found, err := w.Breakdown(t.Context(), internal.Key); found || err != nil {
		t.Errorf("the frontend for internal clients: %t, %v", found, err)
	}
	totals, err := w.Totals(t.Context(), all)
	if err != nil || len(totals) != 1 || totals[f.Key].Connections != 7 {
		t.Errorf("%v, %v", totals, err)
	}
	w.Put(t, updateOf{Key: internal.Key, Old: &internal})
	if got, _, err := w.Breakdown(t.Context(), f.Key); err != nil || got.Connections != 7 {
		t.Errorf("without the frontend for internal clients: %+v, %v", got, err)
	}
}

// The list of connections is that of connection tracking.
func TestListConnections(t *testing.T) {
	w := countedWorld(t)
	f, g := frontend("10.96.0.1", 80, vip.TCP, w.servers("tcp", false, 0)...), frontend("fd96::1", 53, vip.UDP, w.servers("udp", true, 0)...)
	w.set(f)
	w.set(g)
	w.asks(w.Client, f.Key, 80, 3)
	w.asks(w.Director, g.Key, 53, 2)
	for range 2 {
		c := must.Get(w.Client.Dial("tcp", f.Key.AddrPort()))(t)
		must.Get(c.Ask())(t)
	}
	w.Client.Ask("tcp", netip.AddrPortFrom(w.Director.Addr4, 1))
	list := func(want func(vip.FrontendKey) bool, most int) (out []string) {
		t.Helper()
		err := w.ListConnections(t.Context(), want, func(c reconcile.Connection) bool {
			if c.Expires <= 0 || c.Expires > 432000*time.Second {
				t.Errorf("%v expires in %s", c, c.Expires)
			}
			out = append(out, fmt.Sprint(c.Frontend, c.Client, c.Backend, c.State))
			return len(out) != most
		})
		must.Succeed(t, err)
		slices.Sort(out)
		return out
	}
	var got, want []string
	wait.Until(t, "the list is that of connection tracking", func() bool {
		want = nil
		for _, e := range w.tracked() {
			want = append(want, fmt.Sprint(e.Frontend, e.Client, e.Backend, e.State))
		}
		slices.Sort(want)
		got = list(all, 0)
		return len(got) == 7 && slices.Equal(got, want)
	}, func() any { return fmt.Sprintf("%q, want %q", got, want) })
	expect.Len(t, list(func(k vip.FrontendKey) bool { return k == g.Key }, 0), 2, "of one service")
	expect.Len(t, list(all, 1), 1, "one")
}
