package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/agent/offline"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/command"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
	"github.com/ironvip/ironvip/test/expect"
)

func connectionList() []v1.Connection {
	return []v1.Connection{
		{Service: "web", Frontend: "192.0.2.10:80/tcp", Client: "198.51.100.7:40312", Backend: "10.1.0.11:8080", State: "ESTABLISHED", Expires: 898},
		{Service: "shop/db", Frontend: "[2001:db8::11]:5432/tcp", Client: "[2001:db8:1::9]:51112", Backend: "[2001:db8:2::21]:5432", State: "FIN_WAIT", Expires: 7},
		{Service: "web", Frontend: "192.0.2.10:80/tcp", Client: "198.51.100.7", Backend: "10.1.0.11:8080", State: "AFFINITY", Expires: 10799},
		{Service: "web", Frontend: "192.0.2.10:443/tcp", Client: "198.51.100.8:1024", Backend: "10.1.0.12:8443", State: "CONNECTING"},
	}
}

func TestConnectionsCommand(t *testing.T) {
	a := newAgent(t)
	a.on("GET /v1/dataplane/connections?limit=1001", 200, connectionList())
	a.on("GET /v1/dataplane/connections", 200, connectionList())
	a.on("GET /v1/dataplane/connections?limit=3&service=web", 200, connectionList()[:3])
	a.on("GET /v1/dataplane/connections?limit=1001&service=idle", 200, []v1.Connection{})
	a.on("GET /v1/dataplane/connections?limit=1001&service=none", 404, problem(404, v1.CodeNotFound, `service "none" does not exist`, "create it first"))
	a.on("GET /v1/dataplane/connections?limit=1001&service=torn", 200, append(connectionList()[:1], v1.Connection{Problem: &v1.Problem{Code: v1.CodeDataplane, Message: "the list is not complete: timed out"}}))
	var all strings.Builder
	for _, format := range output.Formats() {
		line := "dataplane connections -o " + string(format)
		all.WriteString("$ ironvip " + line + "\n" + a.run(t, line).String())
	}
	for _, line := range []string{"dataplane connections --limit 0", "dataplane conns --limit 2 --service web", "dataplane connections --service idle",
		"dataplane connections --service none", "dataplane connections --service torn", "dataplane connections --limit -1"} {
		all.WriteString("$ ironvip " + line + "\n" + a.run(t, line).String())
	}
	golden(t, "dataplane_connections.txt", all.String())
}

// A long list is printed in parts with one header, aligned with the widest cells so far.
func TestConnectionsInParts(t *testing.T) {
	const connectionsAtOnce = 500
	a := newAgent(t)
	list := make([]v1.Connection, 2*connectionsAtOnce+1)
	for i := range list {
		list[i] = connectionList()[0]
	}
	list[connectionsAtOnce] = connectionList()[1]
	a.on("GET /v1/dataplane/connections", 200, list)
	r := a.run(t, "dataplane connections --limit 0")
	lines := strings.Split(strings.TrimSpace(r.stdout), "\n")
	if len(lines) != 1+len(list) || strings.Count(r.stdout, "CLIENT") != 1 {
		t.Fatalf("%d lines, %d headers", len(lines), strings.Count(r.stdout, "CLIENT"))
	}
	column := func(line string) int { return strings.Index(line, "192.0.2.10:80/tcp") }
	if first, last := column(lines[1]), column(lines[len(lines)-1]); first != len("198.51.100.7:40312  ") || last != len("[2001:db8:1::9]:51112  ") {
		t.Errorf("the columns begin at %d and at %d", first, last)
	}
}

func TestSwitchCommand(t *testing.T) {
	a := newAgent(t)
	problem := v1.Problem{Code: "invalid", Field: "dataplane.mode", Place: "ironvip.toml:4", Message: `dataplane.mode = "ipvs" contradicts`, Hint: `set it to "auto"`}
	plan := v1.SwitchPlan{From: "ipvs", To: "proxy", Changes: true, Counted: true, HardStopAfter: 600, Refused: []v1.Problem{}, Problems: []v1.Problem{},
		Connections: []v1.SwitchConnections{{Protocol: "tcp", State: "ESTABLISHED", Connections: 41, Then: v1.SwitchEnds}, {Protocol: "udp", State: "UDP", Connections: 1, Then: v1.SwitchMoves}}}
	impossible := plan
	impossible.Problems, impossible.Refused = []v1.Problem{problem}, []v1.Problem{{Code: "unsupported", Service: "web", Field: "forward", Message: "proxy has no dr"}}
	for _, c := range []struct {
		flags string
		plan  v1.SwitchPlan
		code  int
	}{
		{"--plan", plan, command.ExitChanges},
		{"--plan", impossible, command.ExitError},
		{"--plan", v1.SwitchPlan{From: "proxy", To: "proxy"}, command.ExitOK},
		{"", v1.SwitchPlan{From: "proxy", To: "proxy"}, command.ExitOK},
		{"", v1.SwitchPlan{From: "proxy", To: "proxy", Problems: []v1.Problem{problem}}, command.ExitError},
		{"--no-wait", plan, command.ExitOK},
	} {
		query := "?mode=proxy"
		if c.flags == "--plan" {
			query = "?dry_run=true&mode=proxy"
		}
		a.on("POST /v1/dataplane/switch"+query, 200, c.plan)
		out := a.run(t, "dataplane switch proxy "+c.flags).String()
		if !strings.Contains(out, fmt.Sprintf("-- exit %d --", c.code)) && c.code != command.ExitOK || c.code == command.ExitOK && strings.Contains(out, "-- exit") && !strings.Contains(out, "-- exit 0 --") {
			t.Errorf("%s: want exit %d:\n%s", c.flags, c.code, out)
		}
		for _, p := range c.plan.Problems {
			if !strings.Contains(out, p.Place) || !strings.Contains(out, p.Hint) || c.plan.Changes && !strings.Contains(out, "proxy has no dr") {
				t.Errorf("the problem is missing:\n%s", out)
			}
		}
		if names := a.run(t, "dataplane switch proxy -o name "+c.flags); names.stdout != "proxy\n" || names.code != c.code || len(c.plan.Problems) > 0 && !strings.Contains(names.stderr, "error: "+problem.Place) {
			t.Errorf("-o name: %s", names)
		}
		if c.plan.Connections != nil && (!strings.Contains(out, "41 connections") || !strings.Contains(out, "end at once") || !strings.Contains(out, "move with their next datagram")) {
			t.Errorf("connections are missing:\n%s", out)
		}
	}
}

