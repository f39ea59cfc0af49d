//go:build system || vm

package program

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/ironvip/ironvip/test/need"
)

// nobody is a user without privileges.
const nobody = 65534

// Every command that reads returns with -o json one document and nothing else on stdout. Names are
// printed one per line, and tables are not empty.
func TestCommandsRead(t *testing.T) {
	parallel(t)
	h := newHost(t)
	a := newBackend(t, "a")
	h.write("services.d/web.toml", service("web", "", a))
	h.start()
	h.put("api", a)
	h.vip("web")
	h.eventually("the default health checks have passed", func() error {
		if out := h.ok("service", "list"); strings.Count(out, "healthy") != 2 {
			return errors.New(out)
		}
		return nil
	})
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
	// doctor examines this host and always returns a document.
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
	// The shell's completion requests names from the agent.
	if r := h.cli("__complete", "service", "get", ""); !strings.Contains(r.stdout, "web\t") && !strings.Contains(r.stdout, "web\n") {
		t.Errorf("completion of names: %q %q", r.stdout, r.stderr)
	}
}

// A user without access to the socket gets exit code 7 and a hint.
func TestNotPermitted(t *testing.T) {
	parallel(t)
	need.Root(t)
	h := newHost(t)
	h.start()
	if r := h.as(nobody, "status"); r.code != 7 || !strings.Contains(r.stderr, "hint: ") {
		t.Errorf("exit %d\n%s%s", r.code, r.stdout, r.stderr)
	}
}

// as runs a client command as another user. It makes the binary readable.
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

// publicDir returns a directory that every user may enter, unlike t.TempDir's.
func publicDir(t testing.TB) string {
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

// copyBinary copies the binary to a place where every user may run it. It blocks the start of
// processes meanwhile: a child would inherit the copy open for writing, and the copy could not be
// run.
func copyBinary(t testing.TB, to string) {
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
	if err := os.Chmod(to, 0o755); err != nil { // independent of the umask
		t.Fatal(err)
	}
}
