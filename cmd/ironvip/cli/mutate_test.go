package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/command"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/input"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
	"github.com/ironvip/ironvip/pipeline/compile"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip/spec"
)

const twoServices = `
[[service]]
name = "web"
ports = [ { port = 80, target_port = 8080, node_port = "auto" } ]
backends = [ { address = "10.1.0.11" }, { address = "10.1.0.12", weight = 50 } ]

[[service]]
name = "db"
namespace = "shop"
ports = [ { port = 5432 } ]
`

func applied() v1.ApplyResult {
	return v1.ApplyResult{Created: 1, Updated: 1, Unchanged: 1, Revision: 220, Items: []v1.ApplyItem{
		{Namespace: "default", Name: "web", Action: v1.Created, Revision: 219, VIPs: addrs("192.0.2.10")},
		{Namespace: "shop", Name: "db", Action: v1.Updated, Revision: 220, VIPs: addrs("192.0.2.11"),
			Problems: []v1.Problem{{Code: "pool_full", Message: "no free IPv6 address in pool public", Hint: "add a CIDR to the pool"}}},
		{Namespace: "default", Name: "same", Action: v1.Unchanged},
	}}
}

func TestMutatingCommands(t *testing.T) {
	file := filepath.Join(t.TempDir(), "two.toml")
	must.Succeed(t, os.WriteFile(file, []byte(twoServices), 0o644))
	drained := v1.Backend{Service: "web", Revision: 221, BackendStatus: v1.BackendStatus{ID: "10.1.0.13:8080", Address: "10.1.0.13", Port: 8080,
		Weight: 1, State: "drain", SourceState: "ready"}}
	back := v1.Backend{Service: "web", Revision: 222, BackendStatus: v1.BackendStatus{ID: "10.1.0.13:8080", Address: "10.1.0.13", Port: 8080,
		Weight: 0, State: "ready", Health: "healthy"}}
	sick := v1.Backend{Service: "web", Revision: 223, BackendStatus: v1.BackendStatus{ID: "10.1.0.12", Address: "10.1.0.12",
		Weight: 1, State: "ready", Health: "unhealthy", HealthReason: "timeout (3 of 3)"}}
	local := drained
	local.Local = true
	refused := applied()
	refused.Refused = 1
	refused.Items[2] = v1.ApplyItem{Namespace: "default", Name: "same", Action: v1.Refused, Problems: []v1.Problem{{Code: v1.CodeReadOnlySource,
		Service: "same", Message: "is defined by source static at services.d/same.toml:1", Hint: "change it there"}}}
	mixed := applied()
	mixed.Refused = 1
	mixed.Items[2] = v1.ApplyItem{Namespace: "default", Name: "same", Action: v1.Refused, Problems: []v1.Problem{{Code: "invalid", Service: "same", Message: "bad"}}}
	dry := v1.ApplyResult{DryRun: true, Items: applied().Items, Created: 1, Updated: 1, Unchanged: 1, Plan: new(v1.Plan)}
	*dry.Plan = plan()
	wrong := dry
	wrong.Plan = &v1.Plan{Changes: plan().Changes, Problems: []v1.Problem{{Code: "pool_exhausted", Service: "web", Message: "no address is free", Hint: "add a range"}}}

	var all strings.Builder
	for _, c := range []struct {
		command string // FILE stands for the file of services
		request string
		status  int
		answer  any
		code    int
	}{
		{"service apply -f FILE", "POST /v1/services:apply", 200, applied(), command.ExitOK},
		{"service apply -f FILE --no-wait", "POST /v1/services:apply", 200, applied(), command.ExitOK},
		{"service apply -f FILE -o name", "POST /v1/services:apply", 200, applied(), command.ExitOK},
		{"service apply -f FILE -o json", "POST /v1/services:apply", 207, refused, command.ExitConflict},
		{"service apply -f FILE", "POST /v1/services:apply", 207, mixed, command.ExitError},
		{"service apply -f FILE --atomic", "POST /v1/services:apply?atomic=true", 422,
			problem(422, v1.CodeInvalidService, "1 of 2 services invalid; nothing was changed", "correct it",
				v1.Problem{Code: "invalid", Service: "web", Field: "ports[0].port", Message: "invalid port 0: must be 1 to 65535"}), command.ExitError},
		{"service apply -f FILE", "POST /v1/services:apply", 422,
			problem(422, v1.CodeInvalidService, "1 of 1 service invalid; nothing was changed", "see errors",
				v1.Problem{Code: "name_taken", Service: "web", Field: "services[0].name", Message: `belongs to source "static"`, Hint: "change it there"}), command.ExitConflict},
		{"service apply -f FILE", "POST /v1/services:apply", 502,
			problem(502, v1.CodeApplyFailed, "service \"web\" stored, but not fully applied", "see errors; the agent keeps trying",
				v1.Problem{Code: "pool_full", Service: "web", Message: "no free address in pool public-v4"}), command.ExitError},
		{"service apply -f FILE --dry-run", "POST /v1/services:apply?dry_run=true", 200, dry, command.ExitChanges},
		{"service apply -f FILE --dry-run -o name", "POST /v1/services:apply?dry_run=true", 200, wrong, command.ExitError},
		{"service apply -f FILE", "POST /v1/services:apply", 504,
			problem(504, v1.CodeApplyTimeout, "stored as revision 220, but not in the dataplane within 30s", "ironvip dataplane show"), command.ExitError},
		{"service delete shop/db", "DELETE /v1/services/shop/db", 200, v1.Deleted{Service: "shop/db", Revision: 223, Applied: true}, command.ExitOK},
		{"service delete shop/db --no-wait -o yaml", "DELETE /v1/services/shop/db", 200, v1.Deleted{Service: "shop/db", Revision: 223}, command.ExitOK},
		{"service delete gone --ignore-not-found", "DELETE /v1/services/default/gone", 404, problem(404, v1.CodeNotFound, "no service gone", ""), command.ExitOK},
		{"service delete gone --ignore-not-found -o name", "DELETE /v1/services/default/gone", 404, problem(404, v1.CodeNotFound, "no service gone", ""), command.ExitOK},
		{"backend drain web 10.1.0.13:8080", "PUT /v1/services/default/web/backends/10.1.0.13:8080/state", 200, drained, command.ExitOK},
		{"backend maint web/10.1.0.13:8080 --no-wait", "PUT /v1/services/default/web/backends/10.1.0.13:8080/state", 200, drained, command.ExitOK},
		{"backend ready web 10.1.0.13:8080 -o name", "PUT /v1/services/default/web/backends/10.1.0.13:8080/state", 200, back, command.ExitOK},
		{"backend ready web 10.1.0.12 --no-wait", "PUT /v1/services/default/web/backends/10.1.0.12/state", 200, sick, command.ExitOK},
		{"backend maint web 10.1.0.13:8080 --force", "PUT /v1/services/default/web/backends/10.1.0.13:8080/state?force=true", 200, local, command.ExitOK},
		{"backend drain web 10.1.0.13:8080 --for 2h", "PUT /v1/services/default/web/backends/10.1.0.13:8080/state", 200, drained, command.ExitOK},
		{"backend drain web 10.1.0.13:8080", "PUT /v1/services/default/web/backends/10.1.0.13:8080/state", 409,
			problem(409, v1.CodeLastBackend, `10.1.0.13:8080 is the last usable backend of service "web": new connections would be refused`, "permit it with ?force=true"), command.ExitConflict},
		{"backend drain web 10.1.0.13:8080 --force", "PUT /v1/services/default/web/backends/10.1.0.13:8080/state?force=true", 200, drained, command.ExitOK},
		{"override clear web/10.1.0.13:8080", "DELETE /v1/overrides/default/web/10.1.0.13:8080", 200, v1.Deleted{Service: "web", Backend: "10.1.0.13:8080", Revision: 226, Applied: true}, command.ExitOK},
		{"override clear web canary", "DELETE /v1/overrides/default/web/canary", 200, v1.Deleted{Service: "web", Group: "canary", Revision: 226, Applied: true}, command.ExitOK},
		{"service weight web canary=30", "PUT /v1/services/default/web/groups/canary/weight", 200, v1.Group{Service: "web", Revision: 227, GroupStatus: v1.GroupStatus{Name: "canary", Weight: 30, SourceWeight: new(uint32(10)), Share: 25}}, command.ExitOK},
		{"service weight web canary=0", "PUT /v1/services/default/web/groups/canary/weight", 409, problem(409, v1.CodeLastBackend, "group canary has the last usable backends of service \"web\"", "-"), command.ExitConflict},
		{"override clear web/10.1.0.14", "DELETE /v1/overrides/default/web/10.1.0.14", 404, problem(404, v1.CodeNotFound, "backend 10.1.0.14 of service \"web\" has no override", "list overrides: ironvip override list"), command.ExitNotFound},
		{"vip reserve 192.0.2.41 --for web", "POST /v1/vips", 201, vips().Items[3], command.ExitOK},
		{"vip reserve --pool public-v4 -o name", "POST /v1/vips", 201, vips().Items[4], command.ExitOK},
		{"vip reserve 192.0.2.41", "POST /v1/vips", 409, problem(409, v1.CodeAddressTaken, `192.0.2.41 is held by service "db" of source static since 2026-11-08T12:00:00Z`, "choose another address"), command.ExitConflict},
		{"vip release 192.0.2.11", "DELETE /v1/vips/192.0.2.11", 200, vips().Items[1], command.ExitOK},
		{"vip release 192.0.2.41", "DELETE /v1/vips/192.0.2.41", 200, v1.VIP{Kind: v1.KindAddress, Address: "192.0.2.41", Pool: "public-v4", State: "free", Since: now, Holders: []v1.VIPHolder{}, Revision: 301}, command.ExitOK},
		{"vip release 192.0.2.10", "DELETE /v1/vips/192.0.2.10", 409, problem(409, v1.CodeAddressTaken, `192.0.2.10 is held by service "web" of source static since 2026-11-08T12:00:00Z, and is not reserved`, "delete the service"), command.ExitConflict},
		{"source resync static", "POST /v1/sources/static/resync", 200, sourceList().Items[1], command.ExitOK},
		{"reload --wait", "POST /v1/reload", 200, v1.ReloadResult{Revision: 224, Message: "1 pool added", Warnings: []v1.Problem{
			{Code: "restart", Field: "api.listen", Message: "waits for a restart", Hint: "systemctl restart ironvip"}}}, command.ExitOK},
		{"reload", "POST /v1/reload", 422, problem(422, v1.CodeInvalidConfig, "configuration invalid: the current one stays in effect", "ironvip config validate",
			v1.Problem{Code: "unknown_key", Place: "/etc/ironvip/ironvip.toml:3", Field: "pol", Message: "unknown key", Hint: `did you mean "pool"?`}), command.ExitError},
	} {
		a := newAgent(t)
		a.on(c.request, c.status, c.answer)
		r := a.run(t, strings.ReplaceAll(c.command, "FILE", file))
		expect.Equal(t, r.code, c.code, "%s: exit code\n%s", c.command, r)
		asked := a.requests()
		if len(asked) != 1 || asked[0].Line != c.request {
			t.Errorf("%s asked %+v, want only %s", c.command, asked, c.request)
			continue
		}
		wantPrefer := "wait=30"
		if strings.Contains(c.command, "--no-wait") || strings.Contains(c.command, "--dry-run") || strings.HasPrefix(c.command, "source") || strings.HasPrefix(c.command, "vip") ||
			strings.HasPrefix(c.command, "reload") {
			wantPrefer = ""
		}
		expect.Equal(t, asked[0].Prefer, wantPrefer, "%s: Prefer", c.command)
		all.WriteString("$ ironvip " + c.command + "\n" + r.String())
	}
	golden(t, "mutate.txt", all.String())
}

