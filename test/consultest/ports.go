package consultest

import (
	"net/netip"
	"testing"

	"github.com/ironvip/ironvip/test/freeport"
)

// ports are the ports of one server, reserved until the end of the test.
type ports struct {
	lock                        uint16 // reserved, not to be used
	http, rpc, serfLAN, serfWAN uint16
}

// reservePorts reserves free ports at a place.
func reservePorts(t testing.TB, in Place, addr netip.Addr) ports {
	t.Helper()
	b := freeport.Reserve(t, in, addr)
	return ports{lock: b[0], http: b[1], rpc: b[2], serfLAN: b[3], serfWAN: b[4]}
}
