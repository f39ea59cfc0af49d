//go:build system || vm

package program

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// block is one [[service]] on a port, with one backend.
func block(name string, port int, more string, b *backend) string {
	return fmt.Sprintf("[[service]]\nname = %q\nports = [ { port = %d } ]\nbackends = [ %s ]\n%s\n", name, port, b.toml(), more)
}

// problems returns the sources' problems, each with place and hint.
func (h *host) problems() string {
	h.t.Helper()
	_, tree := h.rest("GET", "/v1/sources", "")
	var all strings.Builder
	items, _ := tree["items"].([]any)
	for _, item := range items {
		problems, _ := item.(map[string]any)["problems"].([]any)
		for _, p := range problems {
			m := p.(map[string]any)
			fmt.Fprintf(&all, "%v: %v: %v: %v     hint: %v\n", m["place"], m["service"], m["field"], m["message"], m["hint"])
		}
	}
	return all.String()
}

// mentions fails the test for each word that is missing in the text.
func mentions(t *testing.T, what, text string, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("%s: %q is not said:\n%s", what, w, text)
		}
	}
}

// Every mistake in a service is rejected with place, field and hint: by validate, by a reload and
// in the source's status. The other service of the same file is served, and so is the former state.
func TestBadServices(t *testing.T) {
	parallel(t)
	h := newHost(t)
	a, b := newBackend(t, "a"), newBackend(t, "b")
	h.write("services.d/keep.toml", service("keep", "", a))
	h.start()
	keep := h.vip("keep") + ":8080"
	h.serves(keep, "a")
	for i, c := range []struct {
		what, text string // BAD is the service's name
		line       int    // in bad.toml
		says       []string
	}{
		{"unknown key", block("BAD", 80, "prot = 1", a), 5, []string{`prot`, "unknown key", "hint: "}},
		{"nearly a key", block("BAD", 80, `shedular = "rr"`, a), 5, []string{`did you mean "scheduler"`}},
		{"wrong type", block("BAD", 80, `labels = 7`, a), 5, []string{"labels", "wants a table"}},
		{"port above range", block("BAD", 70000, "", a), 3, []string{"ports[0].port", "70000", "65535"}},
		{"port 0", block("BAD", 0, "", a), 3, []string{"ports[0].port", "65535"}},
		{"negative port", block("BAD", -1, "", a), 3, []string{"ports[0].port", "-1"}},
		{"empty name", block("", 80, "", a), 2, []string{"name", "hint: "}},
		{"no name", strings.Replace(block("x", 80, "", a), "name = \"x\"\n", "", 1), 1, []string{"name", "hint: "}},
		{"no ports", "[[service]]\nname = \"BAD\"\n", 1, []string{"ports", "hint: "}},
		{"one port twice", "[[service]]\nname = \"BAD\"\nports = [ { port = 80 }, { port = 80, target_port = 81 } ]\n", 3, []string{"ports[1]", "80"}},
		{"one name twice", block("BAD", 80, "", a) + block("BAD", 81, "", a), 7, []string{"bad.toml:1, too", "rename or remove"}},
		{"backend inside a pool", "[[service]]\nname = \"BAD\"\nports = [ { port = 80 } ]\nbackends = [ { address = \"" + h.pool + ".77\" } ]\n", 4,
			[]string{"backends[0].address", h.pool + ".77", "main"}},
		{"backend of the wrong family", "[[service]]\nname = \"BAD\"\nports = [ { port = 80 } ]\nbackends = [ { address = \"fd00::1\" } ]\n", 4,
			[]string{"backends[0].address", "fd00::1"}},
		{"an unknown scheduler", block("BAD", 80, `scheduler = "see"`, a), 5, []string{"scheduler", `did you mean "sed"`}},
		{"a health check without a type", block("BAD", 80, `health = {}`, a), 5, []string{"health.type", "needs a type"}},
		{"a range of ports in reverse", "[[service]]\nname = \"BAD\"\nports = [ { port = \"90-80\" } ]\n", 3, []string{"ports[0].port", "ends before it begins", `write "80-90"`}},
	} {
		// The valid service has its own name and file in each round.
		good := fmt.Sprintf("good%d", i)
		bad := fmt.Sprintf("bad%d", i)
		h.write("services.d/bad.toml", strings.ReplaceAll(c.text, "BAD", bad)+block(good, 8080, "", b))
		place := fmt.Sprintf("bad.toml:%d: ", c.line)
		r := h.cli("reload")
		if r.code != 1 && !(r.code == 5 && c.what == "one name twice") {
			t.Errorf("%s: reload ends with %d, want 1", c.what, r.code)
		}
		mentions(t, c.what+": reload", r.stderr, append(c.says, place)...)
		r = command(t, "config", "validate", h.dir)
		if r.code != 1 {
			t.Errorf("%s: validate ends with %d, want 1", c.what, r.code)
		}
		mentions(t, c.what+": validate", r.stdout+r.stderr, append(c.says, place)...)
		mentions(t, c.what+": sources", h.problems(), append(c.says, place)...)
		h.serves(h.vip(good)+":8080", "b")
		h.serves(keep, "a")
		if code, _ := h.rest("GET", "/v1/services/default/"+bad, ""); code != 404 && c.what != "one name twice" {
			t.Errorf("%s: the refused service is answered with %d", c.what, code)
		}
	}
	if r := h.cli("status"); r.code != 3 {
		t.Errorf("status ends with %d while a file is wrong, want 3\n%s", r.code, r.stdout)
	}
	// The repaired file ends the warning without a reload.
	h.write("services.d/bad.toml", "# repaired\n")
	h.eventually("status is good again", func() error {
		if r := h.cli("status"); r.code != 0 {
			return fmt.Errorf("exit %d\n%s", r.code, r.stdout)
		}
		return nil
	})
	mentions(t, "events", h.ok("events"), "services_refused", "services_accepted")
	h.ok("reload")
	h.ok("status", "--wait")
}

