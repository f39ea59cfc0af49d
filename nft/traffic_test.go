package nft

import (
	"context"
	"fmt"
	"math"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/vip"
)

// world is a lab with a Target on its director.
type world struct {
	*netlab.Lab
	*planeIn
	t    *testing.T
	have map[vip.FrontendKey]*vip.Frontend
}

func newWorld(t *testing.T, change ...func(*Options)) *world {
	need.Root(t)
	return worldIn(t, netlab.New(t), change...)
}

func worldIn(t *testing.T, lab *netlab.Lab, change ...func(*Options)) *world {
	return &world{lab, newPlane(t, lab.Director, change...), t, map[vip.FrontendKey]*vip.Frontend{}}
}

// set brings a frontend to the Target, and checks that it is read as it is.
func (w *world) set(f vip.Frontend) {
	w.t.Helper()
	w.Put(w.t, updateOf{Key: f.Key, Old: w.have[f.Key], New: &f})
	w.have[f.Key] = &f
	w.check(w.planeIn)
}

func (w *world) remove(k vip.FrontendKey) {
	w.t.Helper()
	w.Put(w.t, updateOf{Key: k, Old: w.have[k]})
	delete(w.have, k)
	w.check(w.planeIn)
}

// check compares what a Target reads with what was set, and lets the nft program list the table.
func (w *world) check(p *planeIn) {
	w.t.Helper()
	n := 0
	for o, err := range p.Actual(w.t.Context()) {
		must.Succeed(w.t, err)
		n++
		if want := w.have[o.Value.Key]; want == nil || !p.Same(&o.Value, want) || len(o.Damage) > 0 {
			w.t.Errorf("read %+v (%v), want %+v", o.Value, o.Damage, want)
		}
	}
	expect.Equal(w.t, n, len(w.have), "frontends are read")
	w.list()
}

func (w *world) list() (text string) {
	w.t.Helper()
	need.Program(w.t, "nft")
	text, err := w.Director.Output("nft", "list", "ruleset")
	if err != nil || strings.Contains(text, "Error") {
		w.t.Errorf("nft list: %v\n%.500s", err, text)
	}
	return text
}

// run runs a command of the shell on the director.
func (w *world) run(command string) string {
	w.t.Helper()
	return w.Director.For(w.t).Run("sh", "-c", command)
}

func (w *world) servers(network string, six bool, port uint16) (all []vip.Endpoint) {
	for _, b := range w.Backends {
		a := b.Addr4
		if six {
			a = b.Addr6
		}
		all = append(all, vip.Endpoint{Addr: b.Serve(network, netip.AddrPortFrom(a, port)), Weight: 1})
	}
	return all
}

func frontend(addr string, port uint16, p vip.Protocol, backends ...vip.Endpoint) vip.Frontend {
	return vip.Frontend{Key: vip.FrontendKey{Addr: netip.MustParseAddr(addr), Port: port, Protocol: p}, Kind: vip.OnVIP,
		Scheduler: vip.WeightedRoundRobin, Masquerade: vip.MasqueradeAuto, Backends: backends}
}

// asks asks n times and counts who answers.
func (w *world) asks(from *netlab.Node, k vip.FrontendKey, port uint16, n int) map[string]int {
	w.t.Helper()
	got := map[string]int{}
	for range n {
		a, err := from.Ask(k.Protocol.String(), netip.AddrPortFrom(k.Addr, port))
		expect.Succeed(w.t, err, "ask %s", k)
		got[a.Name]++
	}
	return got
}

// at returns the index of a backend.
func at(name string) int { return int(name[len(name)-1] - '1') }

func (w *world) refused(from *netlab.Node, network string, at netip.AddrPort) {
	w.t.Helper()
	a, err := from.Ask(network, at)
	expect.Is(w.t, err, syscall.ECONNREFUSED, "%s: %v, %v, want a refusal", at, a, err)
}

// near reports whether n of all choices is what chance allows for a probability: six standard deviations, which fails
// once in 500 million times.
func near(n, all int, p float64) bool {
	return math.Abs(float64(n)-float64(all)*p) <= 6*math.Sqrt(float64(all)*p*(1-p))
}

