package consultest

import (
	"net/netip"
	"testing"

	"github.com/ironvip/ironvip/test/freeport"
)

// ports are those of one server, its own until the end of the test.
type ports struct {
	lock                        uint16 // reserved, and not for use
	http, rpc, serfLAN, serfWAN uint16
}

// reservePorts finds free ports at a place.
func reservePorts(t testing.TB, in Place, addr netip.Addr) ports {
	t.Helper()
	b := freeport.Reserve(t, in, addr)
	return ports{lock: b[0], http: b[1], rpc: b[2], serfLAN: b[3], serfWAN: b[4]}
}