// Unreadable files are reported with the reason, keep their former services, and don't prevent
// other services from being served. The agent neither waits for them nor reads gigabytes.
func TestBadFiles(t *testing.T) {
	parallel(t)
	h := newHost(t)
	a, b := newBackend(t, "a"), newBackend(t, "b")
	h.write("services.d/web.toml", service("web", "", a))
	h.start()
	web := h.vip("web") + ":8080"
	h.serves(web, "a")
	path, made := filepath.Join(h.dir, "services.d", "web.toml"), filepath.Join(h.dir, "made")
	for i, c := range []struct {
		what string
		make func() error
		says []string
	}{
		{"100 MB", func() error { return sparse(made, 100<<20) }, []string{"web.toml", "4 MiB", "hint: split it"}},
		{"half-written", func() error { return os.WriteFile(made, []byte(service("web", "", b)[:50]), 0o644) }, []string{"web.toml:"}},
		{"cut off to nothing", func() error { return os.WriteFile(made, nil, 0o644) }, []string{"web.toml", "is empty", "delete the file"}},
		{"zeros, as after a power failure", func() error { return os.WriteFile(made, make([]byte, 512), 0o644) }, []string{"web.toml:1"}},
		{"a named pipe", func() error { return syscall.Mkfifo(made, 0o644) }, []string{"web.toml", "a named pipe"}},
		{"a directory", func() error { return os.Mkdir(made, 0o755) }, []string{"web.toml", "a directory"}},
		{"a link to nowhere", func() error { return os.Symlink("/nowhere", made) }, []string{"web.toml", "/nowhere", "repair or remove the link"}},
		{"a device", func() error { return os.Symlink("/dev/zero", made) }, []string{"web.toml", "a device"}},
		{"deeply nested", func() error { return os.WriteFile(made, []byte("a = "+strings.Repeat("[", 100_000)), 0o644) }, []string{"web.toml:1"}},
		{"a misspelt header", func() error {
			return os.WriteFile(made, []byte(strings.Replace(service("web", "", b), "[[service]]", "[[servise]]", 1)), 0o644)
		}, []string{"web.toml:1", "did you mean [[service]]"}},
	} {
		// Atomically, so that the file is never missing.
		if err := c.make(); err != nil {
			t.Fatal(err)
		}
		if err := unix.Renameat2(unix.AT_FDCWD, made, unix.AT_FDCWD, path, unix.RENAME_EXCHANGE); err != nil {
			t.Fatal(err)
		}
		if err := os.RemoveAll(made); err != nil {
			t.Fatal(err)
		}
		r := h.cli("reload")
		if r.code != 1 {
			t.Errorf("%s: reload ends with %d, want 1", c.what, r.code)
		}
		mentions(t, c.what, r.stderr, c.says...)
		mentions(t, c.what+": explain", h.ok("service", "explain", "web"), "web.toml")
		mentions(t, c.what+": get", h.ok("service", "get", "web"), "web.toml", "stays in effect")
		mentions(t, c.what+": events", h.ok("events"), "services_refused", "web.toml")
		other := fmt.Sprintf("other%d", i)
		h.write("services.d/other.toml", service(other, "", b))
		h.ok("source", "list")
		h.serves(h.vip(other)+":8080", "b")
		h.serves(web, "a")
	}
}

