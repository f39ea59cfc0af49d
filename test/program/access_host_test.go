//go:build system

package program

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/authority"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/freeport"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
)

// remote runs a client command over TCP, with a token.
func (h *host) remote(addr, ca, token string, args ...string) result {
	h.t.Helper()
	file := filepath.Join(h.t.TempDir(), "token")
	must.Succeed(h.t, os.WriteFile(file, []byte(token+"\n"), 0o600))
	return command(h.t, append([]string{"--addr", addr, "--ca-file", ca, "--token-file", file}, args...)...)
}

// A token gives its holder a role over TLS, after kill -9 too, until it is revoked or expires. The
// exit code of a refusal is 7.
//
// Slow: a token expires after 2 s.
func TestTokensOverTLS(t *testing.T) {
	h := newHost(t)
	at := freeport.Reserve(t, nil, netip.MustParseAddr("127.0.0.1"))[1]
	listen := fmt.Sprintf("127.0.0.1:%d", at)
	ca := authority.New(t)
	caFile := filepath.Join(h.dir, "ca.pem")
	ca.WriteCert(t, caFile)
	ca.Server(t, []netip.Addr{netip.MustParseAddr("127.0.0.1")}).Write(t, filepath.Join(h.dir, "api.pem"), filepath.Join(h.dir, "api.key"))
	h.edit("ironvip.toml", "[dataplane]", "listen = \""+listen+"\"\ncert_file = \"api.pem\"\nkey_file = \"api.key\"\n[dataplane]")
	h.start()

	deploy := strings.TrimSpace(h.ok("token", "create", "deploy", "--role", "registrar", "--namespace", "shop"))
	soon := strings.TrimSpace(h.ok("token", "create", "soon", "--role", "viewer", "--expires", "2s"))
	url := "https://" + listen
	file := filepath.Join(h.dir, "shop.toml")
	for name, text := range map[string]string{"shop.toml": "namespace = \"shop\"\n", "other.toml": ""} {
		if err := os.WriteFile(filepath.Join(h.dir, name), []byte("[[service]]\nname = \"web\"\nports = [ { port = 80 } ]\n"+text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(r result, code int, says string) {
		t.Helper()
		if r.code != code || !strings.Contains(r.stdout+r.stderr, says) {
			t.Errorf("exit %d, want %d with %q:\n%s%s", r.code, code, says, r.stdout, r.stderr)
		}
	}
	expect(h.remote(url, caFile, deploy, "service", "apply", "-f", file), 0, "shop/web")
	expect(h.remote(url, caFile, deploy, "service", "apply", "-f", filepath.Join(h.dir, "other.toml")), 7, "registrar of shop")
	expect(h.remote(url, caFile, deploy, "reload"), 7, "needs the role operator")
	expect(h.remote(url, caFile, "ironvip_junk", "service", "list"), 7, "unknown token")
	expect(command(t, "--addr", url, "--ca-file", caFile, "service", "list"), 7, "needs a token")
	expect(h.remote("http://"+listen, caFile, deploy, "service", "list"), 6, "")
	h.eventually("the token expires", func() error {
		if r := h.remote(url, caFile, soon, "service", "list"); r.code != 7 || !strings.Contains(r.stderr, "expired") {
			return fmt.Errorf("exit %d: %s", r.code, r.stderr)
		}
		return nil
	})

	h.kill()
	h.start()
	expect(h.remote(url, caFile, deploy, "service", "list"), 0, "shop/web")
	expect(h.cli("token", "list"), 0, "shop")
	h.ok("token", "revoke", "deploy")
	expect(h.remote(url, caFile, deploy, "service", "list"), 7, "unknown token")
	if !strings.Contains(h.log.String(), `msg=audit`) || strings.Contains(h.log.String(), deploy) {
		t.Error("the log has no audit line, or it has a token")
	}
	for _, name := range []string{"ironvip.db", "ironvip.toml"} {
		for _, dir := range []string{h.dir, filepath.Join(h.dir, "state")} {
			if text, err := os.ReadFile(filepath.Join(dir, name)); err == nil && bytes.Contains(text, []byte(deploy)) {
				t.Errorf("%s/%s has the token", dir, name)
			}
		}
	}
}

// Another user of the host may do on the socket what a rule says, and nothing without one.
func TestUsersOnTheSocket(t *testing.T) {
	need.Root(t)
	h := newHost(t)
	h.edit("ironvip.toml", "[dataplane]", "socket_mode = \"0666\"\ninsecure_socket = true\n[[api.role]]\nrole = \"viewer\"\nuser = \"nobody\"\n[[api.role]]\nrole = \"operator\"\ngroup = \"daemon\"\n[[api.role]]\nrole = \"admin\"\nuser = \"absent-user\"\n[dataplane]")
	for _, dir := range []string{h.dir, filepath.Dir(h.dir)} {
		must.Succeed(t, os.Chmod(dir, 0o755))
	}
	h.start()
	h.status("WARN", "access", "user absent-user")
	const daemon, games = 1, 5
	for _, c := range []struct {
		name   string
		uid    uint32
		groups []uint32
		args   string
		code   int
	}{
		{"a viewer reads", nobody, nil, "service list", 0},
		{"a viewer does not reload", nobody, nil, "reload", 7},
		{"a member of a group reloads", games, []uint32{daemon}, "reload", 0},
		{"a user without a rule reads nothing", games, nil, "service list", 7},
	} {
		r := h.as(c.uid, c.groups, append([]string{"--addr", "unix://" + filepath.Join(h.dir, "sock")}, strings.Fields(c.args)...)...)
		expect.Equal(t, r.code, c.code, "%s: exit %d, want %d:\n%s%s", c.name, r.code, c.code, r.stdout, r.stderr)
	}
}
