package agent

import (
	"net/netip"
	"testing"
	"time"

	"github.com/ironvip/ironvip/internal/hostnet"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/bubble"
)

func TestPlaneHealth(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var s reconcile.Stats
		h := newPlaneHealth(func() reconcile.Stats { return s })
		expect := func(when string, want bool) {
			t.Helper()
			if got := h.ok(); got != want {
				t.Errorf("%s: %t", when, got)
			}
		}
		turn := func() { s.LastRound = time.Now() }
		turn()
		expect("before the first full reconcile", false)
		s.Synced = true
		expect("synced", true)
		time.Sleep(healthGrace)
		expect("the loop hangs", false)
		turn()
		expect("it goes round again", true)

		s.TargetError = "no such module"
		expect("the dataplane is out of reach", true)
		time.Sleep(healthGrace - time.Second)
		turn()
		expect("for a little while", true)
		time.Sleep(time.Second)
		expect("for too long", false)
		s.TargetError = ""
		expect("back", true)
		s.TargetError = "again"
		expect("a new fault has time of its own", true)
	})
}

func TestOwnAddress(t *testing.T) {
	host := table.New(table.NewClock(time.Now()), hostnet.KeyOf, hostnet.Same)
	own := ownAddress(host)
	addr := netip.MustParseAddr("10.9.0.1")
	if own(addr) || !own(netip.MustParseAddr("127.0.0.9")) || !own(netip.IPv6Loopback()) {
		t.Error("without knowing the host's addresses")
	}
	host.Set(hostnet.Snapshot{Addrs: []hostnet.Addr{{Prefix: netip.MustParsePrefix("10.9.0.1/24")}}})
	if !own(addr) || own(netip.MustParseAddr("10.9.0.2")) {
		t.Error("with them")
	}
}