func TestWeightsAreShares(t *testing.T) {
	w := newWorld(t)
	for _, addr := range []string{"10.96.0.1", "fd96::1"} {
		all := w.servers("tcp", strings.Contains(addr, ":"), 0)
		all[0].Weight, all[1].Weight = 30, 10
		f := frontend(addr, 80, vip.TCP, all...)
		w.set(f)
		if got := w.asks(w.Client, f.Key, 80, 200); !near(got["backend1"], 200, 0.75) || len(got) != 2 {
			t.Errorf("weights 30 and 10: %v", got)
		}
		if got := w.asks(w.Director, f.Key, 80, 100); !near(got["backend1"], 100, 0.75) || len(got) != 2 {
			t.Errorf("this host as the client: %v", got)
		}
		w.refused(w.Client, "tcp", netip.AddrPortFrom(f.Key.Addr, 81))
		w.refused(w.Director, "tcp", netip.AddrPortFrom(f.Key.Addr, 81))
	}
}

// A masqueraded connection gets a port that doesn't depend on the client's.
func TestMasqueradedPortsAreDrawn(t *testing.T) {
	w := newWorld(t)
	for i, addr := range []string{"10.96.0.1", "fd96::1"} {
		f := frontend(addr, 80, vip.TCP, w.servers("tcp", i > 0, 0)...)
		w.set(f)
		kept := 0
		for range 5 {
			c := must.Get(w.Client.Dial("tcp", f.Key.AddrPort()))(t)
			if own := c.LocalAddr().(*net.TCPAddr).AddrPort(); own.Port() == must.Get(c.Ask())(t).Client.Port() {
				kept++
			}
		}
		expect.AtMost(t, kept, 1, "%s: connections with the client's port", f.Key)
	}
}

// Services with the same settings in one shard don't disturb each other: each of two that are called alternately uses
// both backends, and neither foretells the other.
// Slow: 400 clients, for two choices that must be independent.
func TestAlternateServicesAreIndependent(t *testing.T) {
	w := newWorld(t)
	for _, affinity := range []time.Duration{0, time.Minute} {
		all := w.servers("udp", false, 0)
		a := frontend("10.96.0.1", 53, vip.UDP, all...)
		a.Affinity = affinity
		b := a
		for b.Key.Port++; originOf(b.Key) != originOf(a.Key); {
			b.Key.Port++
		}
		w.set(a)
		w.set(b)
		must.Equal(t, w.content.services[a.Key].class, w.content.services[b.Key].class, "classes")
		const n = 100
		ofA, ofB, equal := 0, 0, 0
		for range n {
			if affinity > 0 {
				w.forgetClients()
			}
			x := must.Get(w.Client.Ask("udp", a.Key.AddrPort()))(t)
			y := must.Get(w.Client.Ask("udp", b.Key.AddrPort()))(t)
			if x.Name == "backend1" {
				ofA++
			}
			if y.Name == "backend1" {
				ofB++
			}
			if x.Name == y.Name {
				equal++
			}
		}
		if !near(ofA, n, 0.5) || !near(ofB, n, 0.5) || !near(equal, n, 0.5) {
			t.Errorf("affinity %v: backend1 was chosen %d and %d times of %d, both services chose the same %d times", affinity, ofA, ofB, n, equal)
		}
		w.remove(a.Key)
		w.remove(b.Key)
	}
}

func (w *world) forgetClients() {
	w.t.Helper()
	w.run("nft flush map inet ironvip_nft clients4")
}

