package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/cmd/ironvip/cli/command"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/node"
	"github.com/ironvip/ironvip/test/must"

	"github.com/google/go-cmp/cmp"

	"github.com/ironvip/ironvip/agent/offline"
	"github.com/ironvip/ironvip/api/snapshot"
)

func TestSnapshotSave(t *testing.T) {
	a := newAgent(t)
	a.on("GET /v1/export", 200, map[string]string{"format": "ironvip/export/1"})
	if r := a.run(t, "snapshot save"); r.code != command.ExitOK || !strings.Contains(r.stdout, "ironvip/export/1") || r.stderr != "" {
		t.Errorf("of an agent: %s", r)
	}
	a.on("GET /v1/export", 200, map[string]any{"format": "ironvip/export/1", "unreadable": []map[string]any{
		{"kind": "lease", "key": "192.0.2.10", "services": []string{"web"}, "message": "consul:ironvip/v2/tree/leases/192.0.2.10: not a value of ironvip's"},
		{"kind": "registration", "key": "default/db", "message": "consul:ironvip/v2/tree/services/default/db: cut"},
	}})
	if r := a.run(t, "snapshot save"); r.code != command.ExitDegraded || !strings.Contains(r.stdout, "unreadable") ||
		!strings.Contains(r.stderr, "lease 192.0.2.10 of web: consul:ironvip/v2/tree/leases/192.0.2.10") ||
		!strings.Contains(r.stderr, "registration default/db: consul:ironvip/v2/tree/services/default/db: cut") {
		t.Errorf("of a store with what can't be read: %s", r)
	}
	var asked offline.StoreRequest
	var fails error
	idle := Options{Store: node.Store{Save: func(_ context.Context, req offline.StoreRequest, to io.Writer) error {
		asked = req
		_, _ = io.WriteString(to, "{}")
		return fails
	}}}
	for _, c := range []struct {
		line string
		want offline.StoreRequest
		err  error
		code int
		out  string
	}{
		{"--config /c --state-dir /s", offline.StoreRequest{Config: "/c", StateDir: "/s", Version: "0.1.0"}, nil, command.ExitOK, "{}"},
		{"--state-dir /s", offline.StoreRequest{Config: command.DefaultConfig, StateDir: "/s", Version: "0.1.0"}, nil, command.ExitOK, "{}"},
		{"--config /c", offline.StoreRequest{Config: "/c", Version: "0.1.0"}, &offline.Error{Err: errors.New("an agent runs"), Cause: offline.CauseRunning, Hint: "stop it first"}, command.ExitConflict, ""},
		{"--addr unix:///nowhere/sock", offline.StoreRequest{}, nil, command.ExitUnreachable, ""},
	} {
		asked, fails = offline.StoreRequest{}, c.err
		if r := run(t, idle, "snapshot save "+c.line); r.code != c.code || r.stdout != c.out || asked != c.want {
			t.Errorf("%s: asked for %+v, %s", c.line, asked, r)
		}
	}
}

