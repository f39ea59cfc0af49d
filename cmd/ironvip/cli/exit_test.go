package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ironvip/ironvip/agent"
	"github.com/ironvip/ironvip/agent/offline"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/command"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

func TestExitCodes(t *testing.T) {
	for _, c := range []struct {
		name, command, request string
		status                 int
		answer                 any
		code                   int
		says                   []string // on stderr
	}{
		{"healthy", "status", "GET /v1/status", 200, healthyStatus(), command.ExitOK, nil},
		{"degraded", "status", "GET /v1/status", 200, nodeStatus(), command.ExitDegraded, nil},
		{"an error of the agent", "pool list", "GET /v1/pools", 500,
			problem(500, v1.CodeInternal, "something broke", ""), command.ExitError, []string{"error: something broke\n"}},
		{"request id when asked for", "pool list -v", "GET /v1/pools", 500,
			problem(500, v1.CodeInternal, "something broke", "look at the log"), command.ExitError,
			[]string{"agent at unix://SOCKET\n", "error: something broke (request req-1)\n", "hint: look at the log\n"}},
		{"usage: flag", "status --nope", "", 0, nil, command.ExitUsage, []string{"error: unknown flag: --nope\n", "hint: ironvip status --help\n"}},
		{"usage: argument", "service get", "", 0, nil, command.ExitUsage, []string{"hint: usage: ironvip service get NAME..."}},
		{"usage: command", "service lst", "", 0, nil, command.ExitUsage, []string{`hint: did you mean "ironvip service list"?`}},
		{"usage: group alone", "service", "", 0, nil, command.ExitUsage, []string{"command missing: use apply, delete, edit, explain, get, list"}},
		{"usage: format", "-o xml status", "", 0, nil, command.ExitUsage, []string{`error: invalid --output "xml": use table, wide, json, yaml or name` + "\n"}},
		{"usage: neither true nor false", "reload --dry-run=maybe", "", 0, nil, command.ExitUsage,
			[]string{`error: invalid --dry-run "maybe": use true or false` + "\n", "hint: ironvip reload --help\n"}},
		{"usage: number", "top -n few", "", 0, nil, command.ExitUsage, []string{`error: invalid --count "few": use a whole number` + "\n"}},
		{"usage: negative number", "events --since=-1", "", 0, nil, command.ExitUsage, []string{`error: invalid --since "-1": use a whole number from 0` + "\n"}},
		{"usage: duration", "status --timeout soon", "", 0, nil, command.ExitUsage, []string{`error: invalid --timeout "soon": use a duration such as 30s` + "\n"}},
		{"usage: dataplane", "dataplane switch junk", "", 0, nil, command.ExitUsage,
			[]string{`error: invalid argument "junk" for "ironvip dataplane switch": use ipvs, nft, proxy, off` + "\n", "hint: usage: ironvip dataplane switch ipvs|nft|proxy|off\n"}},
		{"usage: number of dataplanes", "dataplane switch ipvs nft", "", 0, nil, command.ExitUsage, []string{"error: ironvip dataplane switch: 2 arguments given\n"}},
		{"usage: schema", "config schema junk", "", 0, nil, command.ExitUsage, []string{`error: invalid argument "junk" for "ironvip config schema": use config, services, hook` + "\n"}},
		{"usage: service name", "service get UPPER", "", 0, nil, command.ExitUsage, []string{"error: service \"UPPER\" is not a DNS label", "hint: use NAME or NAMESPACE/NAME"}},
		{"usage: backend", "backend drain web nonsense", "", 0, nil, command.ExitUsage, []string{"hint: run ironvip backend list web"}},
		{"usage: backend left out", "backend drain web", "", 0, nil, command.ExitUsage, []string{"hint: run ironvip backend list web"}},
		{"usage: address", "--addr ftp://x status", "", 0, nil, command.ExitUsage, []string{"unix://PATH"}},
		{"usage: state", "service list --state fine", "", 0, nil, command.ExitUsage, []string{`--state "fine": use healthy, unchecked, elsewhere`}},
		{"usage: no address to get", "vip get web", "", 0, nil, command.ExitUsage, []string{`invalid address "web"`}},
		{"usage: nothing to reserve", "vip reserve", "", 0, nil, command.ExitUsage, []string{"no address: name one, or a pool with --pool"}},
		{"usage: an address and a pool", "vip reserve 192.0.2.9 --pool p", "", 0, nil, command.ExitUsage, []string{"--pool can't be combined"}},
		{"usage: an address and a family", "vip reserve 192.0.2.9 --family ipv4", "", 0, nil, command.ExitUsage, []string{"--family can't be combined"}},
		{"usage: family", "vip reserve --pool p --family ipx", "", 0, nil, command.ExitUsage, []string{`--family "ipx": use ipv4, ipv6`}},
		{"usage: no address to reserve", "vip reserve web", "", 0, nil, command.ExitUsage, []string{`invalid address "web"`}},
		{"usage: no address to release", "vip release web", "", 0, nil, command.ExitUsage, []string{`invalid address "web"`}},
		{"usage: service to reserve for", "vip reserve 192.0.2.9 --for A_B", "", 0, nil, command.ExitUsage, []string{"is not a DNS label", "NAME or NAMESPACE/NAME"}},
		{"usage: no service to reserve for", "vip reserve 192.0.2.9 --for=", "", 0, nil, command.ExitUsage, []string{"a name is needed"}},
		{"not reserved", "vip release 192.0.2.99", "DELETE /v1/vips/192.0.2.99", 404, problem(404, v1.CodeNotFound, "192.0.2.99 is not reserved", "list all leases: ironvip vip list"), command.ExitNotFound, []string{"192.0.2.99 is not reserved", "run ironvip vip list"}},
		{"reserved", "vip reserve 192.0.2.99", "POST /v1/vips", 409, problem(409, v1.CodeAddressTaken, "192.0.2.99 is reserved since 2026-11-08T12:00:00Z", "release it first"), command.ExitConflict, []string{"is reserved since", "release it first"}},
		{"no lease", "vip get 192.0.2.99", "GET /v1/vips/192.0.2.99", 404, v1.ProblemDocument{Status: 404, Code: v1.CodeNotFound, Detail: "no lease for 192.0.2.99"}, command.ExitNotFound, []string{"no lease for 192.0.2.99", "run ironvip vip list"}},
		{"usage: kind", "vip list --kind node_port", "", 0, nil, command.ExitUsage, []string{`--kind "node_port": use address, node-port`}},
		{"usage: timeout", "status --timeout 0", "", 0, nil, command.ExitUsage, []string{"--timeout 0s"}},
		{"not found", "service get gone", "GET /v1/services/default/gone", 404,
			problem(404, v1.CodeNotFound, `no service "gone"`, "create it first: ironvip service apply"), command.ExitNotFound, []string{"hint: run ironvip service list\n"}},
		{"forgotten", "node forget lb4", "DELETE /v1/nodes/lb4", 200, v1.NodeForgotten{Node: "lb4"}, command.ExitOK, []string{"node lb4 is forgotten\n"}},
		{"no such node", "node forget lb9", "DELETE /v1/nodes/lb9", 404,
			problem(404, v1.CodeNotFound, `no node "lb9"`, "list nodes: ironvip node list"), command.ExitNotFound, []string{"hint: run ironvip node list\n"}},
		{"node is present", "node forget lb1", "DELETE /v1/nodes/lb1", 409,
			problem(409, v1.CodeConflict, "node lb1 is present", "only a lost node can be forgotten"), command.ExitConflict, []string{"error: node lb1 is present\n", "hint: only a lost node"}},
		{"no fleet", "fleet status", "GET /v1/status", 200, healthyStatus(), command.ExitNotFound, []string{"no shared store", "hint: see the nodes"}},
		{"no such source", "source resync gone", "POST /v1/sources/gone/resync", 404,
			problem(404, v1.CodeNotFound, `no source "gone"`, "list them: ironvip source list"), command.ExitNotFound, []string{"hint: list them: ironvip source list\n"}},
		{"no such backend", "backend drain web 10.1.0.1", "PUT /v1/services/default/web/backends/10.1.0.1/state", 404,
			problem(404, v1.CodeNotFound, "no such backend", "register it"), command.ExitNotFound, []string{"hint: run ironvip backend list\n"}},
		{"no such backend and port", "backend drain web 10.1.0.1:80", "PUT /v1/services/default/web/backends/10.1.0.1:80/state", 404,
			problem(404, v1.CodeNotFound, "no such backend", "register it"), command.ExitNotFound, []string{"hint: run ironvip backend list\n"}},
		{"an older agent without the path is no missing object", "dataplane diff", "GET /v1/dataplane/diff", 404,
			problem(404, v1.CodeNoRoute, "no such path", ""), command.ExitError, nil},
		{"conflict", "service delete web", "DELETE /v1/services/default/web", 409,
			problem(409, v1.CodeReadOnlySource, `service "web" is defined by source static`, "change services.d/web.toml"), command.ExitConflict,
			[]string{"hint: change services.d/web.toml\n"}},
		{"changed meanwhile", "service delete web", "DELETE /v1/services/default/web", 412,
			problem(412, v1.CodePreconditionFailed, "changed meanwhile", ""), command.ExitConflict, nil},
		{"not permitted by the agent", "reload", "POST /v1/reload", 403,
			problem(403, v1.CodeForbiddenOrigin, "this host may not", ""), command.ExitNotPermitted, nil},
		{"diff", "dataplane diff", "GET /v1/dataplane/diff", 200, diff(), command.ExitChanges, nil},
		{"plan", "config plan", "POST /v1/config/plan", 200, plan(), command.ExitChanges, nil},
		{"plan with a problem", "config plan", "POST /v1/config/plan", 200,
			v1.Plan{Changes: plan().Changes, Problems: []v1.Problem{{Message: "bad"}}}, command.ExitError, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := newAgent(t)
			if c.request != "" {
				a.on(c.request, c.status, c.answer)
			}
			r := a.run(t, c.command)
			expect.Equal(t, r.code, c.code, "exit code\n%s", r)
			for _, s := range c.says {
				expect.Contains(t, r.stderr, s, "stderr does not say %q:\n", s)
			}
			if c.code == command.ExitUsage && (r.stdout != "" || len(a.requests()) != 0) {
				t.Errorf("a wrong command line made output or a request:\n%s", r)
			}
		})
	}
}