// The same services make the same request in every format.
func TestApplyReadsTOMLAndJSON(t *testing.T) {
	one := `{"name": "web", "ports": [{"port": 80}], "backends": [{"address": "10.1.0.11"}]}`
	for name, text := range map[string]string{
		"object.json": one,
		"list.json":   "\n[" + one + "]",
		"many.json":   `{"services": [` + one + `]}`,
		"one.toml":    "[[service]]\nname = \"web\"\nports = [ { port = 80 } ]\nbackends = [ { address = \"10.1.0.11\" } ]\n",
		"-":           " [ " + one + " ] ",
		"unnamed":     "[[service]]\nname = \"web\"\nports = [ { port = 80 } ]\nbackends = [ { address = \"10.1.0.11\" } ]\n",
	} {
		a := newAgent(t)
		a.on("POST /v1/services:apply", 200, v1.ApplyResult{Unchanged: 1, Items: []v1.ApplyItem{{Namespace: "default", Name: "web", Action: v1.Unchanged}}})
		o := Options{}
		file := name
		if name == "-" {
			o.Stdin = strings.NewReader(text)
		} else {
			file = filepath.Join(t.TempDir(), name)
			must.Succeed(t, os.WriteFile(file, []byte(text), 0o644))
		}
		if r := a.runWith(t, o, "service apply -f "+file); r.code != command.ExitOK {
			t.Errorf("%s:\n%s", name, r)
			continue
		}
		var sent v1.ApplyRequest
		must.Succeed(t, json.Unmarshal([]byte(a.requests()[0].Body), &sent))
		if len(sent.Services) != 1 {
			t.Errorf("%s sent %d services", name, len(sent.Services))
			continue
		}
		got, problems := sent.Services[0].Build("rest", "")
		want, _ := web2().Build("rest", "")
		if diff := cmp.Diff(want, got, cmp.Comparer(sameAddr)); diff != "" || len(problems) > 0 {
			t.Errorf("%s: %v (-want +got)\n%s", name, problems, diff)
		}
	}
}

