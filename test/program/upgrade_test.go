//go:build system

package program

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A state file of format 1 is refused, unchanged, with the commands that move it. These commands
// keep the address of every service, the registrations and the overrides.
func TestUpgradeFromFormat1(t *testing.T) {
	h := newHost(t)
	text := func(name string) string {
		b, err := os.ReadFile(filepath.Join("testdata", "state-format-1", name))
		if err != nil {
			t.Fatal(err)
		}
		return strings.ReplaceAll(string(b), "127.96.0.", h.pool+".")
	}
	old := unzipped(t, filepath.Join("testdata", "state-format-1", "ironvip.db.gz"))
	state := filepath.Join(h.dir, "state", "ironvip.db")
	if err := os.Mkdir(filepath.Dir(state), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(state, old, 0o600); err != nil {
		t.Fatal(err)
	}
	h.write("services.d/services.toml", text("services.toml"))

	const moves = "ironvip vip export > vips.json; move the file away; with this one: ironvip snapshot restore vips.json"
	for command, says := range map[string]string{"agent": h.fails(), "doctor": command(t, "doctor", "--config", h.dir).stdout} {
		if !strings.Contains(says, "the state file has the format of an earlier version") || !strings.Contains(says, moves) {
			t.Errorf("%s does not explain the upgrade:\n%s", command, says)
		}
	}
	if now, err := os.ReadFile(state); err != nil || !bytes.Equal(now, old) {
		t.Errorf("the state file was changed (%v)", err)
	}

	if err := os.Rename(state, state+".old"); err != nil {
		t.Fatal(err)
	}
	snapshot := text("vips.json")
	file := filepath.Join(t.TempDir(), "vips.json")
	if err := os.WriteFile(file, []byte(snapshot), 0o600); err != nil {
		t.Fatal(err)
	}
	// The cooldown of the eighth lease has passed since.
	if r := command(t, "snapshot", "restore", file, "--config", h.dir); r.code != 0 || !strings.Contains(r.stderr, "restored 7 leases, 2 registrations, 1 override ") {
		t.Fatalf("restore: exit %d\n%s", r.code, r.stderr)
	}
	h.start()
	for name, want := range map[string]string{"web": ".18", "requested": ".200", "shared-a": ".17", "shared-b": ".17", "api": ".21"} {
		if got := h.vip(name); got != h.pool+want {
			t.Errorf("%s has %s, want %s", name, got, h.pool+want)
		}
	}
	if got := h.ok("vip", "list", "-o", "name"); !strings.Contains(got, "30086/tcp\n") {
		t.Errorf("the node port is not held:\n%s", got)
	}
	var before map[string]any
	if err := json.Unmarshal([]byte(snapshot), &before); err != nil {
		t.Fatal(err)
	}
	_, after := h.save("--addr", "unix://"+filepath.Join(h.dir, "sock"))
	if diff := cmp.Diff(held(before), held(after)); diff != "" {
		t.Errorf("leases differ (-before +after):\n%s", diff)
	}
	for _, part := range []string{"services", "states"} {
		if diff := cmp.Diff(before[part], after[part]); diff != "" {
			t.Errorf("%s differ (-before +after):\n%s", part, diff)
		}
	}
}

// held returns the holders of all leases of a snapshot that are not in cooldown, by resource.
func held(snapshot map[string]any) map[string]any {
	out := map[string]any{}
	for _, l := range snapshot["leases"].([]any) {
		if lease := l.(map[string]any); lease["state"] == "held" {
			out[lease["resource"].(string)] = lease["holders"]
		}
	}
	return out
}

func unzipped(t *testing.T, path string) []byte {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
