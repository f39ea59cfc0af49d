//go:build program || vm

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

// block is one [[service]] on a port, in one backend's charge.
func block(name string, port int, more string, b *backend) string {
	return fmt.Sprintf("[[service]]\nname = %q\nports = [ { port = %d } ]\nbackends = [ %s ]\n%s\n", name, port, b.toml(), more)
}

// problems returns what the sources have to say, each with place and hint.
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

// mentions fails the test for each word that is not in the text.
func mentions(t *testing.T, what, text string, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("%s: %q is not said:\n%s", what, w, text)
		}
	}
}

// logs waits until the agent's log, which comes through a pipe, says all of this.
func (h *host) logs(words ...string) {
	h.t.Helper()
	h.eventually(fmt.Sprintf("the log says %q", words), func() error {
		for _, w := range words {
			if !strings.Contains(h.log.String(), w) {
				return fmt.Errorf("%q is not said", w)
			}
		}
		return nil
	})
}

// Whatever is wrong with a service is refused with place, field and remedy, at
// validate, at reload and in the source's status; the other service of the
// same file is served, and so is what was served before.
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
		{"a feature of later", block("BAD", 80, `health = {}`, a), 5, []string{"health", "does not support"}},
		{"a range of ports in reverse", "[[service]]\nname = \"BAD\"\nports = [ { port = \"90-80\" } ]\n", 3, []string{"ports[0].port", "ends before it begins", `write "80-90"`}},
	} {
		// The good one has a name and a place of its own in each round.
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
	h.write("services.d/bad.toml", "# all is well\n")
	h.ok("reload")
	h.ok("status", "--wait")
}

// A name that two files claim stays with the one that has it; the other is told
// both places, and takes over when the first goes.
func TestOneNameInTwoFiles(t *testing.T) {
	parallel(t)
	h := newHost(t)
	a, b := newBackend(t, "a"), newBackend(t, "b")
	h.write("services.d/m.toml", service("web", "", a))
	h.start()
	web := h.vip("web") + ":8080"
	h.write("services.d/a.toml", service("web", "", b)+service("api", "", b))
	r := h.cli("reload")
	if r.code == 0 {
		t.Error("reload is happy with one name twice")
	}
	mentions(t, "reload", r.stderr, "a.toml:1: ", "m.toml:1, too", "rename or remove")
	h.serves(h.vip("api")+":8080", "b")
	h.serves(web, "a")
	if code, tree := h.rest("PUT", "/v1/services/default/web", `{"ports":[{"port":80}]}`); code != 409 || !strings.Contains(compact(tree), "m.toml:1") {
		t.Errorf("the API takes a name that a file has: %d %s", code, compact(tree))
	}
	if err := os.Remove(filepath.Join(h.dir, "services.d", "m.toml")); err != nil {
		t.Fatal(err)
	}
	h.serves(web, "b")
}

// A service that asks for what it can't have waits, and its status names the
// field, the reason and the remedy. It gets nothing else instead.
func TestWaitingServices(t *testing.T) {
	parallel(t)
	h := newHost(t)
	a := newBackend(t, "a")
	h.config("exclude = [\"" + h.pool + ".64/26\"]\n")
	h.write("services.d/web.toml", service("web", "", a))
	h.start()
	web := h.vip("web")
	for i, c := range []struct {
		what, more string
		says       []string
	}{
		{"an address outside its pool", `vips = ["203.0.113.9"]`, []string{"203.0.113.9", "in no pool", "Hint: ", "wait.toml:1"}},
		{"an excluded address", `vips = ["` + h.pool + `.70"]`, []string{h.pool + ".70", "main", "excluded", "Hint: "}},
		{"the network's address", `vips = ["` + h.pool + `.0"]`, []string{h.pool + ".0", "Hint: "}},
		{"a taken address", `vips = ["` + web + `"]`, []string{web, "web", "Hint: "}},
		{"an unknown pool", `pool = "mian"`, []string{`"mian"`, "Hint: "}},
		{"a family that the pool lacks", `families = ["ipv6"]`, []string{"no IPv6 range", "main", "Hint: "}},
	} {
		name := fmt.Sprintf("wait%d", i)
		h.write("services.d/wait.toml", service(name, c.more)) // without backends: their family is another matter
		h.waits(name, c.says...)
		_, tree := h.rest("GET", "/v1/services/default/"+name, "")
		if vips, _ := tree["status"].(map[string]any)["vips"].([]any); len(vips) != 0 {
			t.Errorf("%s: it got %v instead", c.what, vips)
		}
		if r := h.cli("status"); r.code != 3 {
			t.Errorf("%s: status ends with %d, want 3\n%s", c.what, r.code, r.stdout)
		}
		h.serves(web+":8080", "a")
	}
}

