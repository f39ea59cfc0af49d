//go:build system || vm

package program

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The snapshot of a running agent equals the one of its store, and a restore into
// another store keeps the address of every service.
func TestSnapshotSaveAndRestore(t *testing.T) {
	h := newHost(t)
	a, b := newBackend(t, "a"), newBackend(t, "b")
	h.start()
	addresses := h.hoard(a, b)
	_, running := h.save("--addr", "unix://"+filepath.Join(h.dir, "sock"))
	file := filepath.Join(t.TempDir(), "vips.json")
	keep := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if r := command(t, "snapshot", "save", "--config", h.dir); r.code != 5 || !strings.Contains(r.stderr, "an agent runs") || r.stdout != "" {
		t.Errorf("save of an agent's store: exit %d %s%s", r.code, r.stdout, r.stderr)
	}
	h.stop()
	text, stopped := h.save("--config", h.dir)
	if got, want := len(stopped["leases"].([]any)), len(running["leases"].([]any)); got != want || got != 4 || len(stopped["services"].(map[string]any)) != 2 ||
		len(stopped["states"].(map[string]any)) != 1 {
		t.Errorf("the running agent has\n%v\nand its store\n%v", running, stopped)
	}
	keep(text)

	h.edit("ironvip.toml", "/state\"", "/state2\"")
	for _, c := range []struct {
		args string
		code int
		says string
	}{
		{"compare FILE", 10, "a restore would write 4 leases, 2 registrations, 1 override into the store bolt"},
		{"restore FILE", 0, "restored 4 leases, 2 registrations, 1 override into the store bolt"},
		{"restore FILE", 0, "restored 0 leases, 0 registrations, 0 overrides into the store bolt; 7 already present"},
		{"compare FILE", 0, "no differences: the store bolt already has 7 values"},
		{"restore", 2, "FILE is missing"},
		{"restore --none FILE", 2, "--none excludes FILE"},
		{"restore /nowhere", 1, "no such file"},
		{"restore FILE --config /nowhere/at/all", 1, "the configuration"},
	} {
		args := strings.Fields(strings.ReplaceAll(c.args, "FILE", file))
		if !strings.Contains(c.args, "--config") {
			args = append(args, "--config", h.dir)
		}
		if r := command(t, append([]string{"snapshot"}, args...)...); r.code != c.code || !strings.Contains(r.stderr, c.says) {
			t.Errorf("snapshot %s: exit %d, want %d and %q\n%s", c.args, r.code, c.code, c.says, r.stderr)
		}
	}
	h.start()
	h.kept(addresses, a, b)
	if r := command(t, "snapshot", "restore", file, "--config", h.dir); r.code != 5 || !strings.Contains(r.stderr, "an agent runs") {
		t.Errorf("restore while an agent runs: exit %d %s", r.code, r.stderr)
	}
	h.stop()

	// A store that has assigned the address to another service.
	h.edit("ironvip.toml", "/state2\"", "/state3\"")
	h.remove("services.d/web.toml")
	h.write("services.d/other.toml", service("other", `vips = ["`+addresses["late"]+`"]`, a))
	h.start()
	h.vip("other")
	h.stop()
	says := "lease " + addresses["late"] + " of late: the store has it for other"
	if r := command(t, "snapshot", "restore", file, "--config", h.dir); r.code != 5 || !strings.Contains(r.stderr, says) || !strings.Contains(r.stderr, "nothing restored") {
		t.Errorf("exit %d, want %q\n%s", r.code, says, r.stderr)
	}
	if r := command(t, "snapshot", "restore", file, "--config", h.dir, "--skip-conflicts"); r.code != 0 || !strings.Contains(r.stderr, says) || !strings.Contains(r.stderr, "restored 3 leases") {
		t.Errorf("exit %d\n%s", r.code, r.stderr)
	}

	keep(strings.Replace(text, `"held"`, `"hold"`, 1))
	if r := command(t, "snapshot", "restore", file, "--config", h.dir); r.code != 1 || !strings.Contains(r.stderr, file+": leases[0]: ") {
		t.Errorf("a file with a mistake: exit %d\n%s", r.code, r.stderr)
	}
}
