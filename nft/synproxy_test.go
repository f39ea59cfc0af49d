package nft

import (
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

// A flood of SYNs leaves nothing in connection tracking, and takes no port of this host. Clients that exist are served, and
// refused at once if there is no backend. Without a flood, nothing is different.
func TestSynProxy(t *testing.T) {
	w := newWorld(t)
	for i, addr := range []string{"10.96.0.1", "fd96::1"} {
		f := frontend(addr, 80, vip.TCP, w.servers("tcp", i > 0, 0)...)
		f.Masquerade, f.SynProxy = vip.MasqueradeAlways, true
		w.set(f)
		w.asks(w.Client, f.Key, 80, 4)
		expect.Equal(t, w.refusals(f.Key), reconcile.Refused{}, "%s: SYNs that the host answered without a flood", f.Key)

		const many = 20_000
		_, stop := w.Client.Flood(t, w.Director, f.Key.AddrPort())
		wait.Until(t, "the host answers SYNs", func() bool {
			b, _, err := w.Breakdown(t.Context(), f.Key)
			must.Succeed(t, err)
			return b.Refused.SYNs > many
		})
		w.asks(w.Client, f.Key, 80, 20)
		w.asks(w.Director, f.Key, 80, 4)
		n := must.Get(strconv.Atoi(strings.TrimSpace(w.run("cat /proc/sys/net/netfilter/nf_conntrack_count"))))(t)
		expect.True(t, n < many/4, "%s: %d connections are remembered", f.Key, n)

		w.check(newPlane(t, w.Director))

		f.Backends = slices.Clone(f.Backends)
		for j := range f.Backends {
			f.Backends[j].Weight = 0
		}
		w.set(f)
		_, err := w.Client.Ask("tcp", f.Key.AddrPort())
		expect.Is(t, err, syscall.ECONNREFUSED, "%s without a backend, in the flood", f.Key)
		stop()
		w.remove(f.Key)
	}
	w.check(w.planeIn)
	if text := w.list(); strings.Contains(text, "synproxy") {
		t.Errorf("parts of syn_proxy remain:\n%s", text)
	}
}
