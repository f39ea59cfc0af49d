package allocator_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/vip"
)

func nodePorts(a vip.Allocation) map[string]uint16 {
	out := map[string]uint16{}
	for k, n := range a.NodePorts {
		out[k.String()] = n
	}
	return out
}

// The order of automatic node ports, with the numbers of KEP-3668.
func TestOrderOfNodePorts(t *testing.T) {
	for _, c := range []struct {
		set                ipam.PortRange
		count              int
		first, wrap, final uint16
	}{
		{ipam.PortRange{}, 2768, 30086, 30000, 30085},                          // the default, 30000 to 32767: a band of 86
		{ipam.PortRange{First: 20000, Last: 24095}, 4096, 20128, 20000, 20127}, // the largest band
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
			if !seen[c.wrap] {
				t.Errorf("%d was never allocated", c.wrap)
			}
			w.refused(vip.CodePoolFull, "no free udp node port in", "late", ports(on(udp(53), 0)))
			expect.Empty(t, w.assign(service("tcp", ports(on(tcp(53), 0))))[0].Problems, "tcp has ports of its own")
		})
	}
}

// A service's ports with a requested number are planned before those with any number.
func TestRequestedNodePortsFirst(t *testing.T) {
	w := newWorld(t, pools(pool("p", "192.0.2.0/24")))
	got := nodePorts(w.assign(service("web", ports(on(tcp(80), 0), on(tcp(443), 30086), on(tcp(8443), 0)), checked(30087)))[0])
	want := map[string]uint16{"80/tcp": 30088, "443/tcp": 30086, "8443/tcp": 30089, "health-check": 30087}
	expect.True(t, maps.Equal(got, want), "%v, want %v", got, want)
	// So do other services' in one batch.
	batch := w.assign(service("auto", ports(on(tcp(80), 0))), service("asks", checked(30090)))
	same(t, "automatic", nodePorts(batch[0])["80/tcp"], 30091)
	same(t, "requested", nodePorts(batch[1])["health-check"], 30090)
}

func TestNodePortsOfSCTP(t *testing.T) {
	w := newWorld(t, pools(pool("p", "192.0.2.0/24")))
	sctp := func(n uint16) vip.Port { return vip.Port{Protocol: vip.SCTP, Port: n, TargetPort: n} }
	got := nodePorts(w.assign(service("web", ports(on(tcp(80), 30053), on(sctp(80), 30053), on(sctp(81), 0))))[0])
	want := map[string]uint16{"80/tcp": 30053, "80/sctp": 30053, "81/sctp": 30086}
	expect.True(t, maps.Equal(got, want), "%v, want %v", got, want)
	w.refused(vip.CodePortTaken, `node port 30053/sctp is held by port 80/sctp of service "web"`, "other", ports(on(sctp(80), 30053)))
	w.restart()
	same(t, "after a restart", nodePorts(w.assign(service("web", ports(on(sctp(81), 0))))[0])["81/sctp"], 30086)
	w.durable()
}

// A health port is a TCP node port that belongs to the whole service.
func TestHealthPorts(t *testing.T) {
	w := newWorld(t, pools(pool("p", "192.0.2.0/24")))
	health := func(a vip.Allocation) uint16 { return a.NodePorts[vip.HealthPortKey] }
	web := service("web", ports(on(tcp(80), 0)), checked(0))
	preview := w.a.Preview([]vip.Service{web})[0]
	first := w.assign(web)[0]
	if health(first) != 30087 || nodePorts(first)["80/tcp"] != 30086 || health(preview) != 30087 {
		t.Errorf("automatic: %v, in preview %v", nodePorts(first), nodePorts(preview))
	}
	w.refused(vip.CodePortTaken, `node port 30087/tcp is held by the health check of service "web" of source static since 2026-11-08T12:00:00Z`,
		"other", ports(on(tcp(80), 30087)))
	got := w.assign(service("other", checked(30086)))[0]
	if len(got.Problems) != 1 || got.Problems[0].Code != vip.CodePortTaken || got.Problems[0].Field != "health_check_node_port" ||
		!strings.Contains(got.Problems[0].Message, `node port 30086/tcp is held by port 80/tcp of service "web"`) ||
		!strings.Contains(got.Problems[0].Hint, "health_check_node_port auto") || health(got) != 0 {
		t.Errorf("a taken one: %+v", got)
	}
	w.refused(vip.CodeOutsidePool, "node port 8080/tcp is outside of the range 30000-32767", "other", checked(8080))
	udps := w.assign(service("dns", ports(on(udp(53), 30001)), checked(30001)))[0]
	if len(udps.Problems) > 0 || health(udps) != 30001 {
		t.Errorf("beside udp: %+v", udps)
	}

	// It is sticky: a taken number doesn't move it, "auto" keeps what it has.
	web.HealthPort = vip.NodePort{Number: 30001}
	got = w.assign(web)[0]
	if len(got.Problems) != 1 || health(got) != 30087 || !strings.Contains(got.Problems[0].Message, "the service keeps 30087") {
		t.Errorf("asks for a taken one: %+v", got)
	}
	web.HealthPort = vip.NodePort{Number: 30002}
	same(t, "asks for a free one", health(w.assign(web)[0]), 30002)
	web.HealthPort = vip.NodePort{Auto: true}
	same(t, "asks for none in particular", health(w.assign(web)[0]), 30002)
	w.restart()
	same(t, "after a restart", health(w.assign(web)[0]), 30002)

	// It is given up when it is asked for no more, and cools down for the service.
	web.HealthPort = vip.NodePort{}
	expect.Len(t, nodePorts(w.assign(web)[0]), 1, "off")
	w.refused(vip.CodePortTaken, `node port 30002/tcp was released by service "web"`, "other", checked(30002))
	web.HealthPort = vip.NodePort{Auto: true}
	same(t, "on again", health(w.assign(web)[0]), 30002)
	w.release("web")
	if l, _, ok := w.a.Leases().Get(ipam.Resource{NodePort: 30002, Protocol: vip.TCP}); !ok || l.State != ipam.Cooling || l.Holders[0].Port != vip.HealthPortKey {
		t.Errorf("released: %+v", l)
	}
	same(t, "and back", health(w.assign(web)[0]), 30002)
	w.durable()
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
	expect.Empty(t, nodePorts(w.assign(web)[0]), "off")
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
