//go:build vm

package program

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/netlab"
)

// on creates another host of the fleet, in a node's namespace, with the same pool.
func (h *host) on(t *testing.T, n *netlab.Node, more string) *host {
	t.Helper()
	other := newHost(t)
	other.pool, other.inside = h.pool, n.Do
	other.config(more)
	other.edit("ironvip.toml", `name = "lb1"`, fmt.Sprintf("name = %q", n.Name))
	return other
}

// here runs a command of ours in the host's namespace.
func (h *host) here(args ...string) (r result) {
	h.t.Helper()
	h.inside(func() { r = command(h.t, args...) })
	return r
}

// sees returns the output of a program in a node's namespace.
func sees(t testing.TB, n *netlab.Node, line string) string {
	t.Helper()
	args := strings.Fields(line)
	var out []byte
	var err error
	n.Do(func() { out, err = exec.Command(args[0], args[1:]...).CombinedOutput() })
	must.Succeed(t, err, "%s: %s: %s", n.Name, line, out)
	return string(out)
}

// kernelOf is theKernel of a node's namespace.
func kernelOf(t *testing.T, n *netlab.Node) (all map[string]string) {
	t.Helper()
	n.Do(func() { all = theKernel(t) })
	return all
}

// Directors and real servers get the same services, differ by their role, and preserve the client
// address up to the backends. A crash changes nothing in the kernel, a stop keeps the traffic, and
// clean removes everything of ours and nothing else.
//
// Slow: three hosts, two of which start twice.
func TestRealServerRole(t *testing.T) {
	need.Module(t, "ipip")
	need.Module(t, "ip6_tunnel")
	h, lab := newLab(t)
	pools := "\"fd00:96::/64\"]"
	nodes := []*netlab.Node{lab.Director, lab.Backends[0], lab.Backends[1]}
	hosts := []*host{h, h.on(t, nodes[1], ""), h.on(t, nodes[2], "")}
	four, six := netip.MustParseAddr(h.pool+".20"), netip.MustParseAddr("fd00:96::20")
	var backends []string
	for _, b := range lab.Backends {
		backends = append(backends, fmt.Sprintf("{ address = %q }, { address = %q }", b.Addr4, b.Addr6))
	}
	all := strings.Join(backends, ", ")
	services := fmt.Sprintf(`[[service]]
name = "direct"
vips = ["%s", "%s"]
share_key = "one"
forward = "dr"
scheduler = "rr"
ports = [ { port = 80 }, { name = "dns", port = 53, protocol = "udp" } ]
backends = [ %s ]
health = { type = "tcp", timeout = "1m" } # an emulated processor starts three agents
[[service]]
name = "wrapped"
vips = ["%[1]s", "%[2]s"]
share_key = "one"
forward = "tunnel"
scheduler = "rr"
ports = [ { name = "many", port = "9000-9099" } ]
backends = [ %[3]s ]
[[service]]
name = "rewritten"
ports = [ { port = 80 } ]
backends = [ %[3]s ]
health = { type = "none" }
`, four, six, all)
	before := map[*netlab.Node]map[string]string{}
	for i, n := range nodes {
		hosts[i].edit("ironvip.toml", `.0/24"]`, `.0/24", `+pools)
		if i > 0 {
			hosts[i].edit("ironvip.toml", "[dataplane]\n", "[dataplane]\nrole = \"real-server\"\n")
		}
		hosts[i].write("services.d/all.toml", services)
		before[n] = kernelOf(t, n)
	}
	for i := range nodes {
		hosts[i].start()
	}

	type place struct {
		network string
		at      netip.AddrPort
	}
	var places []place
	for _, addr := range []netip.Addr{four, six} {
		places = append(places, place{"tcp", netip.AddrPortFrom(addr, 80)}, place{"udp", netip.AddrPortFrom(addr, 53)},
			place{"tcp", netip.AddrPortFrom(addr, 9000)}, place{"tcp", netip.AddrPortFrom(addr, 9099)})
	}
	for _, b := range lab.Backends {
		for _, p := range places {
			b.Serve(p.network, p.at)
		}
		b.Serve("tcp", netip.MustParseAddrPort("0.0.0.0:2222"))
		b.Serve("tcp", netip.MustParseAddrPort("[::]:2223"))
	}
	serves := func(when string) {
		t.Helper()
		for _, p := range places {
			seen := map[string]int{}
			for range 4 {
				a, err := lab.Client.Ask(p.network, p.at)
				must.Succeed(t, err, "%s: %s %s", when, p.network, p.at)
				if seen[a.Name]++; a.Client.Addr() != lab.Client.Addr4 && a.Client.Addr() != lab.Client.Addr6 {
					t.Errorf("%s: %s saw the client of %s as %s", when, a.Name, p.at, a.Client)
				}
			}
			if seen["backend1"] != 2 || seen["backend2"] != 2 {
				t.Errorf("%s: four questions to %s %s were answered by %v", when, p.network, p.at, seen)
			}
		}
	}
	// Probes take the path of clients: nothing listens at the backends' own addresses, and the director
	// refuses packets from addresses of its own. The first probes may have come before the servers.
	h.eventually("the backends of direct are healthy", func() error {
		if text := h.ok("backend", "list", "direct"); strings.Count(text, "tcp healthy") != 4 {
			return errors.New(text)
		}
		return nil
	})
	serves("after the start")
	for i, h := range hosts {
		h.ok("status", "--wait")
		text := h.ok("service", "list")
		if i == 0 {
			continue
		}
		if out := sees(t, nodes[i], "ipvsadm -Sn"); out != "" {
			t.Errorf("%s, a real server, has IPVS services:\n%s", nodes[i].Name, out)
		}
		mentions(t, "the real server's services", text, "elsewhere", "unchecked")
		if r := hosts[i].here("doctor", "--config", hosts[i].dir); r.code != 0 || strings.Contains(r.stdout, "net.ipv4") {
			t.Errorf("doctor on a real server: exit code %d\n%s%s", r.code, r.stdout, r.stderr)
		}
	}

	running := map[*netlab.Node]map[string]string{}
	open := must.Get(lab.Client.Dial("tcp", places[0].at))(t)
	must.Get(open.Ask())(t)
	for i, n := range nodes {
		running[n] = kernelOf(t, n)
		hosts[i].kill()
	}
	serves("with all agents dead")
	for i, n := range nodes[:2] { // one of each role
		hosts[i].start()
		w := hosts[i].writes()
		expect.Equal(t, w, 0, "%s: %v kernel writes at a restart with nothing changed", n.Name, w)
		same(t, n.Name+"'s restart", kernelOf(t, n), running[n])
		hosts[i].ok("dataplane", "diff")
	}
	if _, err := open.Ask(); err != nil {
		t.Errorf("the connection that was open before the crashes: %v", err)
	}
	for i, n := range nodes {
		hosts[i].stop()
		same(t, n.Name+"'s stop", kernelOf(t, n), running[n])
	}
	serves("with all agents stopped")

	for i, n := range nodes {
		if r := hosts[i].here("dataplane", "clean", "--config", hosts[i].dir, "--dry-run"); r.code != 10 {
			t.Errorf("%s: a dry run: exit code %d\n%s%s", n.Name, r.code, r.stdout, r.stderr)
		}
		if r := hosts[i].here("dataplane", "clean", "--config", filepath.Join(hosts[i].dir, "ironvip.toml")); r.code != 0 {
			t.Errorf("%s: clean: exit code %d\n%s%s", n.Name, r.code, r.stdout, r.stderr)
		}
		now := kernelOf(t, n)
		for _, command := range []string{"ip -o addr", "ip -o link", "ip route show table all", "ip -6 route show table all"} {
			if i > 0 { // director2's links were added in between
				now[command], before[n][command] = ours(now[command]), ours(before[n][command])
			}
		}
		same(t, n.Name+"'s clean", now, before[n])
	}
}

