//go:build vm

package program

import (
	"fmt"
	"io/fs"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/test/wait"
)

// withoutModule unloads a kernel module until the test ends, or back is called.
func withoutModule(t *testing.T, name string) (back func()) {
	t.Helper()
	var file string
	filepath.WalkDir("/lib/modules", func(path string, _ fs.DirEntry, _ error) error {
		if strings.TrimSuffix(filepath.Base(path), ".ko") == name {
			file = path
		}
		return nil
	})
	back = func() {
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := unix.FinitModule(int(f.Fd()), "", 0); err != nil && err != unix.EEXIST {
			t.Errorf("insert %s: %v", name, err)
		}
	}
	wait.For(t, fmt.Sprintf("remove %s (%s)", name, file), func() error {
		return unix.DeleteModule(name, unix.O_NONBLOCK) // an earlier test's namespaces may still use it
	})
	t.Cleanup(back)
	return back
}

// The faults are a scheduler without its module, another program's service with the mark that ours
// would have, and listeners of the host on a node port and on a health port. Each is reported by
// name, is left unchanged, affects nothing else, and ends automatically with its cause.
func TestBadLuck(t *testing.T) {
	h, lab := newLab(t)
	loaded := withoutModule(t, "ip_vs_mh")
	foreign := []string{"ipvsadm -A -f 16777216 -s rr", "ipvsadm -a -f 16777216 -r 198.51.100.1 -g"}
	for _, line := range foreign {
		sees(t, lab.Director, line)
	}
	nodePort := lab.Director.Listen(netip.MustParseAddrPort("0.0.0.0:30003"))
	healthPort := lab.Director.Listen(netip.MustParseAddrPort("0.0.0.0:30004"))

	var both []string
	for _, b := range lab.Backends {
		both = append(both, fmt.Sprintf("{ address = %q, node = \"lb1\" }", b.Addr4))
		b.Serve("tcp", netip.AddrPortFrom(b.Addr4, 8080))
	}
	put := func(name, ports, more string) {
		h.write("services.d/"+name+".toml", fmt.Sprintf("[[service]]\nname = %q\nscheduler = \"rr\"\nports = [ %s ]\nbackends = [ %s ]\n%s\n",
			name, ports, strings.Join(both, ", "), more))
	}
	const port = "{ port = 80, target_port = 8080 }"
	put("plain", port, "")
	put("range", `{ port = "7000-7009", target_port = 8080 }`, "")
	put("reached", "{ port = 80, target_port = 8080, node_port = 30003 }", "")
	put("checked", port, "external_traffic = \"local\"\nhealth_check_node_port = 30004")
	put("hashed", port, "")
	h.edit("services.d/hashed.toml", `"rr"`, `"mh"`)
	h.start()
	vips := map[string]string{}
	for _, name := range []string{"plain", "range", "reached", "checked", "hashed"} {
		vips[name] = h.vip(name)
	}
	works := func(names ...string) {
		t.Helper()
		for _, name := range names {
			port := 80
			if name == "range" {
				port = 7003
			}
			h.reaches(lab.Client, "tcp", vips[name], port, "backend1", "backend2")
		}
	}
	works("plain", "range", "reached", "checked")
	h.explains("hashed", "mh", "ip_vs_mh")
	h.explains("reached", "30003")
	h.eventually("status reports it", func() error {
		r := h.cli("status")
		for _, says := range []string{"health ports", "30004", "refused"} {
			if r.code != 3 || !strings.Contains(r.stdout, says) {
				return fmt.Errorf("exit code %d without %q\n%s", r.code, says, r.stdout)
			}
		}
		return nil
	})
	mentions(t, "dataplane show", h.ok("dataplane", "show"), "ip_vs_mh", "30003")
	if c, err := lab.Client.DialFrom("tcp", netip.Addr{}, netip.AddrPortFrom(lab.Director.Addr4, 30003)); err != nil {
		t.Errorf("the host's own listener: %v", err)
	} else {
		c.Close()
	}
	h.kill()
	h.start()
	works("plain", "range", "reached", "checked")
	if out := sees(t, lab.Director, "ipvsadm -Sn"); !strings.Contains(out, "-A -f 16777216 -s rr\n-a -f 16777216 -r 198.51.100.1:0 -g -w 1\n") {
		t.Errorf("somebody else's service by mark is not as it was:\n%s", out)
	}

	loaded()
	nodePort.Close()
	healthPort.Close()
	h.eventually("the hashed service is served", func() error {
		_, err := lab.Client.Ask("tcp", netip.AddrPortFrom(netip.MustParseAddr(vips["hashed"]), 80))
		return err
	})
	h.reaches(lab.Client, "tcp", lab.Director.Addr4.String(), 30003, "backend1", "backend2")
	h.ok("status", "--wait")
	client := http.Client{Timeout: maxWait, Transport: &http.Transport{DialContext: lab.Client.DialContext, DisableKeepAlives: true}}
	if resp, err := client.Get(fmt.Sprintf("http://%s:30004/", lab.Director.Addr4)); err != nil {
		t.Error(err)
	} else if resp.Body.Close(); resp.StatusCode != 200 || resp.Header.Get("X-Load-Balancing-Endpoint-Weight") != "2" {
		t.Errorf("the health port says %s %v", resp.Status, resp.Header)
	}
	if out := sees(t, lab.Director, "ipvsadm -Sn"); !strings.Contains(out, "-a -f 16777216 -r 198.51.100.1:0 -g") {
		t.Errorf("somebody else's service by mark is gone:\n%s", out)
	}
}