func TestSnapshotRestore(t *testing.T) {
	file := filepath.Join(t.TempDir(), "vips.json")
	must.Succeed(t, os.WriteFile(file, []byte("{}"), 0o600))
	conflicts := []snapshot.Conflict{{Kind: "lease", Name: "192.0.2.10", Service: "web", Message: "the store has it for api"}, {Kind: "registration", Name: "db", Service: "", Message: "the store has another service of this name"}}
	var asked offline.RestoreRequest
	var all strings.Builder
	for _, c := range []struct {
		line string
		done offline.RestoreResult
		err  error
		want offline.RestoreRequest // without the file's
		code int
	}{
		{"restore FILE", offline.RestoreResult{Store: "consul", Restored: true, Result: snapshot.Result{Leases: 12, Services: 3, States: 1, Same: 4}}, nil, offline.RestoreRequest{}, command.ExitOK},
		{"restore FILE", offline.RestoreResult{Store: "bolt", Restored: true, Replaced: 7, Result: snapshot.Result{Leases: 1}}, nil, offline.RestoreRequest{}, command.ExitOK},
		{"restore FILE", offline.RestoreResult{Store: "consul", Result: snapshot.Result{Conflicts: conflicts}}, nil, offline.RestoreRequest{}, command.ExitConflict},
		{"restore FILE --skip-conflicts", offline.RestoreResult{Store: "consul", Restored: true, Result: snapshot.Result{Leases: 1, Conflicts: conflicts}}, nil, offline.RestoreRequest{SkipConflicts: true}, command.ExitOK},
		// Another host wrote at the same time.
		{"restore FILE", offline.RestoreResult{Store: "consul", Restored: true, Result: snapshot.Result{Conflicts: conflicts[:1]}}, nil, offline.RestoreRequest{}, command.ExitConflict},
		{"compare FILE", offline.RestoreResult{Store: "consul", Result: snapshot.Result{Leases: 2}}, nil, offline.RestoreRequest{DryRun: true}, command.ExitChanges},
		{"compare FILE", offline.RestoreResult{Store: "consul", Result: snapshot.Result{Same: 2}}, nil, offline.RestoreRequest{DryRun: true}, command.ExitOK},
		{"compare FILE", offline.RestoreResult{Store: "consul", Result: snapshot.Result{Leases: 1, Conflicts: conflicts}}, nil, offline.RestoreRequest{DryRun: true}, command.ExitConflict},
		{"restore --none", offline.RestoreResult{Store: "consul"}, nil, offline.RestoreRequest{None: true}, command.ExitOK},
		{"restore FILE", offline.RestoreResult{}, &offline.Error{Err: errors.New("an agent runs"), Cause: offline.CauseRunning, Hint: "stop it first"}, offline.RestoreRequest{}, command.ExitConflict},
		{"restore FILE -o json", offline.RestoreResult{Store: "consul", Result: snapshot.Result{Conflicts: conflicts}}, nil, offline.RestoreRequest{}, command.ExitConflict},
	} {
		line := "snapshot " + c.line
		r := run(t, Options{Store: node.Store{Restore: func(_ context.Context, req offline.RestoreRequest) (offline.RestoreResult, error) {
			asked = req
			return c.done, c.err
		}}}, strings.ReplaceAll(line, "FILE", file))
		c.want.Config = command.DefaultConfig
		if !c.want.None {
			c.want.Data, c.want.File = []byte("{}"), file
		}
		if r.code != c.code || !cmp.Equal(asked, c.want) {
			t.Errorf("%s: exit code %d, want %d; asked for %+v, want %+v", c.line, r.code, c.code, asked, c.want)
		}
		all.WriteString("$ ironvip " + line + "\n" + r.String())
	}
	golden(t, "snapshot.txt", all.String())
	for _, line := range []string{"restore", "restore a b", "restore --none a", "restore --none --skip-conflicts", "compare", "compare a b", "save a b"} {
		if r := run(t, Options{}, "snapshot "+line); r.code != command.ExitUsage {
			t.Errorf("snapshot %s: %s", line, r)
		}
	}
}

// A restore names what is wrong with the file, and with the configuration that names the store.
func TestSnapshotRestoreRefuses(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "vips.json")
	must.Succeed(t, os.WriteFile(file, []byte("{}"), 0o600))
	for line, says := range map[string]string{
		"restore " + file + " --config " + dir:          file + ": ",
		"restore --none --config " + dir + "/nowhere":   "the configuration, which names the store, can't be used",
		"restore " + dir + "/none.json --config " + dir: "no such file",
	} {
		if r := run(t, Options{}, "snapshot "+line); r.code != command.ExitError || !strings.Contains(r.stderr, says) {
			t.Errorf("%s: %s", line, r)
		}
	}
}

// A failed save leaves the previous file and no other files.
func TestSnapshotSaveToFile(t *testing.T) {
	a := newAgent(t)
	a.on("GET /v1/export", 200, map[string]string{"format": "ironvip/export/1"})
	dir := t.TempDir()
	file := filepath.Join(dir, "vips.json")
	for _, c := range []struct {
		line string
		code int
	}{
		{"snapshot save " + file, command.ExitOK},
		{"snapshot save " + file + " --addr unix:///nowhere/sock", command.ExitUnreachable},
		{"snapshot save " + filepath.Join(dir, "none", "vips.json"), command.ExitError},
	} {
		if r := a.run(t, c.line); r.code != c.code || r.stdout != "" {
			t.Errorf("%s: %s", c.line, r)
		}
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 1 {
		t.Errorf("%v in the directory, %v", files, err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if text, err := os.ReadFile(file); err != nil || !strings.Contains(string(text), "ironvip/export/1") {
		t.Errorf("%q, %v", text, err)
	}
}