// A service that is refused keeps its last good version.
func TestRefusedChangeKeepsLastGood(t *testing.T) {
	parallel(t)
	h := newHost(t)
	a, b := newBackend(t, "a"), newBackend(t, "b")
	h.write("services.d/all.toml", service("web", "", a)+service("api", "", a))
	h.start()
	web, api := h.vip("web")+":8080", h.vip("api")+":8080"
	h.write("services.d/all.toml", service("web", `scheduler_flags = "x"`, b)+service("api", "", b))
	r := h.cli("reload")
	mentions(t, "reload", r.stderr, "all.toml:6", "scheduler_flags", "last good version stays")
	h.serves(api, "b")
	h.serves(web, "a")
}

// Files that can't be read at all are named with the reason, keep what they
// had, and keep nobody else from being served. The agent neither waits for
// them nor reads gigabytes.
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
		{"a link to nowhere", func() error { return os.Symlink("/nowhere", made) }, []string{"web.toml", "/nowhere", "mend or remove the link"}},
		{"a device", func() error { return os.Symlink("/dev/zero", made) }, []string{"web.toml", "a device"}},
		{"deeply nested", func() error { return os.WriteFile(made, []byte("a = "+strings.Repeat("[", 100_000)), 0o644) }, []string{"web.toml:1"}},
		{"a misspelt header", func() error {
			return os.WriteFile(made, []byte(strings.Replace(service("web", "", b), "[[service]]", "[[servise]]", 1)), 0o644)
		}, []string{"web.toml:1", "did you mean [[service]]"}},
	} {
		// In one step: the file isn't missed meanwhile.
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
		other := fmt.Sprintf("other%d", i)
		h.write("services.d/other.toml", service(other, "", b))
		h.ok("source", "list")
		h.serves(h.vip(other)+":8080", "b")
		h.serves(web, "a")
	}
}

// sparse makes a file that is large in name only.
func sparse(path string, size int64) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Truncate(size), f.Close())
}