// With errors in the input, nothing is sent, and every error is reported.
func TestApplyRefusesMistakesBeforeSending(t *testing.T) {
	for _, c := range []struct {
		name, text string
		says       []string // in addition to the number of mistakes
	}{
		{"bad.toml", "[[service]]\nname = \"web\"\nprots = []\nports = [ { port = 0 } ]\n", []string{"bad.toml:3: ", "bad.toml:4: "}},
		{"bad.json", `[{"name": "web", "ports": [{"port": 80}], "prot": 1}, {"name": "UP", "ports": [{"port": "9-1"}]}]`,
			[]string{"bad.json: services[0].prot: ", "bad.json: services[1].ports[0].port: "}},
		{"build.json", `{"services": [{"name": "UP", "ports": [{"port": 1}]}, {"name": "ok", "ports": [{"port": 1}], "scheduler": "best"}]}`,
			[]string{`build.json: service "UP": name: `, `build.json: service "ok": scheduler: `}},
		{"cut.json", "{\n\"name\": \"web\",", []string{"cut.json: not valid JSON near line 2"}},
		{"list.json", "[\n\n{\"name\": }]", []string{"list.json: not valid JSON near line 3"}},
		{"empty.toml", "# nothing\n", []string{"empty.toml: has no services"}},
		{"empty.json", "[]", []string{"empty.json: has no services"}},
		{"null.json", "null", []string{"null.json: "}},
	} {
		a := newAgent(t)
		file := filepath.Join(t.TempDir(), c.name)
		must.Succeed(t, os.WriteFile(file, []byte(c.text), 0o644))
		r := a.run(t, "service apply -f "+file)
		says := append(c.says, fmt.Sprintf("%s; nothing was changed\n", output.Plural(len(c.says), "mistake")))
		for _, s := range says {
			expect.Contains(t, r.stderr, s, "%s: stderr does not say %q:\n%s", c.name, s, r)
		}
		if r.code != command.ExitError || r.stdout != "" || len(a.requests()) != 0 {
			t.Errorf("%s: sent %v\n%s", c.name, a.requests(), r)
		}
	}
}

