//go:build vm

package program

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// The state of other programs in the same kernel: IPVS services of every kind, nftables tables,
// ipsets, addresses.
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
	{"nft add table inet neighbour", "nft delete table inet neighbour"},
	{"nft add set inet neighbour s { type ipv4_addr . inet_proto . inet_service ; elements = { 203.0.113.7 . tcp . 99, 203.0.113.7 . udp . 53 } ; }", ""},
	{"nft add map inet neighbour m { type ipv4_addr : mark ; elements = { 203.0.113.9 : 0x1000 } ; }", ""},
	{"nft add chain inet neighbour in { type filter hook input priority -10 ; policy accept ; }", ""},
	{"nft add rule inet neighbour in ip daddr . meta l4proto . th dport @s accept comment theirs", ""},
	{"nft add table ip kube-proxy", "nft delete table ip kube-proxy"},
	{"nft add chain ip kube-proxy post { type nat hook postrouting priority srcnat ; }", ""},
	{"nft add rule ip kube-proxy post meta mark 0x4000 masquerade", ""},
	{"nft add rule ip kube-proxy post ip daddr 203.0.113.9 meta mark set ip daddr map { 203.0.113.9 : 0x1000 }", ""},
	{"ipset create KUBE-CLUSTER-IP hash:ip", "ipset destroy KUBE-CLUSTER-IP"},
	{"ipset add KUBE-CLUSTER-IP 203.0.113.7", ""},
	{"ipset add KUBE-CLUSTER-IP 203.0.113.9", ""},
	{"ip link add kube-ipvs0 type dummy", "ip link del kube-ipvs0"},
	{"ip addr add 203.0.113.7/32 dev kube-ipvs0", ""},
	{"ip addr add 2001:db8:7::1/128 dev kube-ipvs0 nodad", ""},
	{"ip link add lan0 type dummy", "ip link del lan0"},
	{"ip link set lan0 addrgenmode none", ""},
	{"ip link set lan0 up", ""},
	{"ip addr add 198.18.0.1/24 dev lan0", ""},
	{"ip route add 198.19.0.0/16 via 198.18.0.254", ""},
	{"ip addr add 203.0.113.8/32 dev lo", "ip addr del 203.0.113.8/32 dev lo"},
}

// moveIn adds the neighbors' state to the kernel until the test ends.
func moveIn(t *testing.T) {
	t.Helper()
	for _, n := range neighbours {
		run(t, strings.Fields(n.do)...)
		if n.undo != "" {
			t.Cleanup(func() { run(t, strings.Fields(n.undo)...) })
		}
	}
}

