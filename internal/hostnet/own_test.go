package hostnet

import (
	"net/netip"
	"testing"
	"time"

	"github.com/ironvip/ironvip/internal/table"
)

func TestIsOwn(t *testing.T) {
	host := table.New(table.NewClock(time.Now()), KeyOf, Same)
	own := IsOwn(host)
	addr := netip.MustParseAddr("10.9.0.1")
	if own(addr) || !own(netip.MustParseAddr("127.0.0.9")) || !own(netip.IPv6Loopback()) {
		t.Error("without knowing the host's addresses")
	}
	host.Set(Snapshot{Addrs: []Addr{{Prefix: netip.MustParsePrefix("10.9.0.1/24")}}})
	if !own(addr) || own(netip.MustParseAddr("10.9.0.2")) {
		t.Error("with them")
	}
}