// A pool that overlaps a range of pods, or another pool, is never started
// with, and never taken over: both ranges are named with their lines.
func TestOverlaps(t *testing.T) {
	parallel(t)
	h := newHost(t)
	a := newBackend(t, "a")
	h.write("services.d/web.toml", service("web", "", a))
	podRange := "[ipam]\npod_cidrs = [\"" + h.pool + ".128/25\"]\n"
	secondPool := "[[pool]]\nname = \"second\"\ncidrs = [\"" + h.pool + ".64/26\"]\n"
	cases := []struct {
		what, more string
		says       []string
	}{
		{"pod range", podRange, []string{h.pool + ".0/24", h.pool + ".128/25", `"main"`, "ironvip.toml:"}},
		{"two pools", secondPool, []string{h.pool + ".0/24", h.pool + ".64/26", `"main"`, `"second"`, "ironvip.toml:"}},
	}
	for _, c := range cases {
		h.config(c.more)
		mentions(t, c.what+": start", h.fails(), c.says...)
		r := command(t, "config", "validate", h.dir)
		if r.code != 1 {
			t.Errorf("%s: validate ends with %d, want 1", c.what, r.code)
		}
		mentions(t, c.what+": validate", r.stdout+r.stderr, c.says...)
	}

	h.config("")
	h.start()
	web := h.vip("web") + ":8080"
	h.serves(web, "a")
	for _, c := range cases {
		h.config(c.more)
		r := h.cli("reload")
		if r.code != 1 {
			t.Errorf("%s: reload ends with %d, want 1", c.what, r.code)
		}
		mentions(t, c.what+": reload", r.stderr, c.says...)
		if pools := h.ok("pool", "list", "-o", "name"); pools != "main\n" {
			t.Errorf("%s: a refused reload changed the pools to %q", c.what, pools)
		}
		r = h.cli("status")
		if r.code != 3 {
			t.Errorf("%s: status ends with %d, want 3", c.what, r.code)
		}
		mentions(t, c.what+": status", r.stdout, "config", "ironvip config validate")
		h.serves(web, "a")
	}
	// Nor may what was good in the past paper over it.
	h.kill()
	mentions(t, "start with a remembered good one", h.fails(), cases[1].says...)
	h.config("")
	h.start()
	h.serves(web, "a")
}

// A bad ironvip.toml changes nothing at a reload, and at a start the last good
// one counts, loudly. Without one the agent says what is wrong, and ends.
func TestBadConfig(t *testing.T) {
	parallel(t)
	h := newHost(t)
	a := newBackend(t, "a")
	h.write("services.d/web.toml", service("web", "", a))
	h.config("[log]\nlevle = \"info\"\n")
	says := []string{"ironvip.toml:", "levle", `did you mean "level"`}
	mentions(t, "first start", h.fails(), says...)

	h.config("")
	h.start()
	web := h.vip("web") + ":8080"
	h.serves(web, "a")
	h.config("[log]\nlevle = \"info\"\n")
	r := h.cli("reload")
	if r.code != 1 {
		t.Errorf("reload ends with %d, want 1", r.code)
	}
	mentions(t, "reload", r.stderr, says...)
	h.serves(web, "a")
	h.kill()
	h.start()
	h.serves(web, "a")
	h.logs(says[1])
	r = h.cli("status")
	if r.code != 3 {
		t.Errorf("status ends with %d on a remembered configuration, want 3", r.code)
	}
	mentions(t, "status", r.stdout, "last good", "levle")
	h.config("")
	h.ok("reload")
	h.ok("status", "--wait")

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

// What keeps an agent from starting is said with the path and the remedy.
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
		{"a socket where a file is", h.dir + "/sock", file, []string{file, "no socket", "api.socket"}},
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
	h.config("") // none of it is in the way of a start
	h.start()
}

// A second agent on the same state or the same socket is refused by name, and
// the first one doesn't notice.
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
	// Nor is theirs what the first one falls back to.
	h.config("[log]\nlevle = \"info\"\n")
	h.kill()
	h.start()
	h.serves(web, "a")
}

// A database that is damaged is refused with its path and the remedy; it isn't
// touched, nor is what the kernel has. Moving it aside is a new start.
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
			for page := 2; page < len(good)/4096; page++ { // behind the two meta pages, whatever is in use
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
			h.serves(web, "a") // by the kernel, with no agent
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
}

