package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/internal/agent"

	"github.com/google/go-cmp/cmp"
)

func TestVIPExport(t *testing.T) {
	a := newAgent(t)
	a.on("GET /v1/export", 200, map[string]string{"format": "ironvip/export/1"})
	if r := a.run(t, "vip export"); r.code != ExitOK || !strings.Contains(r.stdout, "ironvip/export/1") || r.stderr != "" {
		t.Errorf("of an agent: %s", r)
	}
	a.on("GET /v1/export", 200, map[string]any{"format": "ironvip/export/1", "unreadable": []map[string]any{
		{"kind": "lease", "key": "192.0.2.10", "services": []string{"web"}, "message": "consul:ironvip/v1/tree/leases/192.0.2.10: not a value of ironvip's"},
		{"kind": "registration", "key": "default/db", "message": "consul:ironvip/v1/tree/services/default/db: cut"},
	}})
	if r := a.run(t, "vip export"); r.code != ExitDegraded || !strings.Contains(r.stdout, "unreadable") ||
		!strings.Contains(r.stderr, "lease 192.0.2.10 of web: consul:ironvip/v1/tree/leases/192.0.2.10") ||
		!strings.Contains(r.stderr, "registration default/db: consul:ironvip/v1/tree/services/default/db: cut") {
		t.Errorf("of a store with what can't be read: %s", r)
	}
	var asked agent.StoreRequest
	var fails error
	idle := Options{Export: func(_ context.Context, req agent.StoreRequest, to io.Writer) error {
		asked = req
		_, _ = io.WriteString(to, "{}")
		return fails
	}}
	for _, c := range []struct {
		line string
		want agent.StoreRequest
		err  error
		code int
		out  string
	}{
		{"--config /c --state-dir /s", agent.StoreRequest{Config: "/c", StateDir: "/s", Version: "0.1.0"}, nil, ExitOK, "{}"},
		{"--state-dir /s", agent.StoreRequest{Config: DefaultConfig, StateDir: "/s", Version: "0.1.0"}, nil, ExitOK, "{}"},
		{"--config /c", agent.StoreRequest{Config: "/c", Version: "0.1.0"}, &agent.OfflineError{Err: errors.New("an agent runs"), Cause: agent.CauseRunning, Hint: "stop it first"}, ExitConflict, ""},
		{"--addr unix:///nowhere/sock", agent.StoreRequest{}, nil, ExitUnreachable, ""},
	} {
		asked, fails = agent.StoreRequest{}, c.err
		if r := run(t, idle, "vip export "+c.line); r.code != c.code || r.stdout != c.out || asked != c.want {
			t.Errorf("%s: asked for %+v, %s", c.line, asked, r)
		}
	}
}

func TestVIPImport(t *testing.T) {
	file := filepath.Join(t.TempDir(), "vips.json")
	if err := os.WriteFile(file, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	clashes := []agent.ImportClash{{Kind: "lease", Name: "192.0.2.10", Service: "web", Message: "the store has it for api"}, {Kind: "registration", Name: "db", Service: "", Message: "the store has another service of this name"}}
	var asked agent.ImportRequest
	var all strings.Builder
	for _, c := range []struct {
		line string
		done agent.ImportResult
		err  error
		want agent.ImportRequest // without the file's
		code int
	}{
		{"FILE", agent.ImportResult{Store: "consul", Imported: true, Leases: 12, Services: 3, States: 1, Same: 4}, nil, agent.ImportRequest{}, ExitOK},
		{"FILE", agent.ImportResult{Store: "bolt", Imported: true, Leases: 1, Replaced: 7}, nil, agent.ImportRequest{}, ExitOK},
		{"FILE", agent.ImportResult{Store: "consul", Clashes: clashes}, nil, agent.ImportRequest{}, ExitConflict},
		{"FILE --skip-clashes", agent.ImportResult{Store: "consul", Imported: true, Leases: 1, Clashes: clashes}, nil, agent.ImportRequest{SkipClashes: true}, ExitOK},
		{"FILE", agent.ImportResult{Store: "consul", Imported: true, Clashes: clashes[:1]}, nil, agent.ImportRequest{}, ExitConflict}, // somebody was faster
		{"FILE --dry-run", agent.ImportResult{Store: "consul", Leases: 2}, nil, agent.ImportRequest{DryRun: true}, ExitChanges},
		{"FILE --dry-run", agent.ImportResult{Store: "consul", Same: 2}, nil, agent.ImportRequest{DryRun: true}, ExitOK},
		{"FILE --dry-run", agent.ImportResult{Store: "consul", Clashes: clashes}, nil, agent.ImportRequest{DryRun: true}, ExitConflict},
		{"--none", agent.ImportResult{Store: "consul"}, nil, agent.ImportRequest{None: true}, ExitOK},
		{"FILE", agent.ImportResult{}, &agent.OfflineError{Err: errors.New("an agent runs"), Cause: agent.CauseRunning, Hint: "stop it first"}, agent.ImportRequest{}, ExitConflict},
		{"FILE -o json", agent.ImportResult{Store: "consul", Clashes: clashes}, nil, agent.ImportRequest{}, ExitConflict},
	} {
		line := "vip import " + c.line
		r := run(t, Options{Import: func(_ context.Context, req agent.ImportRequest) (agent.ImportResult, error) {
			asked = req
			return c.done, c.err
		}}, strings.ReplaceAll(line, "FILE", file))
		c.want.Config = DefaultConfig
		if !c.want.None {
			c.want.Data, c.want.File = []byte("{}"), file
		}
		if r.code != c.code || !cmp.Equal(asked, c.want) {
			t.Errorf("%s: exit code %d, want %d; asked for %+v, want %+v", c.line, r.code, c.code, asked, c.want)
		}
		all.WriteString("$ ironvip " + line + "\n" + r.String())
	}
	golden(t, "vip_import.txt", all.String())
	for _, line := range []string{"", "a b", "--none a", "--none --skip-clashes"} {
		if r := run(t, Options{}, "vip import "+line); r.code != ExitUsage {
			t.Errorf("vip import %s: %s", line, r)
		}
	}
}
