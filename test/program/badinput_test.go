//go:build system

package program

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
)

// A failed start is reported with the path and a hint, also if another agent has the state or the socket, which is not
// affected.
//
// Slow: an agent waits 3 s for the lock of a state file in use.
func TestNoStart(t *testing.T) {
	parallel(t)
	h := newHost(t)
	file := filepath.Join(h.dir, "file")
	must.Succeed(t, os.WriteFile(file, []byte("a file\n"), 0o644))
	busy := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
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
		text := must.Get(os.ReadFile(filepath.Join(h.dir, "ironvip.toml")))(t)
		h.write("ironvip.toml", strings.ReplaceAll(string(text), c.from, c.to))
		mentions(t, c.what, h.fails(), append(c.says, "hint: ")...)
	}
	r := command(t, "agent", "--config", h.dir+"/nowhere/at/all")
	expect.Equal(t, r.code, 1, "a configuration that is not there")
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
	good := must.Get(os.ReadFile(path))(t)
	bad := good[:2*os.Getpagesize()] // without the pages that its header names; the second half may have none in use
	must.Succeed(t, os.WriteFile(path, bad, 0o600))
	mentions(t, "the refusal", h.fails(), path, "damaged", "hint: ", "backup", "move the file away")
	if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, bad) {
		t.Errorf("the refused file was changed: %v", err)
	}
	must.Succeed(t, os.WriteFile(path, good, 0o600))
	h.start()
	h.serves(web, "a")
	h.kill()
	must.Succeed(t, os.Rename(path, path+".aside"))
	h.start()
	expect.Equal(t, h.ok("service", "list", "-o", "name"), "", "services from a database that was moved away")
	r := h.cli("status")
	expect.Equal(t, r.code, 3, "status without the earlier database")
	mentions(t, "status without the earlier database", r.stdout, path, "missing at the start", "backup")
	mentions(t, "events", h.ok("events"), "state_lost")
	h.kill()
	h.start()
	h.ok("status", "--wait")
}

// With IPVS configured on a kernel without it, the agent reports what is missing with a fix, and
// ends. Without a configured mode, it selects nft and reports the reason.
func TestNoIPVS(t *testing.T) {
	parallel(t)
	need.Root(t)
	if _, err := os.Stat("/proc/net/ip_vs"); err == nil {
		t.Log("this kernel has IPVS: TestUnprivilegedAgent has the refusal for want of rights")
		return
	}
	h, _ := newLab(t)
	h.edit("ironvip.toml", `mode = "proxy"`, `mode = "ipvs"`)
	mentions(t, "ipvs", h.fails(), `dataplane.mode = "ipvs"`, "ip_vs", "fix: ", "hint: ", `"auto"`)
	h.edit("ironvip.toml", `mode = "ipvs"`, `mode = "auto"`)
	h.start()
	mentions(t, "auto", h.ok("dataplane", "show"), "nft", "ip_vs")
	r := h.cli("doctor", "--config", h.dir)
	mentions(t, "doctor", r.stdout, "ip_vs", "the nft dataplane is used")
}