// Every flag of every command says in its own words what it takes.
func TestFlagsNameTheirValues(t *testing.T) {
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			err := cmd.Flags().Set(f.Name, "junk")
			if err == nil {
				return // takes any text, and is checked by its command
			}
			want := fmt.Sprintf("invalid --%s %q: use ", f.Name, "junk")
			if text := cmd.FlagErrorFunc()(cmd, err).Error(); !strings.HasPrefix(text, want) {
				t.Errorf("%s: %s", cmd.CommandPath(), text)
			}
		})
		for _, child := range cmd.Commands() {
			walk(child)
		}
	}
	walk(root())
}

func TestUnreachableNamesTheSocketAndWhatToDo(t *testing.T) {
	dir := t.TempDir()
	dead := filepath.Join(dir, "dead.sock") // left behind by a killed agent
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: dead, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	for _, path := range []string{filepath.Join(dir, "none.sock"), dead} {
		for _, line := range []string{"status", "service list -o json", "events --follow", "service delete web", "config plan"} {
			r := run(t, Options{}, "--addr unix://"+path+" "+line)
			if r.code != command.ExitUnreachable || r.stdout != "" {
				t.Errorf("%s: code %d, want %d\n%s", line, r.code, command.ExitUnreachable, r)
			}
			for _, s := range []string{path, "hint:", "systemctl status ironvip", command.EnvAddr} {
				expect.Contains(t, r.stderr, s, "%s: stderr does not say %q:\n", line, s)
			}
		}
	}
}

