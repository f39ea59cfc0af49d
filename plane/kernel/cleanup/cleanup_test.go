package cleanup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/plane/kernel/conntrack"
	"github.com/ironvip/ironvip/plane/kernel/host"
	"github.com/ironvip/ironvip/plane/kernel/usage"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

// kernel is connection tracking.
type kernel struct {
	entries map[string]conntrack.Entry
	sweeps  []conntrack.Flow // what the kernel filtered by
	err     error
}

func (k *kernel) Sweep(_ context.Context, family vip.Family, match conntrack.Flow, end func(*conntrack.Entry) bool) error {
	k.sweeps = append(k.sweeps, match)
	if k.err != nil {
		return k.err
	}
	maps.DeleteFunc(k.entries, func(_ string, e conntrack.Entry) bool {
		return (family == 0 || vip.FamilyOf(e.Frontend.Addr) == family && e.Frontend.Protocol == match.Frontend.Protocol) && end(&e)
	})
	return nil
}

func at(place string, p vip.Protocol) vip.FrontendKey {
	a := netip.MustParseAddrPort(place)
	return vip.FrontendKey{Addr: a.Addr(), Port: a.Port(), Protocol: p}
}

func backend(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

// bench has the outdated connections of an nft dataplane, whose addresses are in 10.96.0.0/16.
type bench struct {
	Outdated
	kernel
	has      *usage.Records
	findings host.Findings
}

func newBench() *bench {
	b := &bench{kernel: kernel{entries: map[string]conntrack.Entry{}}, has: usage.NewRecords(usage.PodSet(nil))}
	b.Outdated = Outdated{Table: &b.kernel, Protocols: conntrack.Protocols, Translated: true, Findings: &b.findings,
		Owns: func(a netip.Addr) bool { return netip.MustParsePrefix("10.96.0.0/16").Contains(a) },
		Log:  slog.New(slog.DiscardHandler)}
	return b
}

func (b *bench) serve(k vip.FrontendKey, backends ...string) {
	f := &vip.Frontend{Key: k, Kind: vip.OnVIP}
	for _, s := range backends {
		f.Backends = append(f.Backends, vip.Endpoint{Addr: backend(s), Weight: 1})
	}
	b.has.Set(k, f)
}

// connect adds an entry.
func (b *bench) connect(name string, k vip.FrontendKey, to string, translated bool) {
	b.entries[name] = conntrack.Entry{Flow: conntrack.Flow{Frontend: k, Backend: backend(to)}, Translated: translated}
}

func (b *bench) cleanTo(t *testing.T, left ...string) {
	t.Helper()
	must.Succeed(t, b.Clean(t.Context(), b.has))
	expect.SameList(t, slices.Sorted(maps.Keys(b.entries)), left, "left")
	expect.False(t, b.Unclean(), "unclean after Clean")
}

// Connections with removed backends end; others stay, also those with a backend that is back, or that the frontend for the
// other clients still has.
func TestClean(t *testing.T) {
	b := newBench()
	tcp, udp := at("10.96.0.1:80", vip.TCP), at("10.96.0.1:53", vip.UDP)
	internal := func(k vip.FrontendKey) vip.FrontendKey { k.Audience = vip.InternalClients; return k }
	ranged := at("10.96.0.2:8000", vip.TCP)
	ranged.LastPort = 8100
	for _, k := range []vip.FrontendKey{tcp, udp} {
		b.serve(k, "10.1.0.1:80")
		b.serve(internal(k), "10.1.0.2:80")
		for i := 1; i <= 4; i++ {
			b.connect(fmt.Sprintf("%s-%d", k.Protocol, i), k, fmt.Sprintf("10.1.0.%d:80", i), true)
			if i < 4 {
				b.Add(k, backend(fmt.Sprintf("10.1.0.%d:80", i)))
			}
		}
	}
	b.serve(ranged, "10.1.0.1:0")
	b.Add(ranged, backend("10.1.0.2:0"))
	b.connect("range-1", at("10.96.0.2:8001", vip.TCP), "10.1.0.1:8001", true)
	b.connect("range-2", at("10.96.0.2:8001", vip.TCP), "10.1.0.2:8001", true)
	b.connect("range-3", at("10.96.0.2:9000", vip.TCP), "10.1.0.2:9000", true)
	// A range is replaced by a wider one with the same backend.
	narrow, wide := at("10.96.0.3:7000", vip.TCP), at("10.96.0.3:7000", vip.TCP)
	narrow.LastPort, wide.LastPort = 7100, 7200
	b.serve(wide, "10.1.0.1:0")
	b.Add(narrow, backend("10.1.0.1:0"))
	b.connect("wider", at("10.96.0.3:7050", vip.TCP), "10.1.0.1:7050", true)
	// 10.1.0.1 is back, 10.1.0.2 is the internal clients', 10.1.0.3 has left, 10.1.0.4 isn't known to have left.
	b.cleanTo(t, "range-1", "range-3", "tcp-1", "tcp-2", "tcp-4", "udp-1", "udp-4", "wider")
	expect.Equal(t, len(b.sweeps), 2, "dumps")
}

// The clients of UDP who came before there was a backend begin anew. Clients who came later stay.
func TestCleanOfAFirstBackend(t *testing.T) {
	b := newBench()
	k := at("10.96.0.1:53", vip.UDP)
	b.connect("early", k, "10.96.0.1:53", false)
	b.serve(k, "10.1.0.1:53")
	b.Add(k, netip.AddrPort{})
	b.connect("late", k, "10.1.0.1:53", true)
	b.connect("other", at("10.96.0.1:54", vip.UDP), "10.96.0.1:54", false)
	b.cleanTo(t, "late", "other")
}

// Clients of IPVS that nothing masqueraded begin anew: those of UDP, and those that still try to connect.
func TestCleanOfUnmasqueraded(t *testing.T) {
	b := newBench()
	b.Protocols, b.Translated = []vip.Protocol{vip.UDP}, false
	for _, p := range conntrack.Protocols {
		k := at("10.96.0.1:53", p)
		b.serve(k, "10.1.0.1:53")
		for name, masqueraded := range map[string]bool{"masqueraded": true, "not": false} {
			b.connect(p.String()+"-"+name, k, "10.1.0.1:53", false)
			e := b.entries[p.String()+"-"+name]
			e.Masqueraded = masqueraded
			b.entries[p.String()+"-"+name] = e
		}
		b.connect(p.String()+"-other", at("10.96.0.1:54", p), "10.1.0.1:53", false)
		b.connect(p.String()+"-here", at("10.96.0.1:54", p), "10.96.0.1:54", false)
		b.AddUnmasqueraded(k)
	}
	b.cleanTo(t, "sctp-here", "sctp-masqueraded", "sctp-other", "tcp-here", "tcp-masqueraded", "tcp-other", "udp-here", "udp-masqueraded", "udp-other")
	expect.Equal(t, len(b.sweeps), 3, "dumps")
}

// Connections that an earlier process left end: with backends that frontends lack, and of frontends that are no more.
func TestSuspect(t *testing.T) {
	b := newBench()
	node := at("192.0.2.1:30080", vip.TCP)
	for _, k := range []vip.FrontendKey{at("10.96.0.1:80", vip.TCP), node} {
		b.serve(k, "10.1.0.1:80")
	}
	b.connect("good", at("10.96.0.1:80", vip.TCP), "10.1.0.1:80", true)
	b.connect("left", at("10.96.0.1:80", vip.TCP), "10.1.0.2:80", true)
	b.connect("left-node-port", node, "10.1.0.2:80", true)
	b.connect("removed", at("10.96.0.1:81", vip.TCP), "10.1.0.1:80", true)
	b.connect("foreign", at("192.0.2.1:81", vip.TCP), "10.1.0.1:80", true)
	b.connect("ipvs", at("10.96.0.1:80", vip.TCP), "10.1.0.3:80", false)
	b.connect("here", at("10.96.0.1:22", vip.TCP), "10.96.0.1:22", false)
	b.connect("ping", at("10.96.0.1:0", unix.IPPROTO_ICMP), "10.1.0.9:0", true)
	b.Add(at("10.96.0.1:82", vip.UDP), backend("10.1.0.1:80"))
	b.connect("removed-udp", at("10.96.0.1:82", vip.UDP), "10.1.0.1:80", true)
	b.Suspect()
	b.cleanTo(t, "foreign", "good", "here", "ipvs", "ping")
	expect.Equal(t, len(b.sweeps), 1, "dumps")
}

// After an error nothing is forgotten. A kernel that can't list entries is a finding until it can.
func TestCleanFails(t *testing.T) {
	b := newBench()
	k := at("10.96.0.1:80", vip.TCP)
	b.serve(k)
	b.connect("left", k, "10.1.0.1:80", true)
	b.Add(k, backend("10.1.0.1:80"))
	b.err = unix.ENOBUFS
	if err := b.Clean(t.Context(), b.has); !errors.Is(err, unix.ENOBUFS) || !b.Unclean() {
		t.Errorf("%v, unclean: %v", err, b.Unclean())
	}
	b.err = unix.EOPNOTSUPP
	b.cleanTo(t, "left")
	if f, _ := b.findings.Get(conntrack.NoNetlink.Name); f != conntrack.NoNetlink {
		t.Errorf("finding %+v", f)
	}
	b.err = nil
	b.Add(k, backend("10.1.0.1:80"))
	b.cleanTo(t)
	if f, _ := b.findings.Get(conntrack.NoNetlink.Name); !f.OK {
		t.Errorf("finding %+v", f)
	}
}

// The memory for removed backends is bounded by the number of frontends, and one dump finds their connections.
func TestManyRemovedBackends(t *testing.T) {
	b := newBench()
	const frontends, backends = 100, 1000
	addr := func(i int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), 80)
	}
	for i := range frontends {
		k := at("10.96.0.1:80", vip.TCP)
		k.Port += uint16(i)
		b.serve(k, "10.2.0.1:80")
		b.connect(fmt.Sprintf("good-%02d", i), k, "10.2.0.1:80", true)
		b.connect(fmt.Sprintf("left-%02d", i), k, addr(i).String(), true)
		b.connect(fmt.Sprintf("here-%02d", i), k, k.AddrPort().String(), false)
		for j := range backends {
			b.Add(k, addr(j))
		}
		must.AtMost(t, len(b.flows), maxFlows, "flows are remembered")
	}
	expect.Equal(t, len(b.flows), frontends, "remembered flows")
	if err := b.Clean(t.Context(), b.has); err != nil || len(b.sweeps) != 1 || len(b.entries) != 2*frontends {
		t.Errorf("%v, %d dumps, %d entries left", err, len(b.sweeps), len(b.entries))
	}
	if b.Add(at("10.96.0.1:80", vip.TCP), addr(1)); b.coarse {
		t.Error("still coarse")
	}
}