// A client stays with its backend, on all ports of a range, until that is drained. When the backend
// is back, the client stays with the one that it has now.
func TestAffinity(t *testing.T) {
	w := newWorld(t)
	for i, addr := range []string{"10.96.0.1", "fd96::1"} {
		for _, ranged := range []bool{false, true} {
			all := w.servers("tcp", i > 0, 0)
			f := frontend(addr, 80, vip.TCP, all...)
			f.Affinity = time.Minute
			if ranged {
				f.Key.Port, f.Key.LastPort = 100, 200
			}
			w.set(f)
			first := must.Get(w.Client.Ask("tcp", f.Key.AddrPort()))(t)
			if got := w.asks(w.Client, f.Key, f.Key.Port, 8); got[first.Name] != 8 {
				t.Errorf("%s: a client of %s got %v", f.Key, first.Name, got)
			}
			if ranged {
				if got := w.asks(w.Client, f.Key, 150, 4); got[first.Name] != 4 {
					t.Errorf("another port: a client of %s got %v", first.Name, got)
				}
			}
			i := at(first.Name)
			g := f
			g.Backends = append([]vip.Endpoint{}, all...)
			g.Backends[i].Weight = 0
			w.set(g)
			if got := w.asks(w.Client, f.Key, f.Key.Port, 4); got[first.Name] != 0 {
				t.Errorf("drained: %v", got)
			}
			w.set(f)
			if got := w.asks(w.Client, f.Key, f.Key.Port, 8); got[first.Name] != 0 {
				t.Errorf("back: %v", got)
			}
			w.remove(f.Key)
		}
	}
}

// A frontend of a single port in a range of another one has that port, whichever comes first.
func TestSinglePortInARange(t *testing.T) {
	w := newWorld(t)
	at := netip.AddrPortFrom(w.Backends[0].Addr4, 1042)
	w.Backends[0].Serve("tcp", at)
	wide := frontend("10.96.0.1", 1000, vip.TCP, vip.Endpoint{Addr: netip.AddrPortFrom(at.Addr(), 0), Weight: 1})
	wide.Key.LastPort = 1099
	single := frontend("10.96.0.1", 1042, vip.TCP, w.servers("tcp", false, 0)[1])
	w.set(wide)
	w.set(single)
	if got := w.asks(w.Client, single.Key, 1042, 4); got["backend2"] != 4 {
		t.Errorf("the single port: %v", got)
	}
	w.remove(single.Key)
	if got := w.asks(w.Client, wide.Key, 1042, 4); got["backend1"] != 4 {
		t.Errorf("the range: %v", got)
	}
}

func TestRangesOfPorts(t *testing.T) {
	w := newWorld(t)
	for i, addr := range []string{"10.96.0.1", "fd96::1"} {
		f := frontend(addr, 1000, vip.TCP)
		f.Key.LastPort = 1099
		for _, b := range w.Backends {
			a := b.Addr4
			if i > 0 {
				a = b.Addr6
			}
			b.Serve("tcp", netip.AddrPortFrom(a, 1042))
			f.Backends = append(f.Backends, vip.Endpoint{Addr: netip.AddrPortFrom(a, 0), Weight: 1})
		}
		w.set(f)
		if got := w.asks(w.Client, f.Key, 1042, 100); !near(got["backend1"], 100, 0.5) || len(got) != 2 {
			t.Errorf("%s: %v", f.Key, got)
		}
		c := must.Get(w.Client.Dial("tcp", netip.AddrPortFrom(f.Key.Addr, 1042)))(t)
		a, err := c.Ask()
		n, askErr := w.Connections(t.Context(), f.Key)
		if b := f.Backends[at(a.Name)]; err != nil || askErr != nil || n[b.Addr] == 0 {
			t.Errorf("connections of %s: %v, %v, %v", b.Addr, n, err, askErr)
		}
		c.Close()
		w.refused(w.Client, "tcp", netip.AddrPortFrom(f.Key.Addr, 1100))
		over := frontend(addr, 1050, vip.TCP)
		over.Key.LastPort = 1200
		batch := []updateOf{{Key: over.Key, New: &over}}
		if err := w.Apply(t.Context(), batch); err != nil || batch[0].Err == nil {
			t.Errorf("an overlapping range: %v, %v", err, batch[0].Err)
		}
		batch = []updateOf{{Key: over.Key, New: &over}, {Key: f.Key, Old: &f}}
		w.Put(t, batch...)
		w.have[over.Key] = &over
		w.check(w.planeIn2(f.Key))
	}
}

// planeIn2 forgets a frontend that a batch has removed.
func (w *world) planeIn2(k vip.FrontendKey) *planeIn {
	delete(w.have, k)
	return w.planeIn
}