// The output of "service get" for programs is valid input of "service apply".
func TestGetPrintsWhatApplyReads(t *testing.T) {
	weight, drain := 5, spec.Duration(90*time.Second)
	full := media()
	full.Spec.Labels = map[string]string{"team/x": "a \"b\"\\", "on": "yes"}
	full.Spec.DrainTimeout, full.Spec.Forward, full.Spec.SchedulerFlags = &drain, "nat", nil
	full.Spec.Backends = []spec.Backend{{Address: "2001:db8::1", Port: 8080, Weight: &weight, State: "maint"}, {Address: "10.0.0.2", ForZones: []string{"a", "b"}}}
	full.Status.Backends = []v1.BackendStatus{{ID: "[2001:db8::1]:8080"}, {ID: "10.0.0.2"}}
	full.Spec.Ports[1].NodePort = spec.NodePort{Auto: true}
	registered := web()
	registered.Spec.Name, registered.Spec.Backends = "registered", []spec.Backend{{Address: "10.0.0.3"}}
	registered.Status.Backends = []v1.BackendStatus{{ID: "10.0.0.3", TTL: "10s"}, {ID: "10.0.0.4", Removed: true}}
	a := newAgent(t)
	a.on("GET /v1/services/default/media", 200, full)
	a.on("GET /v1/services/default/registered", 200, registered)
	want := []spec.Service{full.Spec, registered.Spec}
	want[1].Backends = nil
	for _, format := range []string{"toml", "json", "yaml"} {
		for names, want := range map[string][]spec.Service{"media registered": want, "media": want[:1]} {
			r := a.run(t, "service get "+names+" -o "+format)
			if r.code != command.ExitOK {
				t.Fatalf("%s: %s", format, r)
			}
			for _, file := range []string{"stdin", "x." + format} {
				got, problems := input.Services(file, []byte(r.stdout))
				expect.Empty(t, problems, "%s of %s: %v\n%s", format, names, problems, r.stdout)
				for i := range got { // the parsers fill in defaults; compare what is built
					g, _ := got[i].Build("rest", "")
					w, wrong := want[i].Build("rest", "")
					if len(wrong) > 0 || !compile.SameService(g, w) {
						t.Errorf("%s of %s: %+v, want %+v %v\n%s", format, names, g, w, wrong, r.stdout)
					}
				}
				expect.Equal(t, len(got), len(want), "%s of %s: %d services\n%s", format, names, len(got), r.stdout)
			}
		}
	}
	if r := a.run(t, "service list -o toml"); r.code != command.ExitUsage {
		t.Errorf("list -o toml: %s", r)
	}
}

