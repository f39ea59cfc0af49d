//go:build system && !vm

package program

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// placed returns a backend of a service with its location.
func (b *backend) placed(node, zone, state string) string {
	return fmt.Sprintf(`{ address = "127.0.0.1", port = %d, node = %q, zone = %q, state = %q }`, b.port, node, zone, state)
}

func serviceOf(name, more string, backends ...string) string {
	return fmt.Sprintf("[[service]]\nname = %q\nports = [ { port = 8080 } ]\n%s\nbackends = [ %s ]\n", name, more, strings.Join(backends, ", "))
}

// onlyBy waits until one backend answers each of several connections.
func (h *host) onlyBy(addr, name string) {
	h.t.Helper()
	h.eventually(addr+" is answered by "+name+" alone", func() error {
		for range 4 {
			if got, err := who(addr); err != nil || got != name {
				return fmt.Errorf("answered by %q, %v", got, err)
			}
		}
		return nil
	})
}

func (h *host) refuses(addr string) {
	h.t.Helper()
	h.eventually(addr+" refuses", func() error {
		if got, err := who(addr); err == nil {
			return fmt.Errorf("answered by %q", got)
		}
		return nil
	})
}

// health waits until the health port answers with a status and a count.
func (h *host) health(port, status, ready int) {
	h.t.Helper()
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	h.eventually(fmt.Sprintf("the health port says %d with %d", status, ready), func() error {
		resp, err := client.Get(fmt.Sprintf("http://127.0.0.1:%d/healthz", port))
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		var answer struct {
			Service             struct{ Namespace, Name string }
			LocalEndpoints      int
			ServiceProxyHealthy bool
		}
		if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
			return err
		}
		if resp.StatusCode != status || answer.LocalEndpoints != ready || answer.Service.Name != "web" || !answer.ServiceProxyHealthy ||
			resp.Header.Get("X-Load-Balancing-Endpoint-Weight") != fmt.Sprint(ready) {
			return fmt.Errorf("%s %+v", resp.Status, answer)
		}
		return nil
	})
}

// onNode makes the agent a node in a zone, with node ports on the loopback and one port to assign.
func (h *host) onNode(zone string) (port int) {
	port = h.freeNodePort()
	h.config(fmt.Sprintf("[ipam]\nnode_ports = \"%d-%d\"", port, port))
	h.edit("ironvip.toml", `name = "lb1"`, fmt.Sprintf("name = \"lb1\"\nzone = %q", zone))
	h.edit("ironvip.toml", "[dataplane]", "[dataplane]\nnode_port_addresses = [\"127.0.0.1\"]")
	return port
}

// freeNodePort returns a port below those that the kernel gives to clients, without a listener,
// that no other test of this run gets.
func (h *host) freeNodePort() int {
	h.t.Helper()
	var own, third int
	fmt.Sscanf(h.pool, "127.%d.%d", &third, &own)
	for i := range 20 {
		port := 30000 + (third*97+own*20+i)%2700
		if l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			l.Close()
			return port
		}
	}
	h.t.Fatal("no free port")
	return 0
}

