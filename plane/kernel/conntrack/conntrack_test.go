package conntrack

import (
	"bytes"
	"net/netip"
	"runtime"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/ironvip/ironvip/internal/netlink"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/vip"
)

// entry is a connection tracking entry as the kernel reports it.
func entry(dst, reply netip.AddrPort) []byte {
	b := []byte{unix.AF_INET, 0, 0, 0}
	b = appendTuple(b, ctaTupleOrig, unix.IPPROTO_UDP, netip.AddrPort{}, dst)
	b = appendTuple(b, ctaTupleReply, unix.IPPROTO_UDP, reply, netip.AddrPort{})
	return netlink.AppendAttr(netlink.AppendAttr(b, ctaID, 1, 2, 3, 4), ctaZone, 0, 7)
}

// The attributes that identify an entry to the kernel for its deletion contain the entry's
// frontend, so that no other entry is deleted.
func FuzzDecode(f *testing.F) {
	four, six := entry(netip.MustParseAddrPort("10.96.0.1:53"), netip.MustParseAddrPort("10.1.0.1:53")), entry(netip.MustParseAddrPort("[fd96::1]:53"), netip.MustParseAddrPort("[fd01::1]:53"))
	f.Add(four)
	f.Add(six)
	f.Add(four[:40])
	f.Add(four[4+len(four)/2:])
	f.Add(append(bytes.Clone(four), six[4:]...))
	f.Fuzz(func(t *testing.T, b []byte) {
		var x, again Entry
		if err := x.Decode(b); err != nil || !x.Frontend.Addr.IsValid() {
			return // an entry without a frontend is not deleted
		}
		id, err := identity(b)
		if err == nil {
			err = again.Decode(append([]byte{0, 0, 0, 0}, id...))
		}
		if err != nil || again.Frontend != x.Frontend {
			t.Errorf("an entry of %s is named as one of %s, %v", x.Frontend, again.Frontend, err)
		}
	})
}

func TestDecode(t *testing.T) {
	for _, c := range []struct{ dst, backend string }{{"10.96.0.1:53", "10.1.0.1:5353"}, {"[fd96::1]:53", "[fd01::1]:5353"}} {
		data := entry(netip.MustParseAddrPort(c.dst), netip.MustParseAddrPort(c.backend))
		var x Entry
		err := x.Decode(data)
		id, _ := identity(data)
		want := Flow{Frontend: vip.FrontendKey{Addr: netip.MustParseAddrPort(c.dst).Addr(), Port: 53, Protocol: vip.UDP}, Backend: netip.MustParseAddrPort(c.backend)}
		if err != nil || x.Flow != want {
			t.Errorf("%+v, %v, want %+v", x.Flow, err, want)
		}
		if !bytes.Contains(id, []byte{1, 2, 3, 4}) || !bytes.Contains(id, []byte{0, 7}) {
			t.Errorf("%s: the entry's number or zone is lost: %x", c.dst, id)
		}
	}
}

func TestDecodeStatusAndState(t *testing.T) {
	opening := map[byte]bool{}
	for state := byte(1); state < 9; state++ {
		data := []byte{unix.AF_INET, 0, 0, 0}
		data = appendTuple(data, ctaTupleOrig, unix.IPPROTO_TCP, netip.AddrPort{}, netip.MustParseAddrPort("10.96.0.1:80"))
		data, info := netlink.BeginNest(data, ctaProtoInfo)
		data, tcp := netlink.BeginNest(data, ctaProtoInfoTCP)
		data = netlink.EndNest(netlink.EndNest(netlink.AppendAttr(data, ctaProtoInfoState, state), tcp), info)
		var x Entry
		must.Succeed(t, x.Decode(netlink.AppendAttr(data, ctaStatus, 0, 0, 0, state<<4)))
		if x.Masqueraded != (state&1 != 0) || x.Translated != (state&2 != 0) {
			t.Errorf("status %#x: %+v", state<<4, x)
		}
		if x.Opening() {
			opening[state] = true
		}
	}
	if len(opening) != 2 || !opening[1] || !opening[2] {
		t.Errorf("opening connections have the states %v", opening)
	}
}

