package cli

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/agent"

	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
)

// The output, request and exit code of "dataplane clean" for each result.
func TestDataplaneClean(t *testing.T) {
	items := []agent.CleanItem{{Kind: "address", Name: "192.0.2.10", Detail: "on ironvip0"}, {Kind: "service", Name: "192.0.2.10:80/tcp", Detail: "wrr, 2 backends"},
		{Kind: "setting", Name: "arp_announce of eth0", Detail: "0 before the announcer"}, {Kind: "table", Name: "inet ironvip", Detail: "nftables"}, {Kind: "device", Name: "ironvip0", Detail: ""}}
	left := []agent.CleanItem{{Kind: "service", Name: "192.0.2.99:80/tcp", Detail: "in a pool, and nothing says that it is ours"}}
	var asked agent.CleanRequest
	var all strings.Builder
	for _, c := range []struct {
		name, line string
		found      agent.CleanResult
		err        error
		want       agent.CleanRequest
		code       int
	}{
		{"found", "--dry-run", agent.CleanResult{Items: items, Left: left, Notes: []string{"there is no state file"}}, nil,
			agent.CleanRequest{Config: DefaultConfig, DryRun: true}, ExitChanges},
		{"removed", "--pools --force --config /c --state-dir /s", agent.CleanResult{Removed: true, Items: items, Notes: []string{"sysctls stay"}}, nil,
			agent.CleanRequest{Config: "/c", StateDir: "/s", Pools: true, Force: true}, ExitOK},
		{"nothing", "", agent.CleanResult{}, nil, agent.CleanRequest{Config: DefaultConfig}, ExitOK},
		{"only others' things", "--dry-run", agent.CleanResult{Left: left}, nil, agent.CleanRequest{Config: DefaultConfig, DryRun: true}, ExitOK},
		{"an agent runs", "", agent.CleanResult{}, &agent.OfflineError{Err: errors.New("an agent runs"), Cause: agent.CauseRunning, Hint: "stop it first"}, agent.CleanRequest{Config: DefaultConfig}, ExitConflict},
	} {
		for _, format := range output.Formats() {
			line := strings.TrimSpace("dataplane clean " + c.line)
			if format != output.Table {
				if c.name != "found" {
					continue
				}
				line += " -o " + string(format)
			}
			r := run(t, Options{Clean: func(_ context.Context, req agent.CleanRequest) (agent.CleanResult, error) {
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