// A service with the local policy is served only by this node's backends, and its health port
// reports their number.
func TestExternalTrafficLocal(t *testing.T) {
	parallel(t)
	h := newHost(t)
	port := h.onNode("za")
	a, b := newBackend(t, "a"), newBackend(t, "b")
	local := fmt.Sprintf("external_traffic = \"local\"\ninternal_traffic = \"local\"\nhealth_check_node_port = %d\ndrain_timeout = \"1s\"", port)
	set := func(aNode, aState string) {
		h.write("services.d/web.toml", serviceOf("web", local, a.placed(aNode, "", aState), b.placed("lb2", "", "ready")))
	}
	set("lb1", "ready")
	h.start()
	web := h.vip("web") + ":8080"
	h.onlyBy(web, "a")
	h.health(port, 200, 1)
	h.explains("web", "sends clients to 1 of 2 backends: external_traffic is local.")
	h.explains("web", fmt.Sprintf("Health checks of this node are answered on port %d: 1 ready backend here.", port))

	h.ok("backend", "drain", "web", a.addr)
	h.refuses(web)
	h.health(port, 503, 0)
	h.explains("web", "no backend on this node takes new connections, and external_traffic is local.")
	h.ok("backend", "ready", "web", a.addr)
	h.onlyBy(web, "a")
	h.health(port, 200, 1)

	// The backends move to another node: its backends are not used.
	set("lb2", "ready")
	h.refuses(web)
	h.health(port, 503, 0)
	h.explains("web", "refuses clients: no backend on this node, and external_traffic is local.")

	// A terminating backend on this node serves clients, and doesn't count on the health port.
	set("lb1", "terminating")
	h.onlyBy(web, "a")
	h.health(port, 503, 0)
	h.explains("web", "is terminating and takes new connections because no other does.")

	// Without local, there is no health port.
	h.write("services.d/web.toml", serviceOf("web", "", a.placed("lb1", "", "ready"), b.placed("lb2", "", "ready")))
	h.serves(web, "a", "b")
	h.eventually("the health port is closed", func() error {
		c, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", port), time.Second)
		if err != nil {
			return nil
		}
		c.Close()
		return errors.New("it still answers")
	})
}

// Terminating backends serve while none is ready, under any policy.
func TestTerminatingBackendsStandIn(t *testing.T) {
	parallel(t)
	h := newHost(t)
	a, b := newBackend(t, "a"), newBackend(t, "b")
	h.write("services.d/web.toml", serviceOf("web", "", a.placed("", "", "terminating"), b.placed("", "", "ready")))
	h.start()
	web := h.vip("web") + ":8080"
	h.onlyBy(web, "b")
	open := dial(t, web, "b")
	h.ok("backend", "drain", "web", b.addr)
	h.onlyBy(web, "a")
	open.lives("while its backend drains")
	h.ok("backend", "ready", "web", b.addr)
	h.onlyBy(web, "b")
}

// Clients stay in this node's zone for as long as a backend is ready there.
func TestSameZone(t *testing.T) {
	parallel(t)
	h := newHost(t)
	h.onNode("za")
	a, b := newBackend(t, "a"), newBackend(t, "b")
	h.write("services.d/web.toml", serviceOf("web", `traffic_distribution = "same-zone"`, a.placed("", "za", "ready"), b.placed("", "zb", "ready")))
	h.start()
	web := h.vip("web") + ":8080"
	h.onlyBy(web, "a")
	h.explains("web", "sends clients to 1 of 2 backends: traffic_distribution is same-zone.")
	h.ok("backend", "drain", "web", a.addr)
	h.onlyBy(web, "b")
	h.ok("backend", "ready", "web", a.addr)
	h.onlyBy(web, "a")
	h.write("services.d/web.toml", serviceOf("web", `traffic_distribution = "same-zone"`, a.placed("", "za", "ready"), b.placed("", "", "ready")))
	h.serves(web, "a", "b") // a backend without a zone may be the nearest
}

// Another program's listener on the health port is reported and left unchanged.
func TestHealthPortTaken(t *testing.T) {
	parallel(t)
	h := newHost(t)
	port := h.onNode("")
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	a := newBackend(t, "a")
	h.write("services.d/web.toml", serviceOf("web", "external_traffic = \"local\"\ninternal_traffic = \"local\"\nhealth_check_node_port = \"auto\"", a.toml()))
	h.start()
	h.onlyBy(h.vip("web")+":8080", "a")
	h.eventually("status reports it", func() error {
		if r := h.cli("status"); r.code != 3 || !strings.Contains(r.stdout, "health ports") || !strings.Contains(r.stdout, "address already in use") {
			return fmt.Errorf("exit %d\n%s", r.code, r.stdout)
		}
		return nil
	})
	l.Close()
	h.health(port, 200, 1)
	if r := h.cli("status"); r.code != 0 {
		t.Errorf("status ends with %d\n%s", r.code, r.stdout)
	}
}
