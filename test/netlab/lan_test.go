//go:build linux

package netlab_test

import (
	"net/netip"
	"testing"

	"github.com/ironvip/ironvip/test/netlab"
)

// A node behind a router reaches the nodes of the segment with its own address, in both families.
func TestBehindARouter(t *testing.T) {
	l := netlab.NewLAN(t, "server", "router")
	server := l.Nodes[0]
	client := l.Behind(l.Nodes[1], "client")
	for _, a := range []struct{ server, client netip.Addr }{{server.Addr4, client.Addr4}, {server.Addr6, client.Addr6}} {
		at := server.Serve("tcp", netip.AddrPortFrom(a.server, 0))
		if got, err := client.Ask("tcp", at); err != nil || got.Name != "server" || got.Client.Addr() != a.client {
			t.Errorf("%+v, %v", got, err)
		}
	}
}
