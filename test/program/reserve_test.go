//go:build system

package program

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// leased waits until the list of leases has these lines.
func (h *host) leased(lines ...string) {
	h.t.Helper()
	h.eventually("the leases", func() error {
		out := h.ok("vip", "list")
		for _, line := range lines {
			if !strings.Contains(strings.Join(strings.Fields(out), " "), line) {
				return fmt.Errorf("no %q in\n%s", line, out)
			}
		}
		return nil
	})
}

// Reservations outlast kill -9, their service, and a move to another store. Only their services get
// the addresses.
func TestReservationsOutlastServiceAndKill(t *testing.T) {
	parallel(t)
	h := newHost(t)
	a := newBackend(t, "a")
	h.config("[ipam]\nreuse_delay = \"0s\"\n")
	h.write("services.d/web.toml", service("web", `drain_timeout = "0s"`, a))
	h.start()
	mine, free := h.vip("web"), h.pool+".200"
	h.ok("vip", "reserve", mine, "--for", "web")
	h.ok("vip", "reserve", free, "--for", "shop/api")
	plain := strings.TrimSpace(h.ok("vip", "reserve", "--pool", "main", "-o", "name"))
	h.kill()
	h.start()
	h.leased(mine+" main held, reserved web", free+" main reserved for shop/api", plain+" main reserved -")
	h.explains("web", "stays reserved after it")

	h.remove("services.d/web.toml")
	h.ok("reload", "--wait")
	h.leased(mine + " main reserved for web")
	h.write("services.d/thief.toml", service("thief", `vips = ["`+mine+`"]`, a))
	h.write("services.d/asks.toml", service("asks", `vips = ["`+plain+`"]`, a))
	h.ok("reload", "--wait")
	h.explains("thief", mine+` is reserved for service "web" since`)
	if got := h.vip("asks"); got != plain {
		t.Errorf("asks has %s, and requested %s", got, plain)
	}

	h.stop()
	file := filepath.Join(t.TempDir(), "snapshot.json")
	text, _ := h.save("--config", h.dir)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	h.edit("ironvip.toml", "/state\"", "/state2\"")
	if r := command(t, "snapshot", "restore", file, "--config", h.dir); r.code != 0 {
		t.Fatalf("restore: %s%s", r.stdout, r.stderr)
	}
	h.write("services.d/web.toml", service("web", "", a))
	h.start()
	if got := h.vip("web"); got != mine {
		t.Errorf("web has %s, not the reserved %s", got, mine)
	}
	h.serves(mine+":8080", "a")
	h.leased(mine+" main held, reserved web", free+" main reserved for shop/api", plain+" main held, reserved asks")
	h.kill()
	h.start()

	if r := h.cli("vip", "reserve", free); r.code != 5 || !strings.Contains(r.stderr, `is reserved for service "shop/api" since`) {
		t.Errorf("exit %d: %s", r.code, r.stderr)
	}
	h.ok("vip", "release", free)
	if r := h.cli("vip", "release", free); r.code != 4 {
		t.Errorf("exit %d: %s", r.code, r.stderr)
	}
	h.ok("vip", "release", mine)
	if r := h.cli("vip", "release", mine); r.code != 5 || !strings.Contains(r.stderr, `is held by service "web"`) {
		t.Errorf("exit %d: %s", r.code, r.stderr)
	}
	h.leased(mine + " main held web")
}
