//go:build system || vm

package program

import (
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/netlab"
)

// last returns the last byte of an IPv4 address.
func last(t *testing.T, addr string) int {
	t.Helper()
	ip, err := netip.ParseAddr(addr)
	if err != nil {
		t.Fatal(err)
	}
	return int(ip.As4()[3])
}

// vips returns the present addresses of a service, without waiting.
func (h *host) vips(name string) []string {
	h.t.Helper()
	_, tree := h.rest("GET", "/v1/services/default/"+name, "")
	status, _ := tree["status"].(map[string]any)
	list, _ := status["vips"].([]any)
	var out []string
	for _, v := range list {
		out = append(out, v.(string))
	}
	return out
}

// Automatically assigned addresses start above the band for requests (16 of 256), and skip excluded
// and requested addresses.
func TestRequestedBandAndExcludes(t *testing.T) {
	parallel(t)
	h := newHost(t)
	a := newBackend(t, "a")
	h.config("exclude = [\"" + h.pool + ".18/31\", \"" + h.pool + ".24/29\"]\n")
	asked := []string{h.pool + ".3", h.pool + ".17", h.pool + ".200"}
	for i, addr := range asked {
		// The names make these files sort after those of the others.
		h.write(fmt.Sprintf("services.d/z%d.toml", i), service(fmt.Sprintf("asked%d", i), `vips = ["`+addr+`"]`, a))
	}
	for i := range 8 {
		h.write(fmt.Sprintf("services.d/a%d.toml", i), service(fmt.Sprintf("auto%d", i), "", a))
	}
	h.start()
	for i, addr := range asked {
		if got := h.vip(fmt.Sprintf("asked%d", i)); got != addr {
			t.Errorf("asked for %s, got %s", addr, got)
		}
		h.serves(addr+":8080", "a")
	}
	seen := map[string]bool{}
	for i := range 8 {
		got := h.vip(fmt.Sprintf("auto%d", i))
		n := last(t, got)
		if n < 17 || n == 17 || n == 18 || n == 19 || n >= 24 && n < 32 || n == 200 || seen[got] {
			t.Errorf("drew %s: in the band, excluded, or somebody else's", got)
		}
		seen[got] = true
		h.serves(got+":8080", "a")
	}
	if out := h.ok("vip", "list", "-o", "name"); strings.Count(out, "\n") != 11 {
		t.Errorf("11 leases:\n%s", out)
	}
}

// A pool of both families gives a service both, and one of IPv6 only gives IPv6. A client elsewhere
// reaches backends of either family, also after kill -9.
func TestIPv6Pool(t *testing.T) {
	parallel(t)
	h, l := newLab(t)
	h.edit("ironvip.toml", `.0/24"]`, `.0/24", "fd00:96::/64"]`)
	var both, six []string
	for _, n := range l.Backends {
		n.Serve("tcp", netip.AddrPortFrom(n.Addr4, 8080))
		n.Serve("tcp", netip.AddrPortFrom(n.Addr6, 8080))
		both = append(both, fmt.Sprintf("{ address = %q }, { address = %q }", n.Addr4, n.Addr6))
		six = append(six, fmt.Sprintf("{ address = %q }", n.Addr6))
	}
	list := func(name, more string, backends []string) string {
		return fmt.Sprintf("[[service]]\nname = %q\nscheduler = \"rr\"\nports = [ { port = 8080, node_port = \"auto\" } ]\nbackends = [ %s ]\n%s\n", name, strings.Join(backends, ", "), more)
	}
	h.write("services.d/both.toml", list("both", "", both))
	h.write("services.d/six.toml", list("six", `families = ["ipv6"]`, six))
	h.write("services.d/asked.toml", list("asked", `vips = ["fd00:96::5"]`, six))
	h.start()
	h.vip("both")
	h.vip("six")
	if got := h.vip("asked"); got != "fd00:96::5" {
		t.Errorf("asked for fd00:96::5, got %s", got)
	}
	granted := map[string][]string{}
	check := func() {
		for name, want := range map[string]int{"both": 2, "six": 1, "asked": 1} {
			got := h.vips(name)
			if len(got) != want {
				t.Errorf("%s has %v, want %d addresses", name, got, want)
			}
			if was := granted[name]; was != nil && !slices.Equal(was, got) {
				t.Errorf("%s moved from %v to %v", name, was, got)
			}
			granted[name] = got
			for _, addr := range got {
				if mode == "proxy" {
					break // it can't carry addresses that aren't the host's on every kernel; the node port below is the host's
				}
				h.reaches(l.Client, "tcp", addr, 8080, "backend1", "backend2")
			}
		}
		h.reaches(l.Client, "tcp", l.Director.Addr6.String(), h.nodePort("six"), "backend1", "backend2")
	}
	check()
	h.kill()
	h.start()
	check()
}