func TestNodePort(t *testing.T) {
	w := newWorld(t)
	f := frontend(w.Director.Addr4.String(), 30080, vip.TCP, w.servers("tcp", false, 0)...)
	f.Kind = vip.OnHost
	w.set(f)
	got := w.asks(w.Client, f.Key, 30080, 100)
	expect.True(t, near(got["backend1"], 100, 0.5), "%v", got)
	w.asks(w.Director, f.Key, 30080, 2)
	taken := f
	taken.Key.Port = w.Director.Serve("tcp", netip.AddrPortFrom(w.Director.Addr4, 0)).Port()
	batch := []updateOf{{Key: taken.Key, New: &taken}}
	if err := w.Apply(t.Context(), batch); err != nil || batch[0].Err == nil {
		t.Errorf("a port that a process has: %v, %v", err, batch[0].Err)
	}
	f.Backends = nil
	w.set(f)
	w.refused(w.Client, "tcp", f.Key.AddrPort())
}

func TestHashesAndFailover(t *testing.T) {
	w := newWorld(t)
	for i, addr := range []string{"10.96.0.1", "fd96::1"} {
		all := w.servers("udp", i > 0, 0)
		at := uint16(53) // another one each time: a client's port that comes again keeps its backend
		for _, s := range []vip.Scheduler{vip.SourceHash, vip.MaglevHash, vip.DestinationHash, vip.WeightedFailover} {
			for _, port := range []bool{false, true} {
				at++
				f := frontend(addr, at, vip.UDP, all...)
				f.Scheduler, f.SchedulerPort, f.Backends[1].Weight = s, port, 5
				w.set(f)
				got := w.asks(w.Client, f.Key, at, 12)
				switch {
				case s == vip.WeightedFailover && got["backend2"] != 12:
					t.Errorf("fo: %v", got)
				case (s == vip.SourceHash || s == vip.MaglevHash) && port: // either
				case len(got) != 1:
					t.Errorf("%s (port %v): %v", s, port, got)
				}
			}
		}
	}
}

// A change by another program is found and repaired; foreign state stays.
func TestDriftIsRepaired(t *testing.T) {
	w := newWorld(t)
	all := w.servers("tcp", false, 0)
	f := frontend("10.96.0.1", 80, vip.TCP, all...)
	f.Affinity = time.Minute
	w.set(f)
	o := originOf(f.Key)
	for _, cmd := range []string{
		"nft delete table inet ironvip_nft",
		"nft flush ruleset",
		"nft flush map inet ironvip_nft choices4_" + o.String(),
		"nft flush map inet ironvip_nft services4_" + o.String(),
		"nft flush map inet ironvip_nft members4",
		"nft flush chain inet ironvip_nft " + w.content.services[f.Key].class.chain(o),
		"nft flush chain inet ironvip_nft arriving",
		"nft flush set inet ironvip_nft vips4",
		"nft flush map inet ironvip_nft shards",
		"ip route flush table local dev ironvip0",
		"ip link del ironvip0",
		"ip link set ironvip0 down",
	} {
		w.Director.Do(func() {
			if out, err := exec.Command("sh", "-c", "nft add table inet foreign; "+cmd).CombinedOutput(); err != nil {
				t.Fatalf("%s: %v: %s", cmd, err, out)
			}
		})
		damaged := false
		for got, err := range w.Actual(t.Context()) {
			damaged = damaged || err != nil || len(got.Damage) > 0
		}
		if !damaged && !strings.Contains(cmd, "services4") {
			t.Errorf("%s: nothing is found", cmd)
		}
		w.Put(t, updateOf{Key: f.Key, Old: &f, New: &f, Repair: true})
		w.check(w.planeIn)
		expect.Len(t, w.asks(w.Client, f.Key, 80, 2), 1, "%s", cmd)
	}
}

