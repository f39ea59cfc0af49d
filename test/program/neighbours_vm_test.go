//go:build vm

package program

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/planetest"
)

// The state of other programs in the same kernel besides that of planetest.MoveIn: IPVS services of
// every kind, and ipsets.
var neighbours = []struct{ do, undo string }{
	{"ipvsadm -A -t 203.0.113.7:99 -s wrr", "ipvsadm -D -t 203.0.113.7:99"},
	{"ipvsadm -a -t 203.0.113.7:99 -r 198.51.100.1:99 -m -w 7", ""},
	{"ipvsadm -a -t 203.0.113.7:99 -r 198.51.100.2:99 -g -w 0 -x 100 -y 50", ""},
	{"ipvsadm -A -t 203.0.113.7:443 -s sh -p 300 -M 255.255.255.0 -b sh-port", "ipvsadm -D -t 203.0.113.7:443"},
	{"ipvsadm -A -u 203.0.113.7:53 -s rr -o", "ipvsadm -D -u 203.0.113.7:53"},
	{"ipvsadm -a -u 203.0.113.7:53 -r 198.51.100.3:53 -m", ""},
	{"ipvsadm -A -f 77 -s wlc -p 60", "ipvsadm -D -f 77"},
	{"ipvsadm -a -f 77 -r 198.51.100.4 -g", ""},
	{"ipvsadm -A -t [2001:db8:7::1]:99 -s mh", "ipvsadm -D -t [2001:db8:7::1]:99"},
	{"ipset create KUBE-CLUSTER-IP hash:ip", "ipset destroy KUBE-CLUSTER-IP"},
	{"ipset add KUBE-CLUSTER-IP 203.0.113.7", ""},
	{"ipset add KUBE-CLUSTER-IP 203.0.113.9", ""},
}

// moveIn adds the neighbors' state to the kernel until the test ends.
func moveIn(t *testing.T) {
	t.Helper()
	planetest.MoveIn(t, here(t), "dummy")
	for _, n := range neighbours {
		run(t, strings.Fields(n.do)...)
		if n.undo != "" {
			t.Cleanup(func() { run(t, strings.Fields(n.undo)...) })
		}
	}
}

// here is this namespace.
func here(t *testing.T) *netlab.Node { return netlab.Here(t, "here", netip.Addr{}, netip.Addr{}) }