// ours returns the parts about our devices.
func ours(text string) string {
	var kept strings.Builder
	for l := range strings.Lines(text) {
		if strings.Contains(l, "ironvip") {
			kept.WriteString(l)
		}
	}
	return kept.String()
}

// A director can't deliver packets of direct routing or a tunnel to itself. A backend at its own address
// gets no clients, even if it is not checked, probes find what clients would, and the service says why.
func TestADirectorIsNoBackendOfItself(t *testing.T) {
	need.Module(t, "ipip")
	h, lab := newLab(t)
	at := netip.MustParseAddr(h.pool + ".20")
	service := func(name, forward, backends, health string, port int) string {
		return fmt.Sprintf("[[service]]\nname = %q\nvips = [%q]\nshare_key = \"one\"\nforward = %q\nscheduler = \"rr\"\nports = [ { port = %d } ]\nbackends = [ %s ]\n%s\n",
			name, at, forward, port, backends, health)
	}
	own, both := fmt.Sprintf("{ address = %q }", lab.Director.Addr4), fmt.Sprintf("{ address = %q }, { address = %q }", lab.Director.Addr4, lab.Backends[0].Addr4)
	h.write("services.d/all.toml", service("mixed", "dr", both, `health = { type = "none" }`, 80)+
		service("checked", "dr", own, "", 81)+service("wrapped", "tunnel", own, "", 82))
	real := h.on(t, lab.Backends[0], "")
	real.edit("ironvip.toml", "[dataplane]\n", "[dataplane]\nrole = \"real-server\"\n")
	real.write("services.d/all.toml", service("mixed", "dr", both, `health = { type = "none" }`, 80))
	h.start()
	real.start()
	for port := range uint16(3) {
		lab.Director.Serve("tcp", netip.AddrPortFrom(at, 80+port))
	}
	lab.Backends[0].Serve("tcp", netip.AddrPortFrom(at, 80))
	h.reaches(lab.Client, "tcp", at.String(), 80, lab.Backends[0].Name)
	for _, name := range []string{"mixed", "checked", "wrapped"} {
		mentions(t, name, h.cli("service", "explain", name).stdout, fmt.Sprintf("backend %s gets no clients from this host", lab.Director.Addr4))
	}
	h.eventually("the checks fail as clients would", func() error {
		for _, name := range []string{"checked", "wrapped"} {
			if text := h.ok("backend", "list", name); !strings.Contains(text, "tcp unhealthy") || !strings.Contains(text, "refused (as clients, at "+at.String()) {
				return errors.New(text)
			}
		}
		return nil
	})
	mentions(t, "the status", h.cli("status").stdout, "2 paths of health checks programmed")
}
