//go:build system

package browser

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
)

// token creates a token with the command, as an admin does.
func (a *agent) token(name string, args ...string) string {
	a.Helper()
	return strings.TrimSpace(a.command(append([]string{"token", "create", name}, args...)...))
}

// command runs a command of the binary on the agent's socket.
func (a *agent) command(args ...string) string {
	a.Helper()
	cmd := exec.Command(need.Binary(a), append([]string{"--addr", "unix://" + filepath.Join(a.dir, "sock")}, args...)...)
	out, err := cmd.Output()
	must.Succeed(a, err, "ironvip %q", args)
	return string(out)
}

// A user logs in with a token. Scripts can't read it, a viewer has no buttons, an operator has, and the page asks
// again once the token is revoked.
func TestLogin(t *testing.T) {
	t.Parallel()
	a := start(t, "")
	viewer, operator := a.token("eve", "--role", "viewer"), a.token("olga", "--role", "operator")
	a.write("services.d/web.toml", "[[service]]\nname = \"web\"\nports = [{ port = 80 }]\nbackends = [{ address = \"127.0.0.1\", port = 9 }]\n")
	a.command("reload")

	b := open(t, a.base, "/ui/services/default/web")
	b.see("h1", "Log in")
	b.accessible()
	b.valid()
	b.enter("#token", "ivt_wrong\r")
	b.see("[role=alert]", "token")
	b.enter("#token", "\b\b\b\b\b\b\b\b\b"+viewer+"\r")
	b.see("#backends", "127.0.0.1:9")
	b.see("header", "viewer")
	expect.False(t, eval[bool](b, "Boolean(document.querySelector('#backends button'))"), "a viewer has buttons")
	b.show("/ui/plan")
	b.see("main", "needs the role operator", "You are token eve with the role viewer", "ironvip token create", "ironvip config plan")
	expect.False(t, eval[bool](b, "Boolean(document.querySelector('main button'))"), "the plan of a viewer has buttons")
	b.accessible()
	b.valid()
	if seen := eval[string](b, "document.cookie + JSON.stringify(localStorage) + JSON.stringify(sessionStorage) + document.documentElement.outerHTML + location.href"); strings.Contains(seen, viewer) {
		t.Error("a script can read the token")
	}
	b.click(".leave")
	b.see("h1", "Log in")
	b.enter("#token", operator+"\r")
	b.see("header", "operator")
	b.show("/ui/services/default/web")
	b.see("#backends", "Drain")
	a.command("token", "revoke", "olga")
	b.see("h1", "Log in")
	b.see("[role=alert]", "no longer accepts")
}
