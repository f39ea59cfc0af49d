package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/command"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

// ofAPI returns a service that may be edited.
func ofAPI() v1.Service {
	s := web()
	s.Source, s.Origin = "rest", "api"
	one := 1
	s.Spec.Backends = []spec.Backend{{Address: "10.1.0.11", Weight: &one}, {Address: "10.1.0.12", Port: 8080, Weight: &one}}
	s.Status.Backends = []v1.BackendStatus{{ID: "10.1.0.11", Address: "10.1.0.11", Weight: 1, State: "ready", Usable: true}, {ID: "10.1.0.12:8080", Address: "10.1.0.12", Port: 8080, Weight: 1, State: "ready"}}
	return s
}

// editor returns an environment with an editor that runs a command of the shell for the file $1.
func editor(t *testing.T, line string) func(string) string {
	t.Helper()
	t.Setenv("TMPDIR", t.TempDir())
	script := filepath.Join(t.TempDir(), "editor")
	must.Succeed(t, os.WriteFile(script, []byte("#!/bin/sh\n"+line+"\n"), 0o755))
	return func(name string) string { return map[string]string{"EDITOR": script}[name] }
}

func left(t *testing.T) (files []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(os.Getenv("TMPDIR"), "ironvip-web-*.toml"))
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func TestServiceEdit(t *testing.T) {
	const path = "/v1/services/default/web"
	invalid := problem(422, v1.CodeInvalidService, "scheduler: unknown scheduler", "use wrr", v1.Problem{Code: vip.CodeInvalid, Field: "scheduler", Message: "unknown scheduler"})
	for _, c := range []struct {
		name   string
		editor string
		put    answer
		code   int
		says   []string
		puts   int
		left   string // what the file that is left has; "": there is none
	}{
		{name: "stored", editor: `sed -i 's/"wrr"/"wlc"/' "$1"`, put: answer{200, ofAPI()}, says: []string{"service web updated (revision 214), applied"}, puts: 1},
		{name: "not changed", editor: `echo '# a comment' >> "$1"`, says: []string{"service web not changed"}},
		{name: "a mistake", editor: `sed -i 's/scheduler = /schedular = /' "$1"`, code: command.ExitError, says: []string{"unknown key", "your text is in", "service apply -f"}, left: "schedular"},
		{name: "no TOML", editor: `echo 'x = ' >> "$1"`, code: command.ExitError, says: []string{"your text is in"}, left: "x = "},
		{name: "refused", editor: `sed -i 's/"wrr"/"wlc"/' "$1"`, put: answer{422, invalid}, code: command.ExitError, says: []string{"unknown scheduler", "your text is in"}, puts: 1, left: `"wlc"`},
		{name: "changed meanwhile", editor: `sed -i 's/"wrr"/"wlc"/' "$1"`, put: answer{412, problem(412, v1.CodePreconditionFailed, `service "web" was changed: its spec is at revision 211`, "GET it again")},
			code: command.ExitConflict, says: []string{"was changed", "your text is in"}, puts: 1, left: `"wlc"`},
		{name: "another name", editor: `sed -i 's/name = "web"/name = "other"/' "$1"`, code: command.ExitError, says: []string{"has the service other, not web"}, left: "other"},
		{name: "two services", editor: `printf '[[service]]\nname = "b"\nports = [{port = 1}]\n' >> "$1"`, code: command.ExitError, says: []string{"has 2 services, not one"}, left: `"b"`},
		{name: "stored, not applied", editor: `sed -i 's/"wrr"/"wlc"/' "$1"`, put: answer{504, problem(504, v1.CodeApplyTimeout, "service stored, but not applied within 30s", "")}, code: command.ExitError, says: []string{"not applied within"}, puts: 1, left: `"wlc"`},
		{name: "emptied", editor: `: > "$1"`, says: []string{"service web not changed"}},
		{name: "the editor removes the file", editor: `rm "$1"`, code: command.ExitError, says: []string{"no such file or directory"}},
		{name: "the editor fails", editor: `exit 3`, code: command.ExitError, says: []string{"exit status 3", "set VISUAL or EDITOR"}},
		{name: "the editor fails after a change", editor: `echo 'x' >> "$1"; exit 3`, code: command.ExitError, says: []string{"exit status 3", "your text is in"}, left: "x"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := newAgent(t)
			a.on("GET "+path, 200, ofAPI())
			a.on("PUT "+path, 0, func() answer { return c.put })
			r := a.runWith(t, Options{Environment: command.Environment{Getenv: editor(t, c.editor)}}, "service edit web")
			if r.code != c.code || r.stdout != "" {
				t.Errorf("exit code %d, want %d\n%s", r.code, c.code, r)
			}
			for _, s := range c.says {
				expect.Contains(t, r.stderr, s, "stderr does not say %q:\n", s)
			}
			puts := 0
			for _, q := range a.requests() {
				if strings.HasPrefix(q.Line, "PUT") {
					puts++
					expect.Equal(t, q.IfMatch, `"210.214"`, "precondition")
				}
			}
			expect.Equal(t, puts, c.puts, "puts")
			files := left(t)
			if (c.left != "") != (len(files) == 1) {
				t.Fatalf("files %q", files)
			}
			if c.left != "" {
				text, err := os.ReadFile(files[0])
				if err != nil || !strings.Contains(string(text), c.left) {
					t.Errorf("%v, the file has\n%s", err, text)
				}
			}
		})
	}
}

