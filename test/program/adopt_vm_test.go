//go:build vm

package program

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"
)

// witness returns the kernel's state, as reported by other programs.
func witness(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, args := range [][]string{{"ipvsadm", "-Sn"}, {"nft", "list", "table", "inet", "ironvip"}, {"nft", "list", "table", "inet", "neighbour"}, {"ip", "-o", "addr"}} {
		out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
		if err != nil && args[0] != "nft" { // a missing table is a valid answer
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
		fmt.Fprintf(&all, "# %v\n%s", args, out)
	}
	return all.String()
}

// metric returns the sum of a metric's samples.
func (h *host) metric(name string) float64 {
	h.t.Helper()
	resp, err := h.http().Get("http://ironvip/metrics")
	if err != nil {
		h.t.Fatal(err)
	}
	defer resp.Body.Close()
	sum, found := 0.0, false
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		line := lines.Text()
		if strings.HasPrefix(line, name+" ") || strings.HasPrefix(line, name+"{") {
			v, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
			if err != nil {
				h.t.Fatalf("%s: %v", line, err)
			}
			sum, found = sum+v, true
		}
	}
	if !found {
		h.t.Fatalf("no metric %s", name)
	}
	return sum
}

// writes returns the number of kernel writes of every kind since the agent started.
func (h *host) writes() float64 {
	return h.metric("ironvip_ipvs_service_writes_total") + h.metric("ironvip_ipvs_nftables_writes_total") +
		h.metric("ironvip_ipvs_address_writes_total")
}

// After kill -9 the agent adopts the kernel's state: it writes nothing if nothing changed, and once
// if one backend did. An open connection continues.
func TestKillAndAdopt(t *testing.T) {
	h := newHost(t)
	a, b := newBackend(t, "a"), newBackend(t, "b")
	for i := range 10 {
		h.write(fmt.Sprintf("services.d/s%d.toml", i), service(fmt.Sprintf("s%d", i), "", a, b))
	}
	h.start()
	vip := h.vip("s3")
	open, err := net.Dial("tcp", vip+":8080")
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	talk := bufio.NewReader(open)
	if _, err := talk.ReadString('\n'); err != nil { // the name
		t.Fatal(err)
	}
	before := witness(t)

	h.kill()
	if now := witness(t); now != before {
		t.Errorf("killing the agent changed the kernel:\n%s\nwas\n%s", now, before)
	}
	h.start()
	if n := h.writes(); n != 0 {
		t.Errorf("%v kernel writes at a restart with nothing changed", n)
	}
	if now := witness(t); now != before {
		t.Errorf("a restart with nothing changed changed the kernel:\n%s\nwas\n%s", now, before)
	}

	h.kill()
	h.write("services.d/s3.toml", strings.Replace(service("s3", "", a, b), fmt.Sprintf("port = %d }", b.port), fmt.Sprintf("port = %d, weight = 7 }", b.port), 1))
	h.start()
	h.eventually("the weight is in the kernel", func() error {
		if out, _ := exec.Command("ipvsadm", "-Sn").Output(); !strings.Contains(string(out), "-w 7") {
			return fmt.Errorf("%s", out)
		}
		return nil
	})
	if n := h.writes(); n != 1 {
		t.Errorf("%v kernel writes for one weight changed while the agent was down", n)
	}

	open.SetDeadline(time.Now().Add(maxWait))
	if _, err := io.WriteString(open, "still there?\n"); err != nil {
		t.Fatal(err)
	}
	if line, err := talk.ReadString('\n'); err != nil || line != "still there?\n" {
		t.Errorf("the connection that was open before two kills: %q, %v", line, err)
	}
}

