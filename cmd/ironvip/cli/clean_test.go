package cli

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
)

// refused is an error of the agent's side, with what it says of itself.
type refused struct{ error }

func (refused) ExitCode() int { return ExitConflict }
func (refused) Hint() string  { return "stop it first" }

func TestDataplaneClean(t *testing.T) {
	items := []CleanItem{{"address", "192.0.2.10", "on ironvip0"}, {"service", "192.0.2.10:80/tcp", "wrr, 2 backends"},
		{"table", "inet ironvip", "nftables"}, {"device", "ironvip0", ""}}
	left := []CleanItem{{"service", "192.0.2.99:80/tcp", "in a pool, and nothing says that it is ours"}}
	var asked CleanRequest
	var all strings.Builder
	for _, c := range []struct {
		name, line string
		found      CleanResult
		err        error
		want       CleanRequest
		code       int
	}{
		{"found", "--dry-run", CleanResult{Items: items, Left: left, Notes: []string{"there is no state file"}}, nil,
			CleanRequest{Config: DefaultConfig, DryRun: true}, ExitChanges},
		{"removed", "--pools --force --config /c --state-dir /s", CleanResult{Removed: true, Items: items, Notes: []string{"sysctls stay"}}, nil,
			CleanRequest{Config: "/c", StateDir: "/s", Pools: true, Force: true}, ExitOK},
		{"nothing", "", CleanResult{}, nil, CleanRequest{Config: DefaultConfig}, ExitOK},
		{"only others' things", "--dry-run", CleanResult{Left: left}, nil, CleanRequest{Config: DefaultConfig, DryRun: true}, ExitOK},
		{"an agent runs", "", CleanResult{}, refused{errors.New("an agent runs")}, CleanRequest{Config: DefaultConfig}, ExitConflict},
	} {
		for _, format := range output.Formats() {
			line := strings.TrimSpace("dataplane clean " + c.line)
			if format != output.Table {
				if c.name != "found" {
					continue
				}
				line += " -o " + string(format)
			}
			r := run(t, Options{Clean: func(_ context.Context, req CleanRequest) (CleanResult, error) {
				asked = req
				return c.found, c.err
			}}, line)
			if r.code != c.code || asked != c.want {
				t.Errorf("%s: exit code %d, want %d; asked for %+v, want %+v", c.name, r.code, c.code, asked, c.want)
			}
			all.WriteString("$ ironvip " + line + "\n" + r.String())
		}
	}
	golden(t, "dataplane_clean.txt", all.String())
}