// The plan says whether the number of open connections is known.
func TestConnectionsOfASwitch(t *testing.T) {
	a := newAgent(t)
	for counted, want := range map[bool]string{true: "proxy has no open connections", false: "the open connections are not known yet"} {
		a.on("POST /v1/dataplane/switch?dry_run=true&mode=nft", 200, v1.SwitchPlan{From: "proxy", To: "nft", Changes: true, Counted: counted})
		expect.Contains(t, a.run(t, "dataplane switch nft --plan").stdout, want, "counted %v", counted)
	}
}

func TestRepairCommand(t *testing.T) {
	a := newAgent(t)
	failed := v1.Problem{Code: v1.CodeDataplane, Place: "192.0.2.12:80/tcp", Message: "add the service: no buffer space available"}
	var all strings.Builder
	for _, r := range []v1.RepairResult{
		{Items: []v1.DiffEntry{}, Problems: []v1.Problem{}},
		{Repaired: 3, Items: diff().Items, Problems: []v1.Problem{}},
		{Items: []v1.DiffEntry{}, Problems: []v1.Problem{failed}},
		{Repaired: 1, Items: diff().Items[:1], Problems: []v1.Problem{failed}},
	} {
		a.on("POST /v1/dataplane/repair", 200, r)
		for _, format := range []output.Format{output.Table, output.JSON, output.Name} {
			line := "dataplane repair -o " + string(format)
			all.WriteString("$ ironvip " + line + "\n" + a.run(t, line).String())
		}
	}
	golden(t, "dataplane_repair.txt", all.String())
}

// Both processes end during a switch: the command doesn't wait for ever.
func TestSwitchWithoutAnAgent(t *testing.T) {
	a := newAgent(t)
	a.on("POST /v1/dataplane/switch?mode=nft", 200, v1.SwitchPlan{From: "proxy", To: "nft", Changes: true})
	a.on("GET /v1/dataplane", 503, v1.ProblemDocument{Status: 503, Code: v1.CodeUnavailable, Detail: "gone"})
	if r := a.run(t, "dataplane switch nft --timeout 1s"); r.code != command.ExitError || !strings.Contains(r.stderr, "nft does not serve, and no agent has answered for 1s") {
		t.Errorf("%+v", r)
	}
}

// The output, request and exit code of "dataplane clean" for each result.
func TestDataplaneClean(t *testing.T) {
	items := []offline.CleanItem{{Kind: "address", Name: "192.0.2.10", Detail: "on ironvip0"}, {Kind: "service", Name: "192.0.2.10:80/tcp", Detail: "wrr, 2 backends"},
		{Kind: "setting", Name: "arp_announce of eth0", Detail: "0 before the announcer"}, {Kind: "table", Name: "inet ironvip", Detail: "nftables"}, {Kind: "device", Name: "ironvip0", Detail: ""}}
	left := []offline.CleanItem{{Kind: "service", Name: "192.0.2.99:80/tcp", Detail: "in a pool, and nothing says that it is ours"}}
	var asked offline.CleanRequest
	var all strings.Builder
	for _, c := range []struct {
		name, line string
		found      offline.CleanResult
		err        error
		want       offline.CleanRequest
		code       int
	}{
		{"found", "--dry-run", offline.CleanResult{Items: items, Left: left, Notes: []string{"there is no state file"}}, nil,
			offline.CleanRequest{Config: command.DefaultConfig, DryRun: true}, command.ExitChanges},
		{"removed", "--pools --force --config /c --state-dir /s", offline.CleanResult{Removed: true, Items: items, Notes: []string{"sysctls stay"}}, nil,
			offline.CleanRequest{Config: "/c", StateDir: "/s", Pools: true, Force: true}, command.ExitOK},
		{"nothing", "", offline.CleanResult{}, nil, offline.CleanRequest{Config: command.DefaultConfig}, command.ExitOK},
		{"only others' things", "--dry-run", offline.CleanResult{Left: left}, nil, offline.CleanRequest{Config: command.DefaultConfig, DryRun: true}, command.ExitOK},
		{"an agent runs", "", offline.CleanResult{}, &offline.Error{Err: errors.New("an agent runs"), Cause: offline.CauseRunning, Hint: "stop it first"}, offline.CleanRequest{Config: command.DefaultConfig}, command.ExitConflict},
	} {
		for _, format := range output.Formats() {
			line := strings.TrimSpace("dataplane clean " + c.line)
			if format != output.Table {
				if c.name != "found" {
					continue
				}
				line += " -o " + string(format)
			}
			r := run(t, Options{Clean: func(_ context.Context, req offline.CleanRequest) (offline.CleanResult, error) {
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
