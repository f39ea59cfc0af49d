package conntrack

import (
	"net/netip"
	"runtime"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/netlink"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/vip"
)

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
		if err != nil {
			t.Fatalf("entry %d: %v", i, err)
		}
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