// sparse creates a large sparse file.
func sparse(path string, size int64) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Truncate(size), f.Close())
}

// A reload rejects every mistake in ironvip.toml with its field and line, and changes nothing.
func TestBadConfig(t *testing.T) {
	parallel(t)
	h := newHost(t)
	a := newBackend(t, "a")
	h.write("services.d/web.toml", service("web", "", a))
	h.start()
	web := h.vip("web") + ":8080"
	h.serves(web, "a")
	for _, c := range []struct {
		what, from, to string
		says           []string
	}{
		{"a wrong type", `name = "lb1"`, `name = 7`, []string{"ironvip.toml:2", "node.name"}},
		{"no TOML", `name = "lb1"`, `name = lb1`, []string{"ironvip.toml:2"}},
		{"an open TCP port", `[dataplane]`, "listen = \"0.0.0.0:7480\"\n[dataplane]", []string{"ironvip.toml:6", "api.listen", "loopback"}},
		{"a relative state_dir", h.dir + "/state", "state", []string{"ironvip.toml:3", "state_dir", "absolute"}},
		{"no CIDR", h.pool + ".0/24", h.pool + ".0", []string{"ironvip.toml:11", "pool[0].cidrs[0]"}},
		{"an unknown mode", `mode = "` + mode, `mode = "ebpf`, []string{"ironvip.toml:7", "dataplane.mode", "auto"}},
		{"an unknown source", `[dataplane]`, "[[source]]\ntype = \"nomad\"\n[dataplane]", []string{"ironvip.toml:7", "source[0].type", "kubernetes"}},
		{"a source without an address", `[dataplane]`, "[[source]]\ntype = \"kubernetes\"\n[dataplane]", []string{"source[0].kubeconfig", "in_cluster"}},
	} {
		h.config("")
		text, err := os.ReadFile(filepath.Join(h.dir, "ironvip.toml"))
		if err != nil {
			t.Fatal(err)
		}
		changed := bytes.Replace(text, []byte(c.from), []byte(c.to), 1)
		if bytes.Equal(changed, text) {
			t.Fatalf("%s: %q is not in the configuration", c.what, c.from)
		}
		h.write("ironvip.toml", string(changed))
		r := h.cli("reload")
		if r.code != 1 {
			t.Errorf("%s: reload ends with %d, want 1", c.what, r.code)
		}
		mentions(t, c.what, r.stderr, c.says...)
		h.serves(web, "a")
	}
}