// With --wait, a drain ends when the backend has no connections, or fails at the timeout.
//
// Slow: the command pauses between its questions, and one drain has a timeout of 1 s.
func TestDrainWaits(t *testing.T) {
	const path = "/v1/services/default/web/backends/10.1.0.13:8080"
	var all strings.Builder
	for _, c := range []struct {
		name    string
		status  int
		answers []any // the last one repeats
		code    int
		flags   string
	}{
		{"idle at once", 200, []any{open("drain", 0)}, command.ExitOK, ""},
		{"idle after some time", 200, []any{open("drain", 41), open("drain", 41), open("drain", 1), open("drain", 0)}, command.ExitOK, ""},
		{"connections remain", 200, []any{open("drain", 2)}, command.ExitDegraded, " --timeout 1s"},
		{"set to ready meanwhile", 200, []any{open("drain", 2), open("ready", 2)}, command.ExitDegraded, ""},
		{"removed meanwhile", 404, []any{problem(404, v1.CodeNotFound, "no backend", "")}, command.ExitOK, ""},
		{"a dataplane that can't be read", 503, []any{problem(503, v1.CodeDataplane, "count the connections of the dataplane: timed out", "")}, command.ExitError, ""},
	} {
		a := newAgent(t)
		a.on("PUT "+path+"/state", 200, v1.Backend{Service: "web", Revision: 221, BackendStatus: v1.BackendStatus{ID: "10.1.0.13:8080", State: "drain", SourceState: "ready"}})
		a.on("GET "+path+"/connections", c.status, func() any {
			next := c.answers[0]
			if len(c.answers) > 1 {
				c.answers = c.answers[1:]
			}
			return next
		})
		command := "backend drain web 10.1.0.13:8080 --wait" + c.flags
		r := a.run(t, command)
		expect.Equal(t, r.code, c.code, "%s: exit code\n%s", c.name, r)
		all.WriteString("# " + c.name + "\n$ ironvip " + command + "\n" + r.String())
	}
	golden(t, "drain_wait.txt", all.String())
}

func open(state string, n uint64) v1.BackendConnections {
	return v1.BackendConnections{Service: "web", Backend: "10.1.0.13:8080", State: state, Connections: n, Frontends: []v1.FrontendConnections{}}
}