// Changes by others to what is ours are repaired within a resync, counted and reported. What
// belongs to others remains.
func TestDriftAndNeighbours(t *testing.T) {
	h := newHost(t)
	a := newBackend(t, "a")
	for _, args := range [][]string{
		{"ipvsadm", "-A", "-t", "203.0.113.7:99", "-s", "wrr"},
		{"ipvsadm", "-a", "-t", "203.0.113.7:99", "-r", "198.51.100.1:99", "-m"},
		{"nft", "add", "table", "inet", "neighbour"},
		{"nft", "add", "chain", "inet", "neighbour", "c"},
		{"ip", "addr", "add", "203.0.113.7/32", "dev", "lo"},
	} {
		run(t, args...)
		undo := map[string][]string{"-A": {"ipvsadm", "-D", "-t", "203.0.113.7:99"}, "table": {"nft", "delete", "table", "inet", "neighbour"},
			"addr": {"ip", "addr", "del", "203.0.113.7/32", "dev", "lo"}}
		for word, u := range undo {
			if args[1] == word || args[2] == word {
				t.Cleanup(func() { exec.Command(u[0], u[1:]...).Run() })
			}
		}
	}
	h.write("services.d/web.toml", service("web", "", a))
	h.start()
	vip := h.vip("web")
	h.serves(vip+":8080", "a")
	before := witness(t)
	for i, args := range [][]string{
		{"ipvsadm", "-D", "-t", vip + ":8080"},
		{"ipvsadm", "-e", "-t", vip + ":8080", "-r", a.addr, "-m", "-w", "9"},
		{"ip", "addr", "del", vip + "/32", "dev", "ironvip0"},
		{"nft", "delete", "table", "inet", "ironvip"},
	} {
		run(t, args...)
		h.eventually(strings.Join(args, " ")+" is repaired", func() error {
			if now := witness(t); now != before {
				return fmt.Errorf("%s\nwas\n%s", now, before)
			}
			return nil
		})
		if n := h.metric("ironvip_drift_repairs_total"); int(n) < i+1 {
			t.Errorf("%v repairs counted after %d drifts", n, i+1)
		}
		h.serves(vip+":8080", "a")
	}
	if code, tree := h.rest(http.MethodGet, "/v1/events", ""); code != 200 || !strings.Contains(fmt.Sprint(tree), "drift_repaired") {
		t.Errorf("events: %d %v", code, tree)
	}
	// Foreign objects survive the removal of ours, too.
	h.remove("services.d/web.toml")
	h.ok("reload")
	h.eventually("ours is gone", func() error {
		if out := witness(t); strings.Contains(out, vip) {
			return fmt.Errorf("%s", out)
		}
		return nil
	})
	h.stop()
	out := witness(t)
	for _, want := range []string{"-A -t 203.0.113.7:99 -s wrr", "-a -t 203.0.113.7:99 -r 198.51.100.1:99 -m -w 1", "table inet neighbour", "203.0.113.7/32"} {
		if !strings.Contains(out, want) {
			t.Errorf("a neighbour's %q is gone:\n%s", want, out)
		}
	}
}

func run(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", args, err, out)
	}
}

// "dataplane diff" shows what another program removed from the kernel, and a repair restores it.
func TestDiffAndRepair(t *testing.T) {
	h := newHost(t)
	a := newBackend(t, "a")
	h.write("services.d/web.toml", service("web", "", a))
	h.edit("ironvip.toml", `resync_interval = "1s"`, `resync_interval = "1h"`)
	h.start()
	vip := h.vip("web")
	h.serves(vip+":8080", "a")
	if out, err := exec.Command("ipvsadm", "-D", "-t", vip+":8080").CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	r := h.cli("dataplane", "diff")
	if r.code != 10 || !strings.Contains(r.stdout, vip+":8080") {
		t.Errorf("exit %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	if code, tree := h.rest("POST", "/v1/dataplane/repair", ""); code != 200 || fmt.Sprint(tree["repaired"]) != "1" {
		t.Errorf("repair: %d %v", code, tree)
	}
	h.ok("dataplane", "diff")
	h.serves(vip+":8080", "a")
}