func TestServiceEditWithoutDirectory(t *testing.T) {
	a := newAgent(t)
	a.on("GET /v1/services/default/web", 200, ofAPI())
	env := editor(t, "exit 9")
	t.Setenv("TMPDIR", filepath.Join(t.TempDir(), "none"))
	if r := a.runWith(t, Options{Environment: command.Environment{Getenv: env}}, "service edit web"); r.code != command.ExitError || !strings.Contains(r.stderr, "hint: set TMPDIR") || strings.Contains(r.stderr, "your text") {
		t.Error(r)
	}
}

func TestServiceEditOfAnotherSource(t *testing.T) {
	a := newAgent(t)
	a.on("GET /v1/services/default/web", 200, web())
	if r := a.runWith(t, Options{Environment: command.Environment{Getenv: editor(t, "exit 9")}}, "service edit web"); r.code != command.ExitConflict || !strings.Contains(r.stderr, "services.d/web.toml:7") {
		t.Error(r)
	}
	if r := a.run(t, "backend weight web 10.1.0.11 3"); r.code != command.ExitConflict || !strings.Contains(r.stderr, "source static") {
		t.Error(r)
	}
}

func TestBackendWeight(t *testing.T) {
	for _, c := range []struct {
		command string
		code    int
		says    string
		weights string // of the definition that is stored; "": none
	}{
		{"backend weight web 10.1.0.12:8080 7", command.ExitOK, "backend web/10.1.0.12:8080 has weight 1 (revision 214), applied", "1 7"},
		{"backend weight web/10.1.0.12 7 --no-wait", command.ExitOK, "web/10.1.0.12:8080", "1 7"}, // the only one of the address
		{"backend weight web 10.1.0.11 0", command.ExitConflict, "last usable backend", ""},
		{"backend weight web 10.1.0.11 0 --force", command.ExitOK, "", "0 1"},
		{"backend weight web 10.1.0.12:8080 0", command.ExitOK, "", "1 0"},
		{"backend weight web 10.1.0.99 1", command.ExitNotFound, "has no backend 10.1.0.99", ""},
		{"backend weight web 10.1.0.11 65536", command.ExitUsage, "0 to 65535", ""},
		{"backend weight web 10.1.0.11 many", command.ExitUsage, "invalid weight", ""},
		{"backend weight web 10.1.0.11 -1", command.ExitUsage, `invalid weight "-1": must be 0 to 65535`, ""},
		{"backend weight web 10.1.0.11 -25 --force", command.ExitUsage, `invalid weight "-25"`, ""},
		{"backend weight web 10.1.0.11 1 -x", command.ExitUsage, "unknown shorthand flag: 'x'", ""},
		{"backend weight web 10.1.0.11", command.ExitUsage, "", ""},
	} {
		a := newAgent(t)
		a.on("GET /v1/services/default/web", 200, ofAPI())
		n := 0
		a.on("PUT /v1/services/default/web", 0, func() answer {
			if n++; n == 1 { // changed meanwhile
				return answer{412, problem(412, v1.CodePreconditionFailed, "changed", "")}
			}
			return answer{200, ofAPI()}
		})
		r := a.run(t, c.command)
		if r.code != c.code || !strings.Contains(r.stderr, c.says) {
			t.Errorf("%s: %s", c.command, r)
		}
		stored := ""
		for _, q := range a.requests() {
			var s v1.ServiceSpec
			if strings.HasPrefix(q.Line, "PUT") && json.Unmarshal([]byte(q.Body), &s) == nil {
				stored = strings.TrimSpace(strings.Join([]string{weightText(s.Backends[0]), weightText(s.Backends[1])}, " "))
			}
		}
		expect.Equal(t, stored, c.weights, "%s stored", c.command)
	}
}

