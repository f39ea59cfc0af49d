//go:build vm

package program

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/netlab"
)

// everything is services with all features of the kernel, in both families, with the first backend
// on this node.
func everything(lab *netlab.Lab) string {
	var list, plain []string
	for i, b := range lab.Backends {
		for _, addr := range []netip.Addr{b.Addr4, b.Addr6} {
			plain = append(plain, fmt.Sprintf("{ address = %q, weight = %d }", addr, i+1))
			list = append(list, fmt.Sprintf("{ address = %q, node = %q, zone = \"z%d\" }", addr, []string{"lb1", "lb2"}[i], i))
		}
	}
	var all strings.Builder
	for _, s := range []struct{ name, fields, backends string }{
		{"web", `ports = [ { port = 80, target_port = 8080, node_port = "auto" } ]
affinity = { timeout = "10m" }
source_ranges = ["10.77.0.0/24", "10.200.0.0/16", "fd77::/64"]`, ""},
		{"policies", `ports = [ { port = 80, target_port = 8080, node_port = "auto" }, { name = "many", port = "7000-7009", target_port = 8080 } ]
internal_traffic = "cluster"
external_traffic = "local"
health_check_node_port = "auto"`, ""},
		{"inside", `ports = [ { port = "100-199" } ]
internal_traffic = "local"
source_ranges = ["10.77.0.0/16"]
affinity = {}`, ""},
		{"zones", `ports = [ { port = 80, target_port = 8080 } ]
traffic_distribution = "same-zone"`, ""},
		{"range", `ports = [ { port = "10000-10099" }, { name = "d", port = "10000-10099", protocol = "udp", target_port = 8080 } ]
masquerade = "always"
scheduler = "wlc"`, strings.Join(plain, ", ")},
		{"whole", `ports = [ { port = "all" } ]
masquerade = "never"`, ""},
		{"mh", `ports = [ { port = 80, target_port = 8080 }, { name = "r", port = "300-309" } ]
scheduler = "mh"`, strings.Join(plain, ", ")},
		{"sh", `ports = [ { port = 80, target_port = 8080 } ]
scheduler = "sh"
scheduler_flags = ["port", "fallback"]`, ""},
		{"sctp", `ports = [ { port = 5000, protocol = "sctp", node_port = "auto" } ]
scheduler = "lc"`, ""},
		{"direct", `ports = [ { port = 80 }, { port = 53, protocol = "udp" } ]
forward = "dr"
scheduler = "mh"
scheduler_flags = ["port"]`, ""},
		{"wrapped", `ports = [ { port = "9000-9099" } ]
forward = "tunnel"
scheduler = "sed"`, ""},
		{"datagrams", `ports = [ { port = 53, protocol = "udp" }, { port = "6000-6009", protocol = "udp" } ]
forward = "tunnel"
scheduler = "wrr"
scheduler_flags = ["one-packet"]`, ""},
		{"nobody", `ports = [ { port = 80 }, { name = "r", port = "20-29" } ]`, "none"},
	} {
		backends := s.backends
		switch backends {
		case "":
			backends = strings.Join(list, ", ")
		case "none":
			backends = ""
		}
		fmt.Fprintf(&all, "[[service]]\nname = %q\n%s\nbackends = [ %s ]\n", s.name, s.fields, backends)
	}
	return all.String()
}

// onlyNobodyIsDown waits until everything is in the kernel. Only the service without backends is
// down.
func (h *host) onlyNobodyIsDown() string {
	h.t.Helper()
	var r result
	h.eventually("one service is down", func() error {
		if r = h.cli("status"); r.code != 3 || strings.Count(r.stdout, "WARN") != 1 || !strings.Contains(r.stdout, "12 unchecked, 1 down") || !strings.Contains(r.stdout, "ipvs, in sync") {
			return fmt.Errorf("exit code %d\n%s%s", r.code, r.stdout, r.stderr)
		}
		return nil
	})
	return r.stdout
}

// After kill -9 all features are adopted as they are, without a write. A backend that was changed
// meanwhile is one write, also in a service that the kernel identifies by its mark.
//
// Slow: three agents start in the emulated machine.
func TestKillAndAdoptEverything(t *testing.T) {
	need.Module(t, "sctp")
	h, lab := newLab(t)
	h.config("[health]\ndefault = \"none\"\n[ipam]\npod_cidrs = [\"10.244.0.0/16\", \"fd00:244::/48\"]\n")
	h.edit("ironvip.toml", `.0/24"]`, `.0/24", "fd00:96::/64"]`)
	h.edit("ironvip.toml", `name = "lb1"`, "name = \"lb1\"\nzone = \"z0\"")
	services := everything(lab)
	h.write("services.d/all.toml", services)
	h.start()
	status := h.onlyNobodyIsDown()
	h.ok("dataplane", "diff")
	before := kernelOf(t, lab.Director)
	for _, want := range []string{"-A -t ", "-A -u ", "--sctp-service ", "-A -f ", " -s mh", "mh-fallback,mh-port", "sh-fallback,sh-port", " -g ", " -i ", " -m ", " -o", " -p 600"} {
		expect.Contains(t, before["ipvsadm -Sn"], want, "is not in use:\n")
	}

	h.kill()
	same(t, "kill -9", kernelOf(t, lab.Director), before)
	h.start()
	expect.Equal(t, h.writes(), 0, "kernel writes at a restart with nothing changed")
	same(t, "the restart", kernelOf(t, lab.Director), before)
	h.ok("dataplane", "diff")
	if now := h.onlyNobodyIsDown(); strings.Count(now, "\n") != strings.Count(status, "\n") {
		t.Errorf("status says\n%s\nbefore the restart it said\n%s", now, status)
	}

	// The changed backend is in a service by address, and in one by mark.
	h.kill()
	for i, line := range []string{`traffic_distribution = "same-zone"`, `scheduler = "sed"`} {
		from := line + "\nbackends = [ { address = \"10.77.1.2\","
		must.True(t, strings.Contains(services, from), "the services have no %q", from)
		services = strings.Replace(services, from, fmt.Sprintf("%s weight = %d,", from, 77+i), 1)
	}
	h.write("services.d/all.toml", services)
	h.start()
	h.onlyNobodyIsDown()
	expect.Equal(t, h.writes(), 2, "kernel writes for two backends that were changed while the agent was down")
	h.ok("dataplane", "diff")
	if out := sees(t, lab.Director, "ipvsadm -Sn"); strings.Count(out, "-w 77") != 1 || strings.Count(out, "-w 78") != 1 {
		t.Errorf("the weights are not in the kernel:\n%s", out)
	}
}

// metric returns the sum of a metric's samples.
func (h *host) metric(name string) float64 {
	h.t.Helper()
	sum, found := 0.0, false
	for line := range strings.Lines(h.scrape()) {
		if strings.HasPrefix(line, name+" ") || strings.HasPrefix(line, name+"{") {
			v, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(line, ' ')+1:]), 64)
			must.Succeed(h.t, err, line)
			sum, found = sum+v, true
		}
	}
	must.True(h.t, found, "no metric %s", name)
	return sum
}

// writes returns the number of kernel writes of every kind since the agent started.
func (h *host) writes() float64 {
	return h.metric("ironvip_ipvs_service_writes_total") + h.metric("ironvip_ipvs_nftables_writes_total") +
		h.metric("ironvip_dataplane_address_writes_total")
}

func run(t *testing.T, args ...string) {
	t.Helper()
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	must.Succeed(t, err, "%v: %s", args, out)
}
