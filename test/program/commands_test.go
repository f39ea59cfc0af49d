//go:build program || vm

package program

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/need"
)

// nobody is a user without rights of any kind.
const nobody = 65534

// Every command that reads answers in JSON, one document and nothing else on
// stdout; names are one a line, and tables are not empty.
func TestCommandsRead(t *testing.T) {
	parallel(t)
	h := newHost(t)
	a := newBackend(t, "a")
	h.write("services.d/web.toml", service("web", "", a))
	h.start()
	h.put("api", a)
	h.vip("web")
	for _, c := range []struct {
		args string
		code int
		name string // what -o name has as a line of its own
		says string // the table
	}{
		{"status", 0, "lb1", "dataplane"},
		{"status --wait", 0, "lb1", "OK"},
		{"service list", 0, "web", "healthy"},
		{"service list --source rest", 0, "api", "api"},
		{"service get web", 0, "web", a.addr},
		{"service get web api", 0, "api", a.addr},
		{"service explain web", 0, "web", "pool main"},
		{"backend list", 0, "web/" + a.addr, a.addr},
		{"backend list web", 0, "web/" + a.addr, a.addr},
		{"vip list", 0, h.vip("web"), "held"},
		{"pool list", 0, "main", h.pool + ".0/24"},
		{"source list", 0, "static", "rest"},
		{"dataplane show", 0, h.vip("web") + ":8080/tcp", mode},
		{"dataplane diff", 0, "", "no differences"},
		{"config plan", 0, "", "no changes"},
		{"config validate " + h.dir, 0, "", "valid"},
		{"events", 0, "", "lease_given"},
		{"version", 0, "", "ironvip"},
	} {
		args := strings.Fields(c.args)
		r := h.cli(append(args, "-o", "json")...)
		if r.code != c.code {
			t.Errorf("%s -o json: exit %d, want %d\n%s%s", c.args, r.code, c.code, r.stdout, r.stderr)
		}
		if !json.Valid([]byte(r.stdout)) {
			t.Errorf("%s -o json: not JSON:\n%s", c.args, r.stdout)
		}
		if r := h.cli(append(args, "-o", "name")...); c.name != "" && !slices.Contains(strings.Split(r.stdout, "\n"), c.name) {
			t.Errorf("%s -o name: no line %q:\n%s", c.args, c.name, r.stdout)
		}
		for _, format := range []string{"table", "wide"} {
			if r := h.cli(append(args, "-o", format)...); !strings.Contains(r.stdout, c.says) && !strings.Contains(r.stderr, c.says) {
				t.Errorf("%s -o %s does not say %q:\n%s%s", c.args, format, c.says, r.stdout, r.stderr)
			}
		}
		if r := h.cli(append(args, "-o", "yaml")...); r.code != c.code || r.stdout == "" {
			t.Errorf("%s -o yaml: exit %d\n%s%s", c.args, r.code, r.stdout, r.stderr)
		}
	}
	// doctor judges this host, whatever it is, and always as a document.
	r := h.cli("doctor", "--config", h.dir, "-o", "json")
	if r.code != 0 && r.code != 1 && r.code != 3 || !json.Valid([]byte(r.stdout)) {
		t.Errorf("doctor: exit %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	for shell, word := range map[string]string{"bash": "complete", "zsh": "compdef", "fish": "complete"} {
		r := command(t, "completion", shell)
		if r.code != 0 || !strings.Contains(r.stdout, word) {
			t.Errorf("completion %s: exit %d, %d bytes", shell, r.code, len(r.stdout))
		}
	}
	// What the shell's completion asks for live names.
	if r := h.cli("__complete", "service", "get", ""); !strings.Contains(r.stdout, "web\t") && !strings.Contains(r.stdout, "web\n") {
		t.Errorf("completion of names: %q %q", r.stdout, r.stderr)
	}
}

// Commands that change something say what, wait until it is in force, and with
// -o json answer in JSON.
func TestCommandsChange(t *testing.T) {
	parallel(t)
	h := newHost(t)
	a, b := newBackend(t, "a"), newBackend(t, "b")
	h.start()
	file := filepath.Join(h.dir, "apply.toml")
	apply := func(text string, more ...string) result {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return h.cli(append([]string{"service", "apply", "-f", file}, more...)...)
	}
	if r := apply(service("web", "", a), "--dry-run"); r.code != 10 || !strings.Contains(r.stdout, "web") {
		t.Errorf("a dry run of something new: exit %d, want 10\n%s%s", r.code, r.stdout, r.stderr)
	}
	if code, _ := h.rest("GET", "/v1/services/default/web", ""); code != 404 {
		t.Error("a dry run changed something")
	}
	r := apply(service("web", "", a) + service("api", "", b))
	if r.code != 0 {
		t.Fatalf("apply: exit %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	mentions(t, "apply", r.stderr, "web", "api", "revision")
	for name, want := range map[string]string{"web": "a", "api": "b"} {
		// At once: apply has waited.
		if got, err := who(h.vips(name)[0] + ":8080"); err != nil || got != want {
			t.Errorf("%s right after apply: %q, %v", name, got, err)
		}
	}
	if r := apply(service("web", "", a), "--dry-run"); r.code != 0 {
		t.Errorf("a dry run of nothing new: exit %d, want 0\n%s%s", r.code, r.stdout, r.stderr)
	}
	if r := apply(service("web", "prot = 1", a)); r.code != 1 || !strings.Contains(r.stderr, "apply.toml:6") {
		t.Errorf("apply of a mistake: exit %d\n%s", r.code, r.stderr)
	}
	web := h.vip("web") + ":8080"
	if r := apply(service("web", "", a, b), "-o", "json"); r.code != 0 || !json.Valid([]byte(r.stdout)) {
		t.Errorf("apply -o json: exit %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	h.serves(web, "a", "b")
	for _, c := range []struct {
		args  []string
		after []string
	}{
		{[]string{"backend", "drain", "web", b.addr}, []string{"a"}},
		{[]string{"backend", "ready", "web/" + b.addr}, []string{"a", "b"}},
		{[]string{"backend", "maint", "web", a.addr}, []string{"b"}},
		{[]string{"backend", "ready", "web", a.addr}, []string{"a", "b"}},
	} {
		r := h.cli(c.args...)
		if r.code != 0 {
			t.Fatalf("%v: exit %d\n%s%s", c.args, r.code, r.stdout, r.stderr)
		}
		mentions(t, strings.Join(c.args, " "), r.stderr, "revision")
		got := answered(t, web, 4) // at once
		for _, name := range c.after {
			if got[name] == 0 || len(got) != len(c.after) {
				t.Errorf("after %v answered by %v, want %v", c.args, got, c.after)
			}
		}
	}
	if r := h.cli("service", "delete", "web", "-o", "json"); r.code != 0 || !json.Valid([]byte(r.stdout)) {
		t.Errorf("delete: exit %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	if r := h.cli("service", "delete", "web", "--ignore-not-found"); r.code != 0 {
		t.Errorf("delete --ignore-not-found of what is gone: exit %d\n%s", r.code, r.stderr)
	}
	h.ok("source", "resync", "static")
	h.ok("reload", "-o", "json")
}

// Each exit code of the reference is reached, with a hint where there is
// something to do.
func TestExitCodes(t *testing.T) {
	parallel(t)
	need.Root(t)
	h := newHost(t)
	a := newBackend(t, "a")
	h.write("services.d/web.toml", service("web", "", a))
	h.start()
	h.vip("web")
	for _, c := range []struct {
		args string
		code int
		says string
	}{
		{"status", 0, ""},
		{"config validate /nowhere/at/all", 1, "hint: "},
		{"service", 2, ""},
		{"nonsense", 2, "unknown command"},
		{"status --nonsense", 2, "unknown flag"},
		{"status -o xml", 2, "xml"},
		{"service get", 2, ""},
		{"service apply", 2, "-f"},
		{"service get nosuch", 4, "nosuch"},
		{"service explain nosuch", 4, "hint: "},
		{"service delete nosuch", 4, "nosuch"},
		{"backend drain web 192.0.2.1:1", 4, "192.0.2.1:1"},
		{"backend drain nosuch 192.0.2.1:1", 4, "nosuch"},
		{"source resync nosuch", 4, "nosuch"},
		{"service delete web", 5, "web.toml:1"},
		{"--addr unix:///nowhere status", 6, "hint: "},
		{"--addr http://127.0.0.1:1 status", 6, "hint: "},
		{"--addr gopher://x status", 2, "gopher"},
	} {
		r := h.cli(strings.Fields(c.args)...)
		if r.code != c.code || !strings.Contains(r.stdout+r.stderr, c.says) {
			t.Errorf("%s: exit %d, want %d and %q\n%s%s", c.args, r.code, c.code, c.says, r.stdout, r.stderr)
		}
		if strings.Contains(r.stdout, "error:") {
			t.Errorf("%s: an error on stdout:\n%s", c.args, r.stdout)
		}
	}
	t.Run("5 apply", func(t *testing.T) {
		file := filepath.Join(h.dir, "mine.toml")
		if err := os.WriteFile(file, []byte(service("web", "", a)), 0o644); err != nil {
			t.Fatal(err)
		}
		if r := h.cli("service", "apply", "-f", file); r.code != 5 {
			t.Errorf("exit %d\n%s%s", r.code, r.stdout, r.stderr)
		}
	})
	t.Run("7 not permitted", func(t *testing.T) {
		if r := h.as(nobody, "status"); r.code != 7 || !strings.Contains(r.stderr, "hint: ") {
			t.Errorf("exit %d\n%s%s", r.code, r.stdout, r.stderr)
		}
	})
	t.Run("3 degraded", func(t *testing.T) {
		h.put("empty")
		r := h.cli("status")
		if r.code != 3 || !strings.Contains(r.stdout, "Next: ironvip ") {
			t.Errorf("exit %d\n%s%s", r.code, r.stdout, r.stderr)
		}
		r = h.cli("status", "--wait", "--timeout", "300ms")
		for longer := time.Second; r.code == 6 && longer < patience; longer *= 2 { // on a busy machine the one answer takes its time
			r = h.cli("status", "--wait", "--timeout", longer.String())
		}
		if r.code != 3 {
			t.Errorf("--wait: exit %d\n%s%s", r.code, r.stdout, r.stderr)
		}
		h.ok("service", "delete", "empty")
	})
	t.Run("10 plan", func(t *testing.T) {
		// A key of ironvip.toml: nothing but a reload takes it over.
		text, err := os.ReadFile(filepath.Join(h.dir, "ironvip.toml"))
		if err != nil {
			t.Fatal(err)
		}
		h.edit("ironvip.toml", ".0/24\"]", ".0/24\"]\nexclude = [\""+h.pool+".128/25\"]")
		r := h.cli("config", "plan")
		if r.code != 10 || !strings.Contains(r.stdout, "pool") {
			t.Errorf("exit %d\n%s%s", r.code, r.stdout, r.stderr)
		}
		h.write("ironvip.toml", string(text))
		if r := h.cli("config", "plan"); r.code != 0 {
			t.Errorf("of nothing: exit %d\n%s%s", r.code, r.stdout, r.stderr)
		}
	})
	if mode == "ipvs" {
		t.Run("10 diff", func(t *testing.T) {
			h.edit("ironvip.toml", `resync_interval = "1s"`, `resync_interval = "1h"`)
			h.stop()
			h.start()
			vip := h.vip("web")
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
		})
	}
}

// What a reload can't take over waits for a restart, and status says so for as
// long as it does.
func TestReloadWaitsForRestart(t *testing.T) {
	parallel(t)
	h := newHost(t)
	a := newBackend(t, "a")
	h.write("services.d/web.toml", service("web", "", a))
	h.start()
	h.edit("ironvip.toml", `name = "lb1"`, `name = "lb2"`)
	for range 2 {
		r := h.cli("reload")
		if r.code != 0 {
			t.Errorf("reload: exit %d\n%s", r.code, r.stderr)
		}
		mentions(t, "reload", r.stderr, "warning", "node.name", "restart")
		if r := h.cli("status"); r.code != 3 || !strings.Contains(r.stdout, "node.name") {
			t.Errorf("status: exit %d\n%s", r.code, r.stdout)
		}
	}
	h.stop()
	h.start()
	if out := h.ok("status", "--wait", "-o", "name"); out != "lb2\n" {
		t.Errorf("after the restart it is %q", out)
	}
	h.serves(h.vip("web")+":8080", "a")
}

// as runs a client command as another user, who may read the binary.
func (h *host) as(uid uint32, args ...string) result {
	h.t.Helper()
	dir := publicDir(h.t)
	exe := filepath.Join(dir, "ironvip")
	copyBinary(h.t, exe)
	for d := h.dir; d != "/" && d != os.TempDir(); d = filepath.Dir(d) { // the way to the socket is open, the socket isn't
		if err := os.Chmod(d, 0o755); err != nil {
			h.t.Fatal(err)
		}
	}
	cmd := exec.Command(exe, append([]string{"--addr", "unix://" + filepath.Join(h.dir, "sock")}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.Run() //nolint:errcheck // the exit code says it
	if cmd.ProcessState == nil {
		h.t.Fatalf("ironvip %v as %d could not be started", args, uid)
	}
	return result{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
}

// publicDir is a directory that every user may enter; t.TempDir's are not.
func publicDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "ironvip-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// copyBinary puts the binary where every user may run it. No process is started
// meanwhile, which would have the copy open for writing when it is to be run.
func copyBinary(t *testing.T, to string) {
	t.Helper()
	data, err := os.ReadFile(bin(t))
	if err != nil {
		t.Fatal(err)
	}
	syscall.ForkLock.RLock()
	err = os.WriteFile(to, data, 0o755)
	syscall.ForkLock.RUnlock()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(to, 0o755); err != nil { // whatever the umask is
		t.Fatal(err)
	}
}
