//go:build program || vm

package program

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A service from a file gets a VIP and reaches its backends; the file's changes
// are followed by watching, by SIGHUP and by `ironvip reload`.
func TestStaticService(t *testing.T) {
	h := newHost(t)
	a, b, c := newBackend(t, "a"), newBackend(t, "b"), newBackend(t, "c")
	h.write("services.d/web.toml", service("web", "", a, b))
	h.start()
	vip := h.vip("web")
	if !strings.HasPrefix(vip, h.pool+".") {
		t.Errorf("VIP %s is not from the pool %s.0/24", vip, h.pool)
	}
	h.serves(vip+":8080", "a", "b")

	h.write("services.d/web.toml", service("web", "", a, b, c))
	h.serves(vip+":8080", "a", "b", "c")

	h.write("services.d/api.toml", service("api", "", c))
	h.mu.Lock()
	h.cmd.Process.Signal(syscall.SIGHUP)
	h.mu.Unlock()
	h.serves(h.vip("api")+":8080", "c")

	h.write("services.d/web.toml", service("web", "", b))
	if r := h.cli("reload"); r.code != 0 || !strings.Contains(r.stderr, "reloaded") {
		t.Errorf("reload: exit %d, %q", r.code, r.stderr)
	}
	h.serves(vip+":8080", "b")
	if again := h.vip("web"); again != vip {
		t.Errorf("the VIP moved from %s to %s", vip, again)
	}
}

// A file that can't be read leaves what it said before in force, names its
// mistake, and doesn't keep other files from being followed.
func TestBadFileKeepsLastGood(t *testing.T) {
	h := newHost(t)
	a, b := newBackend(t, "a"), newBackend(t, "b")
	h.write("services.d/web.toml", service("web", "", a))
	h.start()
	web := h.vip("web") + ":8080"
	h.serves(web, "a")

	for name, text := range map[string]string{
		"half-written": "[[service]]\nname = \"we",
		"unknown key":  service("web", "prot = 1", b),
		"wrong type":   strings.Replace(service("web", "", b), "8080", `"x"`, 1),
		"bad port":     strings.Replace(service("web", "", b), "8080", "70000", 1),
		"not UTF-8":    "\xff\xfe",
	} {
		h.write("services.d/web.toml", text)
		r := h.cli("reload")
		if r.code == 0 {
			t.Errorf("%s: reload is happy", name)
		}
		if all := r.stdout + r.stderr; !strings.Contains(all, "web.toml:") {
			t.Errorf("%s: the place is not named:\n%s", name, all)
		}
		h.serves(web, "a")
	}
	h.write("services.d/api.toml", service("api", "", b))
	h.serves(h.vip("api")+":8080", "b")

	// A directory that vanishes is no wish to remove everything.
	if err := os.Rename(filepath.Join(h.dir, "services.d"), filepath.Join(h.dir, "gone")); err != nil {
		t.Fatal(err)
	}
	h.cli("reload")
	h.serves(web, "a")
	// The last good state is remembered across a restart.
	h.kill()
	h.start()
	h.serves(web, "a")

	if err := os.Rename(filepath.Join(h.dir, "gone"), filepath.Join(h.dir, "services.d")); err != nil {
		t.Fatal(err)
	}
	h.write("services.d/web.toml", service("web", "", b))
	h.serves(web, "b")
}

// validate and plan tell before, by output and by exit code.
func TestValidateAndPlan(t *testing.T) {
	h := newHost(t)
	a, b := newBackend(t, "a"), newBackend(t, "b")
	h.write("services.d/web.toml", service("web", "", a))
	h.start()
	h.vip("web")
	if r := command(t, "config", "validate", h.dir); r.code != 0 {
		t.Errorf("validate of a good configuration: exit %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	if r := h.cli("config", "plan"); r.code != 0 {
		t.Errorf("plan without changes: exit %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	// What the plan says of services counts with the pools that are proposed.
	h.write("services.d/later.toml", service("later", `pool = "next"`, b))
	if r := h.cli("config", "plan"); r.code != 1 || !strings.Contains(r.stdout+r.stderr, `"next"`) {
		t.Errorf("plan of a service in no pool: exit %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	h.config(fmt.Sprintf("[[pool]]\nname = \"next\"\ncidrs = [\"%s.250.0/24\"]", poolBase))
	if r := h.cli("config", "plan"); r.code != 10 || !strings.Contains(r.stdout, "next") {
		t.Errorf("plan with the pool: exit %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	h.ok("reload")
	h.serves(h.vip("later")+":8080", "b")

	bad := newHost(t)
	bad.write("services.d/web.toml", "[[service]]\nname = \"web\"\nports = [ { port = 80, prot = \"tcp\" } ]\n")
	r := command(t, "config", "validate", bad.dir)
	if r.code != 1 {
		t.Errorf("validate of a bad configuration: exit %d, want 1", r.code)
	}
	for _, want := range []string{"web.toml:3", "prot", `did you mean "protocol"`} {
		if all := r.stdout + r.stderr; !strings.Contains(all, want) {
			t.Errorf("validate does not say %q:\n%s", want, all)
		}
	}
}
