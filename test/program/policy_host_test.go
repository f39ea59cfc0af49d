//go:build system

package program

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/expect"
)

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

// The settings of this node decide which backends serve: those on the node with the local policy, where the health
// port counts them, and those in the node's zone.
func TestPoliciesOfThisNode(t *testing.T) {
	parallel(t)
	h := newHost(t)
	port := h.freeNodePort()
	h.config(fmt.Sprintf("[ipam]\nnode_ports = \"%d-%d\"", port, port))
	h.edit("ironvip.toml", `name = "lb1"`, "name = \"lb1\"\nzone = \"za\"")
	h.edit("ironvip.toml", "[dataplane]", "[dataplane]\nnode_port_addresses = [\"127.0.0.1\"]")
	a, b := newBackend(t, "a"), newBackend(t, "b")
	h.write("services.d/all.toml", fmt.Sprintf(`[[service]]
name = "web"
ports = [ { port = 8080 } ]
external_traffic = "local"
internal_traffic = "local"
health_check_node_port = %d
backends = [ { address = "127.0.0.1", port = %[2]d, node = "lb1" }, { address = "127.0.0.1", port = %[3]d, node = "lb2" } ]
[[service]]
name = "near"
ports = [ { port = 8080 } ]
traffic_distribution = "same-zone"
backends = [ { address = "127.0.0.1", port = %[2]d, zone = "zb" }, { address = "127.0.0.1", port = %[3]d, zone = "za" } ]
`, port, a.port, b.port))
	h.start()
	web := h.vip("web") + ":8080"
	h.serves(web, "a")
	h.serves(h.vip("near")+":8080", "b")
	h.health(port, 200, 1)
	h.ok("backend", "drain", "web", a.addr)
	h.health(port, 503, 0)
	name, err := who(web)
	expect.True(t, err != nil, "without a backend on this node, %s answers", name)
}