// The index finds the same flows as a search of all flows, and the kernel's filter selects all of
// them.
func TestFlowsAgainstEach(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		addr := func(label string) netip.Addr {
			return netip.AddrFrom4([4]byte{10, 0, 0, rapid.ByteRange(1, 2).Draw(t, label)})
		}
		port := func(label string) uint16 { return rapid.Uint16Range(1, 6).Draw(t, label) }
		all := Flows{}
		for range rapid.IntRange(1, 5).Draw(t, "flows") {
			k := vip.FrontendKey{Addr: addr("frontend"), Port: port("first"), Protocol: vip.UDP, Audience: rapid.SampledFrom([]vip.Audience{0, 1}).Draw(t, "audience")}
			if last := port("last"); last > k.Port {
				k.LastPort = last
			}
			var b netip.AddrPort
			switch rapid.IntRange(0, 2).Draw(t, "backend") {
			case 1:
				b = netip.AddrPortFrom(addr("backend"), port("backend port"))
			case 2:
				if k.Ranged() {
					b = netip.AddrPortFrom(addr("backend"), 0)
				}
			}
			all.Add(k, b)
		}
		x := Flow{
			Frontend: vip.FrontendKey{Addr: addr("client's frontend"), Port: port("client's port"), Protocol: vip.UDP},
			Backend:  netip.AddrPortFrom(addr("client's backend"), port("client's backend port")),
		}
		want := false
		for f := range all {
			k, b := f.Frontend, f.Backend
			want = want || k.Addr == x.Frontend.Addr && k.Port <= x.Frontend.Port && x.Frontend.Port <= max(k.Port, k.LastPort) &&
				(!b.IsValid() || b.Addr() == x.Backend.Addr() && (b.Port() == 0 || b.Port() == x.Backend.Port()))
		}
		backend, whole := all.Index().Has(x)
		must.Equal(t, backend || whole, want, "%v among %v: %v, %v", x, all, backend, whole)
		if !want {
			return
		}
		c, any := all.Common(vip.IPv4, vip.UDP)
		if !any || c.Frontend.Addr.IsValid() && c.Frontend.Addr != x.Frontend.Addr || c.Frontend.Port != 0 && c.Frontend.Port != x.Frontend.Port ||
			c.Backend.Addr().IsValid() && c.Backend.Addr() != x.Backend.Addr() || c.Backend.Port() != 0 && c.Backend.Port() != x.Backend.Port() {
			t.Fatalf("the kernel is asked for %v, which %v is not", c, x)
		}
	})
}

var (
	busy  = vip.FrontendKey{Addr: netip.MustParseAddr("10.96.0.1"), Port: 53, Protocol: vip.UDP}
	quiet = vip.FrontendKey{Addr: netip.MustParseAddr("10.96.0.2"), Port: 53, Protocol: vip.UDP}
)

// fill adds n entries of clients of a frontend with one backend.
func fill(t testing.TB, at vip.FrontendKey, backend netip.AddrPort, n int) {
	t.Helper()
	c := must.Get(netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Counters{}))(t)
	defer c.Close()
	err := c.Write(t.Context(), n, func(b []byte, i int) []byte {
		client := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 200, byte(i >> 16), byte(i >> 8)}), 1024+uint16(i&255))
		b = beginConntrack(b, ctNew, unix.NLM_F_CREATE|unix.NLM_F_EXCL, vip.IPv4)
		b = appendTuple(b, ctaTupleOrig, unix.IPPROTO_UDP, client, at.AddrPort())
		b = appendTuple(b, ctaTupleReply, unix.IPPROTO_UDP, backend, client)
		return netlink.AppendAttr32BE(b, ctaTimeout, 3600)
	}, func(i int, err error) {
		must.Succeed(t, err, "entry %d", i)
	})
	must.Succeed(t, err)
}

// The clients of other frontends cost the agent nothing when it counts or deletes those of one: the kernel sends only these.
func TestClientsOfOthersAreNotRead(t *testing.T) {
	a, b := netip.MustParseAddrPort("10.1.0.1:53"), netip.MustParseAddrPort("10.1.0.2:53")
	costs := map[int][2]uint64{}
	for _, others := range []int{1, 20000} {
		netlab.New(t).Director.Do(func() {
			fill(t, busy, a, others)
			fill(t, quiet, b, 10)
			var dumps, deleted atomic.Uint64
			table := Table{Dumps: &dumps, Deleted: &deleted}
			allocated := func(f func()) uint64 {
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				f()
				runtime.ReadMemStats(&after)
				return after.TotalAlloc - before.TotalAlloc
			}
			n := 0
			counting := allocated(func() {
				must.Succeed(t, table.Entries(t.Context(), quiet, func(*Entry) { n++ }))
			})
			deleting := allocated(func() {
				must.Succeed(t, table.Sweep(t.Context(), vip.IPv4, Flow{Frontend: quiet, Backend: b}, func(*Entry) bool { return true }))
			})
			if n != 10 || deleted.Load() != 10 || dumps.Load() != 2 {
				t.Errorf("%d entries counted, %d deleted, %d dumps", n, deleted.Load(), dumps.Load())
			}
			costs[others] = [2]uint64{counting, deleting}
		})
	}
	for i, what := range []string{"counting", "deleting"} {
		if few, many := costs[1][i], costs[20000][i]; many > 2*few {
			t.Errorf("%s took %d bytes of memory among many, %d among few", what, many, few)
		}
	}
}
