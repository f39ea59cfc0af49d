package ipam_test

import (
	"fmt"
	"testing"

	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/vip"
)

func nodePorts(a vip.Allocation) map[string]uint16 {
	out := map[string]uint16{}
	for k, n := range a.NodePorts {
		out[k.String()] = n
	}
	return out
}

// The numbers of KEP-3668.
func TestOrderOfNodePorts(t *testing.T) {
	for _, c := range []struct {
		set                ipam.PortRange
		count              int
		first, turn, final uint16
	}{
		{ipam.PortRange{}, 2768, 30086, 30000, 30085},                          // the default: a band of 86
		{ipam.PortRange{First: 30000, Last: 32767}, 2768, 30086, 30000, 30085}, // the same
		{ipam.PortRange{First: 20000, Last: 29999}, 10000, 20128, 20000, 20127},
		{ipam.PortRange{First: 30000, Last: 30099}, 100, 30016, 30000, 30015},
		{ipam.PortRange{First: 30000, Last: 30016}, 17, 30016, 30000, 30015},
		{ipam.PortRange{First: 30000, Last: 30015}, 16, 30000, 30001, 30015}, // no band
		{ipam.PortRange{First: 65535, Last: 65535}, 1, 65535, 65535, 65535},
	} {
		t.Run(c.set.String(), func(t *testing.T) {
			cfg := pools(pool("p", "10.0.0.0/8"))
			cfg.NodePorts = c.set
			w := newWorld(t, cfg)
			var services []vip.Service
			for i := range c.count {
				services = append(services, service(fmt.Sprintf("s%d", i), ports(on(udp(53), 0))))
			}
			var got []uint16
			seen := map[uint16]bool{}
			for _, a := range w.assign(services...) {
				n := a.NodePorts[vip.PortKey{Port: 53, Protocol: vip.UDP}]
				if n == 0 || seen[n] {
					t.Fatalf("port %d, problems %v", n, a.Problems)
				}
				seen[n] = true
				got = append(got, n)
			}
			same(t, "first", got[0], c.first)
			same(t, "last", got[len(got)-1], c.final)
			if !seen[c.turn] {
				t.Errorf("%d was never given out", c.turn)
			}
			w.refused(vip.CodePoolFull, "no free udp node port in", "late", ports(on(udp(53), 0)))
			if got := w.assign(service("tcp", ports(on(tcp(53), 0))))[0]; len(got.Problems) > 0 {
				t.Errorf("tcp has ports of its own: %v", got.Problems)
			}
		})
	}
}

func TestNodePorts(t *testing.T) {
	w := newWorld(t, pools(pool("p", "192.0.2.0/24")))
	two := w.assign(service("dns", ports(on(tcp(53), 30053), on(udp(53), 30053))))[0]
	if len(two.Problems) > 0 || nodePorts(two)["53/tcp"] != 30053 || nodePorts(two)["53/udp"] != 30053 {
		t.Errorf("one number for two protocols: %+v", two)
	}
	w.refused(vip.CodePortTaken, `node port 30053/udp is held by port 53/udp of service "dns" of source static since 2026-11-08T12:00:00Z`,
		"other", ports(on(udp(54), 30053)))
	w.refused(vip.CodeOutsidePool, "node port 8080/tcp is outside of the range 30000-32767", "other", ports(on(tcp(80), 8080)))

	web := service("web", ports(on(tcp(80), 0), on(tcp(443), 0)))
	first := nodePorts(w.assign(web)[0])
	if first["80/tcp"] != 30086 || first["443/tcp"] != 30087 {
		t.Errorf("automatic: %v", first)
	}
	// Another number moves it, a taken one doesn't, "auto" keeps what it has.
	web.Ports[0].NodePort = vip.NodePort{Number: 30053}
	got := w.assign(web)[0]
	if len(got.Problems) != 1 || got.Problems[0].Field != "ports[0].node_port" || nodePorts(got)["80/tcp"] != 30086 {
		t.Errorf("asks for a taken one: %+v", got)
	}
	web.Ports[0].NodePort = vip.NodePort{Number: 30001}
	same(t, "asks for a free one", nodePorts(w.assign(web)[0])["80/tcp"], 30001)
	web.Ports[0].NodePort = vip.NodePort{Auto: true}
	same(t, "asks for none in particular", nodePorts(w.assign(web)[0])["80/tcp"], 30001)
	w.restart()
	same(t, "after a restart", nodePorts(w.assign(web)[0])["80/tcp"], 30001)
	// The one it left cools down for it alone.
	w.refused(vip.CodePortTaken, `node port 30086/tcp was released by service "web"`, "other", ports(on(tcp(1), 30086)))
	web.Ports[0].NodePort = vip.NodePort{Number: 30086}
	same(t, "goes back", nodePorts(w.assign(web)[0])["80/tcp"], 30086)
	// A port without a node port gives it up, a port that is no more too.
	web.Ports = []vip.Port{tcp(80)}
	if got := nodePorts(w.assign(web)[0]); len(got) != 0 {
		t.Errorf("off: %v", got)
	}
	for _, n := range []uint16{30086, 30087} {
		if l, _, ok := w.a.Leases().Get(ipam.Resource{NodePort: n, Protocol: vip.TCP}); !ok || l.State != ipam.Cooling {
			t.Errorf("%d: %+v", n, l)
		}
	}
	web.Ports = []vip.Port{on(tcp(80), 0), on(tcp(443), 0)}
	same(t, "on again", nodePorts(w.assign(web)[0])["443/tcp"], 30087)
	w.release("web")
	same(t, "and released", nodePorts(w.assign(web)[0])["443/tcp"], 30087)

	w.configure(ipam.Config{Pools: w.cfg.Pools, NodePorts: ipam.PortRange{First: 31000, Last: 31999}})
	same(t, "held outside of the range", nodePorts(w.assign(web)[0])["443/tcp"], 30087)
	same(t, "a new one", nodePorts(w.assign(service("new", ports(on(tcp(80), 0))))[0])["80/tcp"], 31031)
	w.durable()
}
