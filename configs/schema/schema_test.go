package schema

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/BurntSushi/toml"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/configs/reference"
	"github.com/ironvip/ironvip/hook"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/store"
	tables "github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/sources/static"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

// compiled returns a schema that a JSON Schema library has accepted by the rules of draft 2020-12.
func compiled(t *testing.T, name string, node Node) *jsonschema.Schema {
	t.Helper()
	text, err := json.Marshal(node)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	if err := c.AddResource(name, doc); err != nil {
		t.Fatal(err)
	}
	out, err := c.Compile(name)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// accepts reports whether a schema accepts a TOML document.
func accepts(t *testing.T, s *jsonschema.Schema, document string) error {
	t.Helper()
	tree := map[string]any{}
	if _, err := toml.Decode(document, &tree); err != nil {
		t.Fatalf("%v\n%s", err, document)
	}
	text, err := json.Marshal(tree)
	if err != nil {
		t.Fatal(err)
	}
	value, err := jsonschema.UnmarshalJSON(strings.NewReader(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	return s.Validate(value)
}

// The schema and the agent agree about documents of ironvip.toml.
func TestConfigSchema(t *testing.T) {
	s := compiled(t, "config.json", Config())
	sample, err := os.ReadFile("../ironvip.toml")
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, toml string
		refused    bool
	}{
		{name: "nothing"},
		{name: "the sample", toml: string(sample)},
		{name: "the sample with what it shows as comments", toml: regexp.MustCompile(`(?m)^# (\[\[.*|[a-z_]+ = .*)$`).ReplaceAllString(string(sample), "$1")},
		{name: "values of every form", toml: `
[health]
probers = 3
[ipam]
node_ports = "30000-30999"
pod_cidrs = ["10.244.0.0/16", "fd00::/48"]
[announce]
peers = ["10.0.0.2", "[2001:db8::2]:7481"]
[dns]
listen = ["127.0.0.1:8653", "[::1]:8653"]
allow = ["10.0.0.0/8", "192.0.2.1"]
`},
		{name: "unknown table", toml: "[nodes]\n", refused: true},
		{name: "unknown key", toml: "[node]\nnme = \"x\"\n", refused: true},
		{name: "a number for a text", toml: "[node]\nname = 1\n", refused: true},
		{name: "a text for a flag", toml: "[api]\npublic_metrics = \"yes\"\n", refused: true},
		{name: "an unknown word", toml: "[dataplane]\nmode = \"lvs\"\n", refused: true},
		{name: "an unknown level", toml: "[log]\nlevel = \"loud\"\n", refused: true},
		{name: "an unknown word of a source", toml: "[[source]]\ntype = \"kubernetes\"\nin_cluster = true\nip_mode = \"pod\"\n", refused: true},
		{name: "a number out of bounds", toml: "[api]\nrate_limit = 0\n", refused: true},
		{name: "a name with a space", toml: "[node]\nzone = \"rack 7\"\n", refused: true},
		{name: "no duration", toml: "[ipam]\nreuse_delay = \"soon\"\n", refused: true},
		{name: "a number of seconds", toml: "[ipam]\nreuse_delay = 5\n", refused: true},
		{name: "no range of ports", toml: "[ipam]\nnode_ports = \"30000\"\n", refused: true},
		{name: "no file mode", toml: "[api]\nsocket_mode = \"rw\"\n", refused: true},
		{name: "pool without ranges", toml: "[[pool]]\nname = \"a\"\n", refused: true},
		{name: "range without a length", toml: "[[pool]]\nname = \"a\"\ncidrs = [\"192.0.2.0\"]\n", refused: true},
		{name: "a table for a list", toml: "[pool]\nname = \"a\"\n", refused: true},
		{name: "source without a type", toml: "[[source]]\nname = \"a\"\n", refused: true},
		{name: "key of another type of source", toml: "[[source]]\ntype = \"static\"\npath = \"services.d\"\ntag = \"x\"\n", refused: true},
		{name: "a program and a webhook", toml: "[[hook]]\nname = \"a\"\nevents = [\"vip_*\"]\ncommand = [\"/bin/x\"]\n[[hook]]\nname = \"b\"\nevents = [\"*\"]\nurl = \"https://a.example\"\ntimeout = \"1s\"\n"},
		{name: "hook without events", toml: "[[hook]]\nname = \"a\"\ncommand = [\"/bin/x\"]\n", refused: true},
		{name: "unknown role", toml: "[[api.role]]\nrole = \"root\"\nuser = \"a\"\n", refused: true},
	} {
		if _, all := configs.Shapes()["kubernetes"]; !all && strings.Contains(tc.name, "comments") {
			continue // a build without Kubernetes refuses such a source
		}
		_, problems := configs.Parse(filepath.Join(t.TempDir(), configs.ConfigName), []byte(tc.toml))
		err := accepts(t, s, tc.toml)
		if (err != nil) != tc.refused || !strings.Contains(tc.name, "comments") && (len(problems) > 0) != tc.refused {
			t.Errorf("%s: the schema says %v, the agent says %v, refused should be %v", tc.name, err, problems, tc.refused)
		}
	}
}

// The schema and the agent agree about files of services.d, with every word of a field.
func TestServicesSchema(t *testing.T) {
	s := compiled(t, "services.json", Services())
	sample, err := os.ReadFile("../services.d/example.toml")
	if err != nil {
		t.Fatal(err)
	}
	service := func(more string) string {
		return "[[service]]\nname = \"web\"\nports = [{ port = 80 }]\n" + more + "\n"
	}
	for _, tc := range []struct {
		toml    string
		refused bool
	}{
		{toml: ""},
		{toml: string(sample)},
		{toml: service("")},
		{toml: "[[service]]\nname = \"web\"\nports = [{ port = \"10000-10099\" }, { port = \"all\", protocol = \"udp\" }, { port = 80, protocol = \"sctp\", node_port = \"auto\" }]\n"},
		{toml: "[[service]]\nname = \"web\"\nports = [{ port = 80, node_port = 30000, target_port = 8080, name = \"http\" }]\n"},
		{toml: service("affinity = {}")},
		{toml: service("affinity = { timeout = \"1h30m\" }\nlabels = { team = \"shop\" }\ndrain_timeout = \"0s\"")},
		{toml: service("health = { type = \"http\", path = \"/healthz\", rise = 2 }\nbackends = [{ address = \"10.1.0.1\", weight = 0, backup = true, state = \"maint\" }]")},
		{toml: "[[service]]\nports = [{ port = 80 }]\n", refused: true},
		{toml: "[[service]]\nname = \"web\"\n", refused: true},
		{toml: service("prot = \"tcp\""), refused: true},
		{toml: service("affinity = { time = \"1h\" }"), refused: true},
		{toml: service("backends = [\"10.1.0.1\"]"), refused: true},
		{toml: service("backends = [{ port = 80 }]"), refused: true},
		{toml: service("labels = { team = 1 }"), refused: true},
		{toml: service("max_connections = \"5\""), refused: true},
		{toml: service("health = { path = \"/\" }"), refused: true},
		{toml: "[[service]]\nname = \"web\"\nports = [{ port = 65536 }]\n", refused: true},
		{toml: "[[service]]\nname = \"web\"\nports = [{ port = 80, node_port = \"on\" }]\n", refused: true},
		{toml: "[services]\n", refused: true},
	} {
		file := static.ParseServices("web.toml", []byte(tc.toml), "static", nil)
		err := accepts(t, s, tc.toml)
		if (err != nil) != tc.refused || (len(file.Problems) > 0) != tc.refused {
			t.Errorf("the schema says %v, the agent says %v, refused should be %v\n%s", err, file.Problems, tc.refused, tc.toml)
		}
	}
	for shape, keys := range words {
		if shape.Name() != "Service" {
			continue
		}
		for key, of := range keys {
			for _, word := range append([]string{"junk"}, of...) {
				value := `"` + word + `"`
				if key == "families" || key == "scheduler_flags" {
					value = "[" + value + "]"
				}
				document := service(key + " = " + value)
				refused := false
				for _, p := range static.ParseServices("web.toml", []byte(document), "static", nil).Problems {
					refused = refused || strings.Contains(p.Message, "is not a")
				}
				if err := accepts(t, s, document); (err != nil) != refused || refused != (word == "junk") {
					t.Errorf("%s = %s: the schema says %v, the agent refuses it: %v", key, value, err, refused)
				}
			}
		}
	}
}

// The schema and the agent know the same words in the parts of a service.
func TestWords(t *testing.T) {
	services := compiled(t, "services.json", Services())
	documents := map[string]string{ // by the struct: %s is "key = value"
		"Port":        "[[service]]\nname = \"web\"\nports = [{ port = 80, %s }]\n",
		"Backend":     "[[service]]\nname = \"web\"\nports = [{ port = 80 }]\nbackends = [{ address = \"10.1.0.1\", %s }]\n",
		"HealthCheck": "[[service]]\nname = \"web\"\nports = [{ port = 80 }]\nhealth = { %s }\n",
	}
	for shape, keys := range words {
		document := documents[shape.Name()]
		if shape.Name() == "Service" { // see TestServicesSchema
			continue
		}
		for key, of := range keys {
			for _, word := range append([]string{"junk"}, of...) {
				pair := fmt.Sprintf("%s = %q", key, word)
				if key == "method" {
					pair += `, type = "http"`
				}
				text := fmt.Sprintf(document, pair)
				problems := static.ParseServices("web.toml", []byte(text), "static", nil).Problems
				refused := slices.ContainsFunc(problems, func(p vip.Problem) bool { return strings.Contains(p.Message, "is not a ") })
				if err := accepts(t, services, text); (err != nil) != refused || refused != (word == "junk") {
					t.Errorf("%s: the schema says %v, the agent says %v", text, err, problems)
				}
			}
		}
	}
}

// Every key has a description.
func TestDescriptions(t *testing.T) {
	var check func(path string, n Node)
	check = func(path string, n Node) {
		if of, ok := n["properties"].(Node); ok {
			for key, p := range of {
				child := p.(Node)
				_, isTable := child["properties"]
				if child["description"] == nil && !isTable && path+key != "pool" && path+key != "quota" && path+key != "hook" && path+key != "source" && path+key != "service" {
					t.Errorf("%s%s has no description", path, key)
				}
				check(path+key+".", child)
			}
		}
		if items, ok := n["items"].(Node); ok {
			check(path, items)
		}
	}
	check("", Config())
	check("", Services())
	if got := reference.Plain("`a` ([more](x.md#y)), [b](c.md), [see below](#d)"); got != "a, b" {
		t.Errorf("%q", got)
	}
}

// Programs and webhooks get one document, which its schema describes.
func TestDocumentOfHooks(t *testing.T) {
	s := compiled(t, "document.json", Document())
	program := filepath.Join(t.TempDir(), "program")
	must.Succeed(t, os.WriteFile(program, []byte("#!/bin/sh\ncat >>$0.out\n"), 0o700))
	bodies := make(chan string, 10)
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		bodies <- string(must.Get(io.ReadAll(r.Body))(t))
	}))
	defer receiver.Close()
	db := must.Get(store.Open(filepath.Join(t.TempDir(), store.FileName)))(t)
	defer db.Close()
	hooks := []configs.Hook{{Name: "a", Events: []string{"*"}, Command: []string{program}}, {Name: "a-webhook", Events: []string{"*"}, URL: receiver.URL}}
	for i := range hooks {
		hooks[i].Defaults()
	}
	events := event.NewLog(10, time.Now)
	h := hook.New(hook.Options{Node: "lb1", Store: store.NewBucket[hook.Row](db, "hooks"), Events: events, Clock: tables.NewClock(time.Now()), Log: slog.New(slog.DiscardHandler)}, hooks)
	events.Add(event.Event{Kind: "config_reloaded", Message: "read again"})
	for range event.MaxAlike + 1 { // the last one has a count
		events.Add(event.Event{Kind: "service_down", Service: "shop/web", Object: "x", Message: "no usable backend"})
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- h.Run(ctx) }()
	var programs []string
	wait.Until(t, "the program has run", func() bool {
		text, _ := os.ReadFile(program + ".out")
		programs = slices.Collect(strings.Lines(string(text)))
		return len(programs) == event.MaxAlike+2
	})
	for _, text := range programs {
		body := <-bodies
		expect.Equal(t, strings.Replace(body, `"a-webhook"`, `"a"`, 1), strings.TrimSpace(text))
		for _, document := range []string{body, text} {
			value := must.Get(jsonschema.UnmarshalJSON(strings.NewReader(document)))(t)
			expect.Succeed(t, s.Validate(value), "%s", document)
		}
	}
	cancel()
	expect.Succeed(t, <-ended)
	last := programs[len(programs)-1]
	for key := range Document()["properties"].(Node) {
		expect.Contains(t, last, `"`+key+`":`, "the document lacks what its schema describes")
	}
	for _, junk := range []string{`{}`, strings.Replace(last, `"id":`, `"id":"x","ID":`, 1), strings.Replace(last, `"time":"`, `"time":"x`, 1), strings.Replace(last, `"dropped":`, `"dropped":-1,"x":`, 1)} {
		value := must.Get(jsonschema.UnmarshalJSON(strings.NewReader(junk)))(t)
		expect.True(t, s.Validate(value) != nil, "accepted: %s", junk)
	}
}