// newHostAlone is newHost with a kernel that has nothing of an earlier test's agent.
func newHostAlone(t *testing.T) *host {
	t.Helper()
	h := newHost(t)
	if r := command(t, "dataplane", "clean", "--config", h.dir); r.code != 0 {
		t.Fatalf("clean: exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	return h
}

// theKernel returns all of the kernel's state that a load balancer may change, as reported by other
// programs.
func theKernel(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, line := range []string{"ipvsadm -Sn", "nft list ruleset", "ipset save", "ip -o addr", "ip -o link", "ip route show table all", "ip -6 route show table all", "ip rule"} {
		args := strings.Fields(line)
		out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", line, err, out)
		}
		all[line] = string(out)
	}
	return all
}

// withoutOurs removes what is ours: our table, device, and services on the pool's addresses or a
// node port.
func (h *host) withoutOurs(kernel map[string]string, nodePort string) map[string]string {
	rest := map[string]string{}
	for command, text := range kernel {
		var kept strings.Builder
		ourTable := false
		for l := range strings.Lines(text) {
			ourTable = ourTable || l == "table inet ironvip {\n"
			if !ourTable && !h.isOurs(command, l, nodePort) {
				kept.WriteString(l)
			}
			ourTable = ourTable && l != "}\n"
		}
		rest[command] = kept.String()
	}
	return rest
}

func (h *host) isOurs(command, line, nodePort string) bool {
	switch command {
	case "ipvsadm -Sn":
		return strings.Contains(line, " "+h.pool+".") || strings.Contains(line, " [fd96:1::") || strings.Contains(line, ":"+nodePort+" ")
	case "nft list ruleset", "ipset save":
		return false
	}
	return strings.Contains(line, "ironvip0")
}

func same(t *testing.T, step string, now, before map[string]string) {
	t.Helper()
	for command, want := range before {
		if now[command] != want {
			t.Errorf("after %s, %s is\n%s\nwas\n%s", step, command, now[command], want)
		}
	}
}

// During start, changes, crash, stop and clean, the state of others remains identical to the byte.
// After clean nothing of ours is left.
func TestNeighboursAreLeftAlone(t *testing.T) {
	h := newHostAlone(t)
	moveIn(t)
	h.config("[[pool]]\nname = \"v6\"\ncidrs = [\"fd96:1::/64\"]\nauto_assign = false\n")
	before := theKernel(t)
	nodePort := "none"
	check := func(step string) {
		t.Helper()
		same(t, step, h.withoutOurs(theKernel(t), nodePort), before)
	}
	clean := func(args ...string) result {
		t.Helper()
		return command(t, append([]string{"dataplane", "clean", "--config", h.dir}, args...)...)
	}
	cleaned := func(step string) {
		t.Helper()
		r := clean()
		if r.code != 0 {
			t.Fatalf("%s: exit code %d: %s%s", step, r.code, r.stdout, r.stderr)
		}
		same(t, step, theKernel(t), before) // nothing left out
		if r := clean("--dry-run"); r.code != 0 || r.stdout != "" {
			t.Errorf("%s leaves: exit code %d\n%s%s", step, r.code, r.stdout, r.stderr)
		}
	}

	a, b := newBackend(t, "a"), newBackend(t, "b")
	h.write("services.d/web.toml", service("web", "", a, b))
	h.write("services.d/gone.toml", service("gone", "", a))
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
	h.start()
	nodePort, _, _ = strings.Cut(strings.TrimSpace(h.ok("vip", "list", "--kind", "node-port", "-o", "name")), "/")
	if out := theKernel(t)["ipvsadm -Sn"]; !strings.Contains(out, " 198.18.0.1:"+nodePort+" ") || strings.Contains(out, " 203.0.113.7:"+nodePort+" ") {
		t.Errorf("the node port %s is to be served on this host's addresses, and not on kube-proxy's:\n%s", nodePort, out)
	}
	web := h.vip("web")
	h.serves(web+":8080", "a", "b")
	check("the start")

	h.write("services.d/web.toml", strings.Replace(service("web", `drain_timeout = "0s"`, b), `"rr"`, `"wlc"`, 1))
	h.remove("services.d/gone.toml")
	h.write("services.d/new.toml", service("new", "", a))
	h.ok("reload")
	h.serves(web+":8080", "b")
	h.serves(h.vip("new")+":8080", "a")
	check("changes")

	if r := clean(); r.code != 5 || !strings.Contains(r.stderr, "an agent runs") {
		t.Errorf("clean beside an agent: exit code %d, %s%s", r.code, r.stdout, r.stderr)
	}
	check("a refused clean")
	h.kill()
	check("kill -9")
	h.start()
	h.serves(web+":8080", "b")
	check("a restart")
	h.stop()
	check("a stop")

	whole := theKernel(t)
	r := clean("--dry-run")
	if r.code != 10 || !strings.Contains(r.stdout, web+":8080/tcp") || !strings.Contains(r.stdout, "device   ironvip0") {
		t.Errorf("dry run: exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	same(t, "a dry run", theKernel(t), whole)
	cleaned("clean")

	// The leases remain: a new start assigns every address again.
	h.start()
	if now := h.vip("web"); now != web {
		t.Errorf("after clean and start web has %s, had %s", now, web)
	}
	h.serves(web+":8080", "b")
	check("a start after clean")
	h.kill()

	// Without the state file, the table and the device identify what is ours.
	db := filepath.Join(h.dir, "state", "ironvip.db")
	if err := os.WriteFile(db, []byte("not a database"), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := clean("--dry-run"); r.code != 10 || !strings.Contains(r.stderr, "damaged") || !strings.Contains(r.stdout, web+":8080/tcp") {
		t.Errorf("with a damaged state file: exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	if err := os.Remove(db); err != nil {
		t.Fatal(err)
	}
	// A flush of all tables removes the record of node ports, too.
	run(t, "nft", "delete", "table", "inet", "ironvip")
	for _, addr := range []string{"198.18.0.1", "203.0.113.8"} {
		run(t, "ipvsadm", "-D", "-t", addr+":"+nodePort)
	}
	cleaned("clean without a state file and a table")
	if _, err := os.Stat(db); err == nil {
		t.Error("clean made a state file")
	}
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
	if out := theKernel(t)["ipvsadm -Sn"]; !strings.Contains(out, theirs) {
		t.Errorf("it is gone:\n%s", out)
	}
	if r := clean("--pools", "--dry-run", "-o", "name"); r.code != 10 || strings.TrimSpace(r.stdout) != theirs+"/tcp" {
		t.Errorf("--pools --dry-run: exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	if r := clean("--pools"); r.code != 0 {
		t.Errorf("--pools: exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	if out := theKernel(t)["ipvsadm -Sn"]; strings.Contains(out, theirs) {
		t.Errorf("it is there still:\n%s", out)
	}
}

const stayVariable = "IRONVIP_TEST_STAY"

// TestStay is not a test but the program that pose runs.
func TestStay(t *testing.T) {
	if os.Getenv(stayVariable) != "" {
		io.Copy(io.Discard, os.Stdin) //nolint:errcheck // until the test ends
	}
}

// pose runs an idle program with that name and these arguments until the test ends.
func pose(t *testing.T, name string, args ...string) {
	t.Helper()
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, self, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, append([]string{"-test.run=^TestStay$", "--"}, args...)...)
	cmd.Env = append(os.Environ(), stayVariable+"=1")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stdin.Close(); cmd.Wait() })
}

// Doctor detects the neighbors of a real kernel and suggests settings.
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
		if !strings.Contains(out, want) {
			t.Errorf("doctor does not say %q:\n%s", want, out)
		}
	}
	out := examine()
	says(out, "WARN  device kube-ipvs0 exists: kube-proxy runs or ran here (IPVS services on its addresses: 4)")
	says(out, "fix: --ipvs-exclude-cidrs "+h.pool+".0/24, or ipvs.excludeCIDRs in its config")
	if strings.Contains(out, "that ironvip didn't create") {
		t.Errorf("there is nothing in our pool that isn't ours:\n%s", out)
	}
	h.stop()

	conf := filepath.Join(t.TempDir(), "keepalived.conf")
	if err := os.WriteFile(conf, []byte("virtual_server "+h.pool+".200 80 {\n}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	run(t, "ipvsadm", "-A", "-t", h.pool+".200:80", "-s", "rr")
	t.Cleanup(func() { run(t, "ipvsadm", "-D", "-t", h.pool+".200:80") })
	pose(t, "kube-proxy", "--proxy-mode=ipvs")
	pose(t, "kube-router")
	pose(t, "keepalived", "-f", conf)
	out = examine()
	says(out, "WARN  kube-proxy in ipvs mode runs here and deletes services it doesn't know    fix: --ipvs-exclude-cidrs "+h.pool+".0/24")
	says(out, "WARN  kube-router runs here and deletes IPVS services it doesn't know    fix: --excluded-cidrs "+h.pool+".0/24, or --run-service-proxy=false")
	says(out, "WARN  keepalived runs here and has a virtual_server in our pools: "+h.pool+".200")
	says(out, "WARN  IPVS services in our pools that ironvip didn't create: "+h.pool+".200:80/tcp")
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

// If another program deletes what is ours repeatedly, as kube-proxy does, it is repaired with
// growing waits and reported. The report ends when the deletions stop. Other services are not
// affected.
func TestContestedServiceIsNotFoughtOver(t *testing.T) {
	h := newHost(t)
	h.write("services.d/web.toml", service("web", "", newBackend(t, "a")))
	h.write("services.d/other.toml", service("other", "", newBackend(t, "b")))
	h.start()
	web := h.vip("web") + ":8080"
	other := h.vip("other") + ":8080"
	h.serves(web, "a")

	ctx, cancel := context.WithCancel(t.Context())
	var deleter sync.WaitGroup
	deleter.Go(func() {
		for ctx.Err() == nil {
			exec.CommandContext(ctx, "ipvsadm", "-D", "-t", web).Run() //nolint:errcheck // usually it doesn't exist
		}
	})
	t.Cleanup(deleter.Wait)
	t.Cleanup(cancel)
	events := func(kind string) (times int) {
		_, tree := h.rest("GET", "/v1/events", "")
		items, _ := tree["items"].([]any)
		for _, e := range items {
			if e, _ := e.(map[string]any); e["kind"] == kind && e["object"] == web+"/tcp" && e["service"] == "web" {
				times++
			}
		}
		return times
	}
	h.eventually("it is changed for the sixth time", func() error {
		r := h.cli("status")
		if r.code != 3 || !strings.Contains(r.stdout, "contested: "+web+"/tcp: somebody else keeps changing it: 6 times since ") {
			return errors.New(r.stdout + r.stderr)
		}
		return nil
	})
	if repairs := h.metric("ironvip_drift_repairs_total"); repairs != 5 {
		t.Errorf("%v repairs until the sixth change, want 5", repairs)
	}
	if n := events("dataplane_contested"); n != 1 {
		t.Errorf("reported %d times that it is contested", n)
	}
	if out := h.ok("service", "explain", "web"); !strings.Contains(out, "somebody else keeps changing it") {
		t.Errorf("explain says\n%s", out)
	}
	h.serves(other, "b")
	// A repair that an operator requests runs at once nevertheless.
	if code, tree := h.rest("POST", "/v1/dataplane/repair", ""); code != 200 {
		t.Errorf("repair: %d %v", code, tree)
	}

	cancel()
	deleter.Wait()
	h.serves(web, "a")
	h.ok("status", "--wait", "--timeout", "100s")
	if n := events("dataplane_calm"); n != 1 {
		t.Errorf("reported %d times that it is calm", n)
	}
	if n := events("dataplane_contested"); n != 1 {
		t.Errorf("reported %d times that it is contested", n)
	}
}
