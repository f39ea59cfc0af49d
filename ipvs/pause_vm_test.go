//go:build linux && vm

package ipvs

import (
	"net"
	"net/netip"
	"sync"
	"testing"

	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/vip"
)

// While a service's scheduler changes repeatedly, no client is refused. The kernel has no scheduler
// in between, so new connections wait.
func TestSchedulerChangesRefuseNobody(t *testing.T) {
	lab := netlab.New(t)
	p := newPlane(t, lab.Director)
	a := lab.Backends[0].Serve("tcp", netip.AddrPortFrom(lab.Backends[0].Addr4, 0))
	b := lab.Backends[1].Serve("tcp", netip.AddrPortFrom(lab.Backends[1].Addr4, 0))
	f := frontend("10.96.0.1:80", vip.TCP, a, b)
	p.Create(t, f)

	stop := make(chan struct{})
	var clients sync.WaitGroup
	asked, refused := 0, []error{}
	clients.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			asked++
			if _, err := lab.Client.Ask("tcp", f.Key.AddrPort()); err != nil {
				refused = append(refused, err)
			}
		}
	})
	before := p.Stats()
	const changes = 60
	for i := range changes {
		g := with(f, func(f *vip.Frontend) {
			f.Scheduler = []vip.Scheduler{vip.RoundRobin, vip.LeastConnection, vip.MaglevHash, vip.WeightedRoundRobin}[i%4]
		})
		p.change(t, f, g)
		f = g
	}
	close(stop)
	clients.Wait()
	if len(refused) > 0 {
		t.Errorf("%d of %d clients were refused, the first: %v", len(refused), asked, refused[0])
	}
	after := p.Stats()
	if ipvs, nft := after.WritesSent-before.WritesSent, after.NFTMessages-before.NFTMessages; ipvs != changes || nft != 3*changes {
		t.Errorf("%d changes of a scheduler cost %d ipvs messages and %d of nftables", changes, ipvs, nft)
	}
	p.Wants(t, f)
}

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