// A failed start is reported with the path and a hint.
func TestNoStart(t *testing.T) {
	parallel(t)
	h := newHost(t)
	file := filepath.Join(h.dir, "file")
	if err := os.WriteFile(file, []byte("a file\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	for _, c := range []struct {
		what, from, to string
		says           []string
	}{
		{"a socket below a file", h.dir + "/sock", file + "/sock", []string{file + "/sock", "api.socket"}},
		{"a socket where a file is", h.dir + "/sock", file, []string{file, "not a socket", "api.socket"}},
		{"a socket where nobody may write", h.dir + "/sock", "/proc/sock", []string{"/proc/sock", "api.socket"}},
		{"a socket with too long a path", h.dir + "/sock", h.dir + "/" + strings.Repeat("s", 120), []string{"api.socket", "107"}},
		{"a state directory that is a file", h.dir + "/state", file, []string{file, "node.state_dir"}},
		{"a state directory where nobody may write", h.dir + "/state", "/proc/state", []string{"/proc/state", "node.state_dir"}},
		{"a TCP port that is taken", "[dataplane]", "listen = \"" + busy.Addr().String() + "\"\n[dataplane]", []string{busy.Addr().String(), "api.listen"}},
	} {
		h.config("")
		text, err := os.ReadFile(filepath.Join(h.dir, "ironvip.toml"))
		if err != nil {
			t.Fatal(err)
		}
		h.write("ironvip.toml", strings.ReplaceAll(string(text), c.from, c.to))
		mentions(t, c.what, h.fails(), append(c.says, "hint: ")...)
	}
	r := command(t, "agent", "--config", h.dir+"/nowhere/at/all")
	if r.code != 1 {
		t.Errorf("a configuration that is not there: exit %d, want 1", r.code)
	}
	mentions(t, "a configuration that is not there", r.stderr, h.dir+"/nowhere/at/all", "hint: ")
	h.config("") // nothing of it prevents a start
	h.start()
}

// A second agent on the same state or the same socket gets an error with the path, and the first
// one is not affected.
func TestSecondAgent(t *testing.T) {
	parallel(t)
	h := newHost(t)
	a := newBackend(t, "a")
	h.write("services.d/web.toml", service("web", "", a))
	h.start()
	web := h.vip("web") + ":8080"
	second := newHost(t)
	second.edit("ironvip.toml", second.dir+"/state", h.dir+"/state")
	mentions(t, "the same state", second.fails(), filepath.Join(h.dir, "state", "ironvip.db"), "another ironvip agent", "hint: ")

	third := newHost(t)
	text, err := os.ReadFile(filepath.Join(third.dir, "ironvip.toml"))
	if err != nil {
		t.Fatal(err)
	}
	third.write("ironvip.toml", strings.Replace(string(text), third.dir+"/sock", h.dir+"/sock", 1))
	mentions(t, "the same socket", third.fails(), h.dir+"/sock", "another agent", "api.socket")
	h.serves(web, "a")
	h.ok("status", "--wait")
	// The first one's last good configuration is not that of the others.
	h.config("[log]\nlevle = \"info\"\n")
	h.kill()
	h.start()
	h.serves(web, "a")
}

// A damaged database is rejected with its path and a hint. Neither the file nor the kernel is
// changed. After the file is moved aside, the agent starts with a new one.
func TestDamagedDatabase(t *testing.T) {
	parallel(t)
	h := newHost(t)
	a := newBackend(t, "a")
	h.start()
	web := h.put("web", a) + ":8080"
	h.kill()
	path := filepath.Join(h.dir, "state", "ironvip.db")
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for what, bad := range map[string][]byte{
		"garbage":     bytes.Repeat([]byte("garbage "), 4096),
		"truncated":   good[:len(good)/2],
		"a few bytes": good[:100],
		"one page overwritten": func() []byte {
			bad := bytes.Clone(good)
			for page := 2; page < len(good)/4096; page++ { // after the two meta pages, whether in use or not
				copy(bad[page*4096:], bytes.Repeat([]byte{0xff}, 64))
			}
			return bad
		}(),
	} {
		if err := os.WriteFile(path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		mentions(t, what, h.fails(), path, "damaged", "hint: ", "backup", "move the file away")
		if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, bad) {
			t.Errorf("%s: the refused file was changed: %v", what, err)
		}
		if mode == "ipvs" {
			h.serves(web, "a") // by the kernel, without an agent
		}
	}
	if err := os.WriteFile(path, good, 0o600); err != nil {
		t.Fatal(err)
	}
	h.start()
	h.serves(web, "a")
	h.kill()
	if err := os.Rename(path, path+".aside"); err != nil {
		t.Fatal(err)
	}
	h.start()
	if out := h.ok("service", "list", "-o", "name"); out != "" {
		t.Errorf("services from a database that was moved away: %q", out)
	}
	r := h.cli("status")
	if r.code != 3 {
		t.Errorf("status ends with %d without the earlier database, want 3", r.code)
	}
	mentions(t, "status without the earlier database", r.stdout, path, "missing at the start", "backup")
	mentions(t, "events", h.ok("events"), "state_lost")
	h.kill()
	h.start()
	h.ok("status", "--wait")
}

// compact formats a JSON tree in one line.
func compact(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(b)
}
