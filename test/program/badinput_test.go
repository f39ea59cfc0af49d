//go:build system

package program

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A failed start is reported with the path and a hint, also if another agent has the state or the socket, which is not
// affected.
//
// Slow: an agent waits 3 s for the lock of a state file in use.
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
	other := newHost(t)
	other.start()
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
		{"the state of another agent", h.dir + "/state", other.dir + "/state", []string{filepath.Join(other.dir, "state", "ironvip.db"), "another ironvip agent"}},
		{"the socket of another agent", h.dir + "/sock", other.dir + "/sock", []string{other.dir + "/sock", "another agent", "api.socket"}},
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
	other.ok("status", "--wait")
	h.config("") // nothing of it prevents a start
	h.start()
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
	bad := good[:2*os.Getpagesize()] // without the pages that its header names; the second half may have none in use
	if err := os.WriteFile(path, bad, 0o600); err != nil {
		t.Fatal(err)
	}
	mentions(t, "the refusal", h.fails(), path, "damaged", "hint: ", "backup", "move the file away")
	if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, bad) {
		t.Errorf("the refused file was changed: %v", err)
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