func weightText(b spec.Backend) string {
	return string(rune('0' + *b.Weight))
}

func TestServiceWatch(t *testing.T) {
	a := newAgent(t)
	first, moved := web(), web()
	moved.Status.State = v1.StateDegraded
	quiet := moved
	quiet.Status.Summary = "the same line"
	late := db()
	a.on("GET /v1/services:watch", 200, []v1.ServiceChange{{Service: &first}, {Synced: true}, {Service: &moved}, {Service: &quiet}, {Service: &late}, {Deleted: "web"}})
	a.on("GET /v1/services:watch?label=a%3Db&service=web&service=none&source=rest", 200, []v1.ServiceChange{{Service: &first}, {Synced: true}})
	var all strings.Builder
	for _, line := range []string{"service watch", "service watch -o name", "service watch --only-changes", "service watch --only-changes -o json", "service watch web none --source rest -l a=b"} {
		r := a.run(t, line)
		if r.code != command.ExitUnreachable { // the canned stream ends
			t.Errorf("%s", r)
		}
		all.WriteString("$ ironvip " + line + "\n" + r.stdout)
		for l := range strings.Lines(r.stderr) {
			if strings.Contains(l, "waiting") {
				all.WriteString(l)
			}
		}
	}
	golden(t, "service_watch.txt", all.String())
}

// A watch of services that do not exist says that it waits, and writes nothing to stdout.
func TestServiceWatchOfNothing(t *testing.T) {
	a := newAgent(t)
	a.on("GET /v1/services:watch?label=a%3Db", 200, []v1.ServiceChange{{Synced: true}})
	for _, line := range []string{"service watch -l a=b", "service watch -l a=b --only-changes -o json"} {
		if r := a.run(t, line); r.stdout != "" || !strings.Contains(r.stderr, "no matching services yet: waiting") {
			t.Errorf("%s: %s", line, r)
		}
	}
}

// The definition has the backends that registered themselves only if it has others, and a message
// names them then.
func TestDefinitionOfRegisteredBackends(t *testing.T) {
	own, registered := v1.BackendStatus{ID: "10.1.0.11", Address: "10.1.0.11"}, v1.BackendStatus{ID: "10.1.0.12:80", Address: "10.1.0.12", Port: 80, TTL: "10s"}
	second := v1.BackendStatus{ID: "10.1.0.13:80", Address: "10.1.0.13", Port: 80, TTL: "10s"}
	removed := v1.BackendStatus{ID: "10.1.0.14:80", Address: "10.1.0.14", Port: 80, TTL: "10s", Removed: true}
	for _, c := range []struct {
		backends []v1.BackendStatus
		listed   bool
		names    string
	}{
		{[]v1.BackendStatus{own}, true, ""},
		{[]v1.BackendStatus{registered}, false, ""},
		{[]v1.BackendStatus{own, registered}, true, "note: service web: 10.1.0.12:80 registered with a ttl; an apply after it is gone would add it without one\n"},
		{[]v1.BackendStatus{own, registered, second, removed}, true,
			"note: service web: 10.1.0.12:80, 10.1.0.13:80 registered with a ttl; an apply after they are gone would add them without one\n"},
		{[]v1.BackendStatus{own, removed}, true, ""},
	} {
		s := ofAPI()
		s.Status.Backends = c.backends
		a := newAgent(t)
		a.on("GET /v1/services/default/web", 200, s)
		r := a.run(t, "service get web -o toml")
		if strings.Contains(r.stdout, "backends") != c.listed || r.stderr != c.names {
			t.Errorf("%+v:\n%s", c.backends, r)
		}
	}
}