// Another program on the port is reported as not being an agent.
func TestNotAnAgent(t *testing.T) {
	a := newAgent(t)
	a.on("GET /v1/status", 404, "hello")
	if r := a.run(t, "status"); r.code != command.ExitUnreachable || !strings.Contains(r.stderr, "--addr") {
		t.Errorf("%s", r)
	}
}

// asNobody runs do without root's privileges if this process has them.
func asNobody(t *testing.T, do func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		do()
		return
	}
	const nobody = 65534
	must.Succeed(t, syscall.Setresuid(-1, nobody, -1))
	defer func() {
		if err := syscall.Setresuid(-1, 0, -1); err != nil {
			panic(err)
		}
	}()
	do()
}

func TestNotPermittedBySocket(t *testing.T) {
	a := newAgent(t)
	must.Succeed(t, os.Chmod(a.socket, 0))
	var r result
	asNobody(t, func() { r = a.run(t, "status") })
	if r.code != command.ExitNotPermitted || !strings.Contains(r.stderr, "SOCKET") || !strings.Contains(r.stderr, "hint: run as root, or join the group") {
		t.Errorf("%s", r)
	}
	start := time.Now()
	asNobody(t, func() { r = a.run(t, "status --wait --timeout 1m") })
	if r.code != command.ExitNotPermitted || time.Since(start) > 30*time.Second {
		t.Errorf("waited %v for rights that nobody gives:\n%s", time.Since(start), r)
	}
}

// stopFirst is an error as package offline returns it.
var stopFirst = &offline.Error{Err: errors.New("start the agent: pools overlap"), Cause: offline.CauseRunning, Hint: "change one of them"}

// worded wraps a problem and its cause, and has its own text.
type worded struct{}

func (worded) Error() string { return "state.db: in use by another agent" }
func (worded) Unwrap() []error {
	return []error{vip.Problem{Place: "state.db", Message: "in use by another agent", Hint: "stop it"}, errors.New("locked")}
}