// Node ports are assigned automatically or on request, and serve on the host's own addresses for
// clients elsewhere. One that is taken is rejected by name.
func TestNodePorts(t *testing.T) {
	parallel(t)
	h, l := newLab(t)
	one, two := l.Backends[0], l.Backends[1]
	h.config("[ipam]\nreuse_delay = \"0s\"\n")
	for _, n := range l.Backends {
		n.Serve("tcp", netip.AddrPortFrom(n.Addr4, 8080))
		n.Serve("udp", netip.AddrPortFrom(n.Addr4, 8080))
	}
	node := func(name, protocol, port string, n *netlab.Node) string {
		return fmt.Sprintf("[[service]]\nname = %q\nports = [ { port = 8080, protocol = %q, node_port = %s } ]\nbackends = [ { address = %q } ]\ndrain_timeout = \"0s\"\n", name, protocol, port, n.Addr4)
	}
	h.write("services.d/1.toml", node("auto", "tcp", `"auto"`, one))
	h.write("services.d/2.toml", node("asked", "tcp", "30003", two))
	h.write("services.d/3.toml", node("udp", "udp", "30003", one)) // the same number of another protocol is free
	h.start()
	auto := h.nodePort("auto")
	if auto < 30000+86 || auto > 32767 {
		t.Errorf("drew node port %d, the band for requests ends at 30085", auto)
	}
	if got := h.nodePort("asked"); got != 30003 {
		t.Errorf("asked for node port 30003, got %d", got)
	}
	addr := l.Director.Addr4.String()
	check := func() {
		h.reaches(l.Client, "tcp", addr, auto, "backend1")
		h.reaches(l.Client, "tcp", addr, 30003, "backend2")
		h.reaches(l.Client, "udp", addr, 30003, "backend1")
	}
	check()
	h.write("services.d/4.toml", node("late", "tcp", "30003", one))
	h.explains("late", "30003", "asked", "Hint: ")
	h.write("services.d/5.toml", node("outside", "tcp", "65000", one))
	h.explains("outside", "65000", "30000-32767")
	check()
	h.kill()
	h.start()
	if now := h.nodePort("auto"); now != auto {
		t.Errorf("the drawn node port moved from %d to %d", auto, now)
	}
	check()
	h.remove("services.d/2.toml")
	h.reaches(l.Client, "tcp", addr, 30003, "backend1") // of late, which waited for it
}

// explains waits until a service's explanation contains all of these texts.
func (h *host) explains(name string, says ...string) {
	h.t.Helper()
	h.eventually(name+" is explained", func() error {
		text := h.cli("service", "explain", name).stdout
		for _, word := range says {
			if !strings.Contains(text, word) {
				return fmt.Errorf("%q is not said: %s", word, text)
			}
		}
		return nil
	})
}

// nodePort waits for the node port of a service's first port.
func (h *host) nodePort(name string) int {
	h.t.Helper()
	var port int
	h.eventually(name+" has a node port", func() error {
		code, tree := h.rest(http.MethodGet, "/v1/services/default/"+name, "")
		status, _ := tree["status"].(map[string]any)
		ports, _ := status["ports"].([]any)
		if len(ports) == 0 {
			return fmt.Errorf("%d %v", code, tree)
		}
		n, _ := ports[0].(map[string]any)["node_port"].(float64)
		if port = int(n); port == 0 {
			return fmt.Errorf("%v", ports)
		}
		return nil
	})
	return port
}
