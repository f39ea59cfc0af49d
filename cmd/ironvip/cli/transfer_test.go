package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

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
	var asked StoreRequest
	var fails error
	idle := Options{Export: func(_ context.Context, req StoreRequest, to io.Writer) error {
		asked = req
		_, _ = io.WriteString(to, "{}")
		return fails
	}}
	for _, c := range []struct {
		line string
		want StoreRequest
		err  error
		code int
		out  string
	}{
		{"--config /c --state-dir /s", StoreRequest{"/c", "/s"}, nil, ExitOK, "{}"},
		{"--state-dir /s", StoreRequest{DefaultConfig, "/s"}, nil, ExitOK, "{}"},
		{"--config /c", StoreRequest{"/c", ""}, refused{errors.New("an agent runs")}, ExitConflict, ""},
		{"--addr unix:///nowhere/sock", StoreRequest{}, nil, ExitUnreachable, ""},
	} {
		asked, fails = StoreRequest{}, c.err
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
	clashes := []ImportClash{{"lease", "192.0.2.10", "web", "the store has it for api"}, {"registration", "db", "", "the store has another service of this name"}}
	var asked ImportRequest
	var all strings.Builder
	for _, c := range []struct {
		line string
		done ImportResult
		err  error
		want ImportRequest // without the file's
		code int
	}{
		{"FILE", ImportResult{Store: "consul", Imported: true, Leases: 12, Services: 3, States: 1, Same: 4}, nil, ImportRequest{}, ExitOK},
		{"FILE", ImportResult{Store: "bolt", Imported: true, Leases: 1, Replaced: 7}, nil, ImportRequest{}, ExitOK},
		{"FILE", ImportResult{Store: "consul", Clashes: clashes}, nil, ImportRequest{}, ExitConflict},
		{"FILE --skip-clashes", ImportResult{Store: "consul", Imported: true, Leases: 1, Clashes: clashes}, nil, ImportRequest{SkipClashes: true}, ExitOK},
		{"FILE", ImportResult{Store: "consul", Imported: true, Clashes: clashes[:1]}, nil, ImportRequest{}, ExitConflict}, // somebody was faster
		{"FILE --dry-run", ImportResult{Store: "consul", Leases: 2}, nil, ImportRequest{DryRun: true}, ExitChanges},
		{"FILE --dry-run", ImportResult{Store: "consul", Same: 2}, nil, ImportRequest{DryRun: true}, ExitOK},
		{"FILE --dry-run", ImportResult{Store: "consul", Clashes: clashes}, nil, ImportRequest{DryRun: true}, ExitConflict},
		{"--none", ImportResult{Store: "consul"}, nil, ImportRequest{None: true}, ExitOK},
		{"FILE", ImportResult{}, refused{errors.New("an agent runs")}, ImportRequest{}, ExitConflict},
		{"FILE -o json", ImportResult{Store: "consul", Clashes: clashes}, nil, ImportRequest{}, ExitConflict},
	} {
		line := "vip import " + c.line
		r := run(t, Options{Import: func(_ context.Context, req ImportRequest) (ImportResult, error) {
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