// A services directory that vanishes keeps everything and is told as stale,
// until it is there again.
func TestVanishedDirectory(t *testing.T) {
	parallel(t)
	h := newHost(t)
	a, b := newBackend(t, "a"), newBackend(t, "b")
	h.write("services.d/web.toml", service("web", "", a))
	h.start()
	web := h.vip("web") + ":8080"
	dir := filepath.Join(h.dir, "services.d")
	if err := os.Rename(dir, dir+".away"); err != nil {
		t.Fatal(err)
	}
	var sources string
	h.eventually("the source is stale", func() error {
		sources = h.ok("source", "list")
		if !strings.Contains(sources, "stale") {
			return fmt.Errorf("%s", sources)
		}
		return nil
	})
	mentions(t, "source list", sources, dir, "no such file")
	if r := h.cli("status"); r.code != 3 || !strings.Contains(r.stdout, "stale") {
		t.Errorf("status ends with %d while a source is stale\n%s", r.code, r.stdout)
	}
	h.put("api", b) // the other source goes on
	h.serves(web, "a")
	// An empty one in its place is a mount that failed, more likely than a wish.
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	h.eventually("the empty one is noticed", func() error {
		if out := h.ok("source", "list"); !strings.Contains(out, "replaced by an empty one") {
			return fmt.Errorf("%s", out)
		}
		return nil
	})
	h.serves(web, "a")
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(dir+".away", dir); err != nil {
		t.Fatal(err)
	}
	h.write("services.d/web.toml", service("web", "", b))
	h.serves(web, "b")
	h.ok("status", "--wait")
}

// Two services that ask for one VIP and port: the first keeps it, the second
// waits and is told who has it; with one share_key they share the address, on
// different ports.
func TestOneVIPTwice(t *testing.T) {
	parallel(t)
	h := newHost(t)
	a, b, c := newBackend(t, "a"), newBackend(t, "b"), newBackend(t, "c")
	addr := h.pool + ".5"
	ask := `vips = ["` + addr + `"]`
	h.write("services.d/1.toml", block("first", 80, ask, a))
	h.start()
	h.serves(h.vip("first")+":80", "a")
	h.write("services.d/2.toml", block("second", 80, ask, b))
	h.write("services.d/3.toml", block("third", 81, ask, c))
	h.waits("second", addr, "first")
	h.waits("third", addr, "first", "share_key")
	h.serves(addr+":80", "a")

	share := ask + "\nshare_key = \"edge\""
	h.write("services.d/1.toml", block("first", 80, share, a))
	h.write("services.d/2.toml", block("second", 80, share, b))
	h.write("services.d/3.toml", block("third", 81, share, c))
	h.serves(addr+":81", "c")
	h.waits("second", "80", "first")
	h.serves(addr+":80", "a")
	h.write("services.d/2.toml", block("second", 82, share, b))
	h.serves(addr+":82", "b")
	h.serves(addr+":80", "a")
}

// waits waits until a service is pending or refused and its explanation says
// all of this.
func (h *host) waits(name string, says ...string) {
	h.t.Helper()
	h.eventually(name+" waits and says why", func() error {
		code, tree := h.rest("GET", "/v1/services/default/"+name, "")
		status, _ := tree["status"].(map[string]any)
		if state := status["state"]; code != 200 || state != "pending" && state != "refused" {
			return fmt.Errorf("%d %v", code, tree)
		}
		text := h.ok("service", "explain", name)
		for _, word := range says {
			if !strings.Contains(text, word) {
				return fmt.Errorf("%q is not said: %s", word, text)
			}
		}
		return nil
	})
}

// compact is a JSON tree in one line.
func compact(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// Services that no source reads are said in the log, at each start.
func TestServicesThatNobodyReads(t *testing.T) {
	parallel(t)
	h := newHost(t)
	h.write("services.d/web.toml", service("web", "", newBackend(t, "a")))
	h.config("")
	h.start()
	h.vip("web")
	if strings.Contains(h.log.String(), "services are not read") {
		t.Errorf("said where they are read:\n%s", h.log)
	}
	h.stop()
	h.config("[[source]]\ntype = \"static\"\nname = \"elsewhere\"\npath = \"elsewhere.d\"\n")
	if err := os.Mkdir(filepath.Join(h.dir, "elsewhere.d"), 0o755); err != nil {
		t.Fatal(err)
	}
	h.start()
	h.logs("services are not read", "dir="+filepath.Join(h.dir, "services.d"), "add a [[source]]")
}