// newHostAlone is newHost with a kernel that has nothing of an earlier test's agent.
func newHostAlone(t *testing.T) *host {
	t.Helper()
	h := newHost(t)
	r := command(t, "dataplane", "clean", "--config", h.dir)
	must.Equal(t, r.code, 0, "clean: exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	return h
}

// theKernel returns all of the kernel's state that a load balancer may change, as reported by other
// programs.
func theKernel(t *testing.T) map[string]string {
	t.Helper()
	return planetest.State(t, here(t), "ipvsadm -Sn", "ipset save")
}

func same(t *testing.T, step string, now, before map[string]string) {
	t.Helper()
	planetest.SameState(t, step, now, before)
}

// During start, changes, crash, stop and clean, the state of others remains identical to the byte.
// After clean nothing of ours is left.
//
// Slow: eleven programs list the kernel after each of ten steps.
func TestNeighboursAreLeftAlone(t *testing.T) {
	h := newHostAlone(t)
	moveIn(t)
	h.config("[[pool]]\nname = \"v6\"\ncidrs = [\"fd96:1::/64\"]\nauto_assign = false\n")
	nodePort := "none"
	backends := []*backend{newBackend(t, "a"), newBackend(t, "b")}
	n := &neighborhood{
		host:  h,
		state: func() map[string]string { return theKernel(t) },
		foreign: func(all map[string]string) map[string]string {
			return planetest.Foreign(all, func(command, line string) bool { // our pool's addresses, and a node port
				return command == "ipvsadm -Sn" &&
					(strings.Contains(line, " "+h.pool+".") || strings.Contains(line, " [fd96:1::") || strings.Contains(line, ":"+nodePort+" "))
			})
		},
		backend: [2]string{"a", "b"},
		service: func(name string, n ...int) string {
			var all []*backend
			for _, i := range n {
				all = append(all, backends[i])
			}
			text := service(name, "", all...)
			if len(n) == 1 && n[0] == 1 { // a change
				text = strings.Replace(text, `"rr"`, `"wlc"`, 1)
			}
			return text
		},
		reaches: func(vip string, names ...string) { h.serves(vip+":8080", names...) },
	}
	n.before = n.state()
	h.write("services.d/more.toml", `[[service]]
name = "dns"
ports = [ { port = 53, protocol = "udp" }, { port = 53, node_port = "auto" } ]
backends = [ { address = "127.0.0.1", weight = 3 } ]
affinity = { timeout = "1h" }
[[service]]
name = "six"
pool = "v6"
families = ["ipv6"]
ports = [ { port = 80 } ]
backends = [ { address = "::1" } ]
[[service]]
name = "none"
ports = [ { port = 80 } ]
`)
	web := n.live(func() {
		nodePort, _, _ = strings.Cut(strings.TrimSpace(h.ok("vip", "list", "--kind", "node-port", "-o", "name")), "/")
		if out := theKernel(t)["ipvsadm -Sn"]; !strings.Contains(out, " 198.18.0.1:"+nodePort+" ") || strings.Contains(out, " 203.0.113.7:"+nodePort+" ") {
			t.Errorf("the node port %s is to be served on this host's addresses, and not on kube-proxy's:\n%s", nodePort, out)
		}
	})

	// The leases remain: a new start assigns every address again.
	h.start()
	now := h.vip("web")
	expect.Equal(t, now, web, "address of web after clean and start")
	h.serves(web+":8080", "b")
	n.check("a start after clean")
	h.kill()

	// Without the state file, the table and the device identify what is ours.
	db := filepath.Join(h.dir, "state", "ironvip.db")
	must.Succeed(t, os.WriteFile(db, []byte("not a database"), 0o600))
	if r := n.clean("--dry-run"); r.code != 10 || !strings.Contains(r.stderr, "damaged") || !strings.Contains(r.stdout, web+":8080/tcp") {
		t.Errorf("with a damaged state file: exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	must.Succeed(t, os.Remove(db))
	// A flush of all tables removes the record of node ports, too.
	run(t, "nft", "delete", "table", "inet", "ironvip")
	for _, addr := range []string{"198.18.0.1", "203.0.113.8"} {
		run(t, "ipvsadm", "-D", "-t", addr+":"+nodePort)
	}
	n.cleaned("clean without a state file and a table")
	_, err := os.Stat(db)
	expect.True(t, err != nil, "clean made a state file")
}

// A service in a pool without a sign of being ours remains, and is reported.
func TestCleanLeavesTheUnknown(t *testing.T) {
	h := newHostAlone(t)
	theirs := h.pool + ".200:80"
	run(t, "ipvsadm", "-A", "-t", theirs, "-s", "rr")
	clean := func(args ...string) result {
		return command(t, append([]string{"dataplane", "clean", "--config", h.dir}, args...)...)
	}
	r := clean()
	if r.code != 0 || !strings.Contains(r.stdout, theirs) || !strings.Contains(r.stdout, "ipvsadm -D -t "+theirs) {
		t.Errorf("exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	expect.Contains(t, theKernel(t)["ipvsadm -Sn"], theirs, "it is gone:\n")
	if r := clean("--pools", "--dry-run", "-o", "name"); r.code != 10 || strings.TrimSpace(r.stdout) != theirs+"/tcp" {
		t.Errorf("--pools --dry-run: exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	if r := clean("--pools"); r.code != 0 {
		t.Errorf("--pools: exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	out := theKernel(t)["ipvsadm -Sn"]
	expect.False(t, strings.Contains(out, theirs), "it is there still:\n%s", out)
}

// Doctor detects the neighbors of a real kernel and suggests settings.
//
// Slow: eleven programs list the kernel four times in the emulated machine.
func TestDoctorSeesNeighbours(t *testing.T) {
	h := newHostAlone(t)
	moveIn(t)
	h.write("services.d/web.toml", service("web", "", newBackend(t, "a")))
	h.start()
	examine := func() string {
		t.Helper()
		before := theKernel(t)
		r := h.cli("doctor", "--config", h.dir)
		if r.code != 0 && r.code != 3 {
			t.Errorf("exit code %d: %s", r.code, r.stderr)
		}
		same(t, "doctor", theKernel(t), before)
		return r.stdout
	}
	says := func(out, want string) {
		t.Helper()
		expect.Contains(t, out, want, "doctor does not say %q:\n", want)
	}
	out := examine()
	says(out, "WARN  device kube-ipvs0 exists: kube-proxy runs or ran here")
	says(out, "fix: --ipvs-exclude-cidrs "+h.pool+".0/24, or ipvs.excludeCIDRs in its config")
	if strings.Contains(out, "that ironvip didn't create") {
		t.Errorf("there is nothing in our pool that isn't ours:\n%s", out)
	}
	h.stop()

	run(t, "ipvsadm", "-A", "-t", h.pool+".200:80", "-s", "rr")
	t.Cleanup(func() { run(t, "ipvsadm", "-D", "-t", h.pool+".200:80") })
	says(examine(), "WARN  IPVS services in our pools that ironvip didn't create: "+h.pool+".200:80/tcp")
}

// After a kill, the userspace dataplane leaves a device with addresses.
func TestCleanAfterTheProxy(t *testing.T) {
	h := newHostAlone(t)
	h.edit("ironvip.toml", `mode = "ipvs"`, `mode = "proxy"`)
	h.write("services.d/web.toml", service("web", "", newBackend(t, "a")))
	before := theKernel(t)
	h.start()
	web := h.vip("web")
	h.serves(web+":8080", "a")
	h.kill()
	r := command(t, "dataplane", "clean", "--config", h.dir)
	if r.code != 0 || !strings.Contains(r.stdout, web) || !strings.Contains(r.stdout, "ironvip0") {
		t.Errorf("exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	same(t, "clean", theKernel(t), before)
}