// Services that need a range, a node port and a health port report a full disk, and get them once
// there is space.
func TestDrawsOnAFullDisk(t *testing.T) {
	h := newHost(t)
	a := newBackend(t, "a")
	disk := filepath.Join(h.dir, "state")
	if err := os.Mkdir(disk, 0o750); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		h.stop()
		syscall.Unmount(disk, syscall.MNT_DETACH)
	})
	h.write("services.d/web.toml", service("web", "", a))
	h.start()
	h.serves(h.vip("web")+":8080", "a")
	fill(t, filepath.Join(disk, "filler"))
	full := func() bool {
		code, _ := h.rest("PUT", "/v1/services/default/filler", fmt.Sprintf(`{"labels": {"a": %q}, "ports": [{"port": 1}]}`, strings.Repeat("x", 1000)))
		return code == 507
	}
	for i := 0; !full(); i++ {
		if i == 400 {
			t.Fatal("the disk is never full")
		}
		h.rest("PUT", fmt.Sprintf("/v1/services/default/filler%d", i), fmt.Sprintf(`{"labels": {"a": %q}, "ports": [{"port": 1}]}`, strings.Repeat("x", 1000)))
	}
	// Each has four leases, which together exceed the free space inside the file.
	var late strings.Builder
	for i := range 120 {
		fmt.Fprintf(&late, `[[service]]
name = "late%d"
ports = [ { port = 8080, node_port = "auto" }, { name = "many", port = "7000-7099", target_port = %d } ]
external_traffic = "local"
health_check_node_port = "auto"
backends = [ { address = "127.0.0.1", port = %[2]d, node = "lb1" } ]
`, i, a.port)
	}
	h.write("services.d/late.toml", late.String())
	h.eventually("those that have no lease say so", func() error {
		if text := h.ok("service", "list", "-o", "wide"); !strings.Contains(text, "late119") || !strings.Contains(text, "pending") {
			return fmt.Errorf("%s", text)
		}
		return nil
	})
	waiting := func() (name string) {
		for l := range strings.Lines(h.ok("service", "list")) {
			if f := strings.Fields(l); len(f) > 4 && strings.Contains(l, "pending") {
				return f[0]
			}
		}
		return "none"
	}
	h.explains(waiting(), "disk is full", "Hint: ")
	h.serves(h.vip("web")+":8080", "a")
	h.kill()
	h.start()
	h.explains(waiting(), "disk is full")
	h.serves(h.vip("web")+":8080", "a")
	if err := os.Remove(filepath.Join(disk, "filler")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"late0", "late119"} {
		vip := h.vip(name)
		h.serves(vip+":8080", "a")
		h.serves(vip+":7050", "a")
		if h.nodePort(name) == 0 {
			t.Errorf("%s has no node port", name)
		}
	}
	h.eventually("nobody waits any more", func() error {
		if name := waiting(); name != "none" {
			return fmt.Errorf("%s does", name)
		}
		return nil
	})
}