func TestAgentCommandsErrors(t *testing.T) {
	for _, c := range []struct {
		err  error
		code int
		text string
	}{
		{nil, command.ExitOK, ""},
		{errors.New("plain"), command.ExitError, "error: plain\n"},
		{fmt.Errorf("run: %w", stopFirst), command.ExitConflict, "error: run: start the agent: pools overlap\nhint: change one of them\n"},
		{vip.Problem{Place: "ironvip.toml:3", Message: "bad", Hint: "fix it"}, command.ExitError, "error: ironvip.toml:3: bad\nhint: fix it\n"},
		{errors.Join(vip.Problem{Message: "one", Hint: "fix one"}, stopFirst), command.ExitError,
			"error: one\nhint: fix one\nerror: start the agent: pools overlap\nhint: change one of them\n"},
		{worded{}, command.ExitError, "error: state.db: in use by another agent\nhint: stop it\n"},
		{errors.New("can't work here\n  because\nhint: do this"), command.ExitError, "error: can't work here\n  because\nhint: do this\n"},
		{context.Canceled, command.ExitError, "error: interrupted\n"},
	} {
		r := run(t, Options{RunAgent: func(context.Context, agent.Options) error { return c.err }}, "agent")
		if r.code != c.code || r.stderr != c.text {
			t.Errorf("%v: code %d, stderr %q, want %d, %q", c.err, r.code, r.stderr, c.code, c.text)
		}
	}
}

func TestAddressFlagBeatsEnvironment(t *testing.T) {
	a := newAgent(t)
	a.on("GET /v1/status", 200, healthyStatus())
	env := func(name string) string { return map[string]string{command.EnvAddr: "unix:///nonexistent.sock"}[name] }
	if r := run(t, Options{Environment: command.Environment{Getenv: env}}, "status"); r.code != command.ExitUnreachable || !strings.Contains(r.stderr, "/nonexistent.sock") {
		t.Errorf("the environment is not used:\n%s", r)
	}
	if r := run(t, Options{Environment: command.Environment{Getenv: env}}, "status --addr "+a.socket); r.code != command.ExitOK {
		t.Errorf("the flag is not used:\n%s", r)
	}
	if r := run(t, Options{}, "status"); r.code != command.ExitUnreachable || !strings.Contains(r.stderr, v1.DefaultSocket) {
		t.Errorf("the default is not used:\n%s", r)
	}
}

// A command that waits for the agent ends at once if the agent refuses the caller.
func TestWaitsOfARefusedCaller(t *testing.T) {
	for _, status := range []int{http.StatusUnauthorized, http.StatusForbidden} {
		a := newAgent(t)
		refused := problem(status, v1.CodeForbidden, "no role", "")
		a.on("GET /v1/status", status, refused)
		a.on("GET /v1/dataplane", status, refused)
		a.on("POST /v1/dataplane/switch?mode=nft", 200, v1.SwitchPlan{From: "proxy", To: "nft", Changes: true})
		for _, line := range []string{"status --wait", "dataplane switch nft"} {
			begun := time.Now()
			if r := a.run(t, line+" --timeout 1h"); r.code != command.ExitNotPermitted || !strings.Contains(r.stderr, "no role") {
				t.Errorf("%s: %+v", line, r)
			}
			expect.AtMost(t, time.Since(begun), time.Minute, "%s took", line)
		}
	}
}

func TestStatusWait(t *testing.T) {
	a := newAgent(t)
	calls := 0
	a.on("GET /v1/status", 200, func() any {
		if calls++; calls < 2 {
			return nodeStatus()
		}
		return healthyStatus()
	})
	if r := a.run(t, "status --wait"); r.code != command.ExitOK || calls != 2 || !strings.Contains(r.stdout, "static 4 services\n") {
		t.Errorf("after %d calls:\n%s", calls, r)
	}
	a.on("GET /v1/status", 200, nodeStatus())
	r := a.run(t, "status --wait --timeout 50ms")
	for longer := time.Second; r.code == command.ExitUnreachable && longer < time.Minute; longer *= 2 { // on a busy machine, one response can take longer
		r = a.run(t, fmt.Sprintf("status --wait --timeout %s", longer))
	}
	if r.code != command.ExitDegraded || !strings.Contains(r.stdout, "2 warnings") {
		t.Errorf("a node that does not become healthy:\n%s", r)
	}
	start := time.Now()
	r = run(t, Options{}, "status --wait --timeout 50ms --addr unix:///nonexistent.sock")
	if r.code != command.ExitUnreachable || !strings.Contains(r.stderr, "/nonexistent.sock") {
		t.Errorf("no agent:\n%s", r)
	}
	if took := time.Since(start); took < 50*time.Millisecond || took > 20*time.Second {
		t.Errorf("waited for %v, want the timeout", took)
	}
	silent := make(chan struct{})
	defer close(silent)
	a.on("GET /v1/status", 200, func() any { <-silent; return healthyStatus() })
	r = a.run(t, "status --wait --timeout 50ms")
	if r.code != command.ExitUnreachable || !strings.Contains(r.stderr, "gave no answer in time") || !strings.Contains(r.stderr, "hint: a longer --timeout") {
		t.Errorf("an agent that doesn't answer:\n%s", r)
	}
}