// Another program deletes content of the table, or all of it, while no agent runs. The next one adds
// it again, also for the host's own addresses: no service outside the table looks foreign.
func TestRestartWithoutContent(t *testing.T) {
	w := newWorld(t)
	f := frontend(w.Director.Addr4.String(), 30080, vip.TCP, w.servers("tcp", false, 0)[0])
	f.Kind, f.Masquerade = vip.OnHost, vip.MasqueradeOwn
	w.set(f)
	o := originOf(f.Key)
	flush := fmt.Sprintf("nft flush set inet ironvip_nft hairpin4 && nft flush map inet ironvip_nft services4_%s && nft flush map inet ironvip_nft slots4_%s", o, o)
	for _, cmd := range []string{flush, flush + " && nft flush map inet ironvip_nft shards", "nft delete table inet ironvip_nft"} {
		w.Director.Do(func() {
			if out, err := exec.Command("sh", "-c", cmd).CombinedOutput(); err != nil {
				t.Fatalf("%s: %v: %s", cmd, err, out)
			}
		})
		again := newPlane(t, w.Director)
		for o, err := range again.Actual(t.Context()) {
			if err != nil || o.Value.Key == f.Key {
				t.Errorf("%s: read %+v, %v", cmd, o, err)
			}
		}
		again.Put(t, updateOf{Key: f.Key, New: &f})
		w.check(again)
		got := w.asks(w.Backends[0], f.Key, 30080, 2)
		expect.Equal(t, got["backend1"], 2, "%s: a backend as its own client: %v", cmd, got)
	}
}

// A restarted Target reads everything as it was, and writes nothing.
func TestRestartWritesNothing(t *testing.T) {
	w := newWorld(t)
	for i := range 40 {
		f := frontend(fmt.Sprintf("10.96.0.%d", 1+i%7), uint16(80+i), vip.TCP)
		for b := range i % 12 {
			f.Backends = append(f.Backends, vip.Endpoint{Addr: backendAt(b), Weight: uint16(b % 4)})
		}
		f.Scheduler = Schedulers()[i%len(Schedulers())]
		f.Affinity = time.Duration(i%3) * time.Minute
		f.Masquerade = vip.Masquerade(1 + i%4)
		w.Put(t, updateOf{Key: f.Key, New: &f})
		w.have[f.Key] = &f
	}
	again := newPlane(t, w.Director)
	w.check(again)
	expect.Equal(t, again.writes(), 0, "writes")
}

// One change costs at most six messages, whatever else there is.
func TestCostOfAChange(t *testing.T) {
	w := newWorld(t)
	var batch []updateOf
	for i := range 500 {
		f := frontend(fmt.Sprintf("10.96.%d.%d", 1+i/200, i%200), 80, vip.TCP)
		for b := range 10 {
			f.Backends = append(f.Backends, vip.Endpoint{Addr: backendAt(b), Weight: 1})
		}
		batch = append(batch, updateOf{Key: f.Key, New: &f})
	}
	w.Put(t, batch...)
	one := *batch[7].New
	w.traffic(one.Key, one.Backends)
	changes := []struct {
		name   string
		change func(f *vip.Frontend)
		most   uint64
	}{
		{"the first removal, which is of a new class", func(f *vip.Frontend) { f.Backends = f.Backends[1:] }, 20},
		{"an addition", func(f *vip.Frontend) { f.Backends = one.Backends }, 6},
		{"a removal", func(f *vip.Frontend) { f.Backends = append(f.Backends[:3:3], f.Backends[4:]...) }, 6},
		{"nothing", func(f *vip.Frontend) {}, 0},
		{"limits, which are a new class", func(f *vip.Frontend) { f.MaxConnectionsPerSource = 7 }, 20},
		{"no limits", func(f *vip.Frontend) { f.MaxConnectionsPerSource = 0 }, 6},
		{"limits again", func(f *vip.Frontend) { f.MaxConnectionsPerSource = 7 }, 2},
	}
	now := one
	for _, c := range changes {
		next := now
		c.change(&next)
		before := w.Stats().NFTMessages
		w.Put(t, updateOf{Key: next.Key, Old: &now, New: &next})
		n := w.Stats().NFTMessages - before
		expect.AtMost(t, n, c.most, "%s cost %d messages, want at most", c.name, n)
		now = next
	}
}

// A frontend that nobody has used has no connections.
func TestConnectionsOfNobody(t *testing.T) {
	w := newWorld(t)
	n, err := w.Connections(context.Background(), frontend("10.96.0.1", 80, vip.TCP).Key)
	if err != nil || len(n) != 0 {
		t.Errorf("%v, %v", n, err)
	}
}
