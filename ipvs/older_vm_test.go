//go:build linux && vm

package ipvs

import (
	"net"
	"net/netip"
	"testing"

	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

// A new client isn't masqueraded to the port of a connection of this host to the same backend, although connection tracking
// has never seen a packet of it. The backend would reset that connection.
func TestNewClientsSpareOlderConnections(t *testing.T) {
	for _, at := range []string{"10.96.0.1:80", "[fd96::1]:80"} {
		w := &town{Lab: newTownLab(t)}
		f := frontend(at, vip.TCP, w.backends(at, 1)...)
		f.Masquerade = vip.MasqueradeAlways
		older := must.Get(w.Director.Dial("tcp", f.Backends[0].Addr))(t)
		w.planeIn = newPlane(t, w.Director) // the connection has sent nothing since its handshake, not even a delayed acknowledgment
		w.Create(t, f)
		port := older.LocalAddr().(*net.TCPAddr).AddrPort().Port()
		c := must.Get(w.Client.DialFromPort("tcp", netip.AddrPortFrom(w.node4or6(w.Client, at), port), f.Key.AddrPort()))(t)
		for range 2 {
			a, err := c.Ask()
			if err != nil || a.Client.Port() == port {
				t.Errorf("%s: a client from the port of an older connection: %v, %v", at, a, err)
			}
			if a, err = older.Ask(); err != nil || a.Client.Port() != port {
				t.Errorf("%s: that connection: %v, %v", at, a, err)
			}
		}
	}
}
