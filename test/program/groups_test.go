//go:build system

package program

import (
	"fmt"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
)

// All traffic moves to another group by one command, whatever the order of its words. A command with an unknown group changes
// nothing.
func TestTrafficMovesBetweenGroups(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	blue, green := newBackend(t, "blue"), newBackend(t, "green")
	group := func(b *backend, weight int) string {
		return fmt.Sprintf("[[service.groups]]\nname = %q\nweight = %d\nbackends = [ { address = \"127.0.0.1\", port = %d } ]\n", b.name, weight, b.port)
	}
	h.write("services.d/a.toml", "[[service]]\nname = \"web\"\nports = [ { port = 8080 } ]\nhealth = { type = \"none\" }\n"+group(blue, 100)+group(green, 0))
	h.start()
	at := h.vip("web") + ":8080"
	h.serves(at, "blue")
	h.ok("service", "weight", "web", "blue=0", "green=100")
	h.serves(at, "green")
	r := h.cli("service", "weight", "web", "blue=100", "gren=0")
	expect.Equal(t, r.code, 4, "exit code: not found")
	expect.True(t, strings.Contains(r.stderr, `no group "gren"`), "%s", r.stderr)
	h.serves(at, "green")
}
