//go:build system

package program

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/test/etcdtest"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/netlab"
)

// formats is where each release has what it wrote: its configuration, its state file, snapshots, the tree of a fleet, and a list
// of what its schemas and its API document state. They are promises, and stay as they are.
const formats = "testdata/formats"

var writeFormats = flag.String("formats", "", "write the formats of this release to "+formats+"/VERSION, for TestFormats")

// A host goes on with what each release wrote: with its configuration and its state, from its snapshot, and in a fleet from
// its tree. No key, value or path of the API that a release had is gone.
//
// Slow: three agents and etcd start.
func TestFormats(t *testing.T) {
	parallel(t)
	if *writeFormats != "" {
		writeRelease(t, filepath.Join(formats, *writeFormats))
	}
	releases := must.Get(os.ReadDir(formats))(t)
	must.True(t, len(releases) > 0, "no release in "+formats)
	for _, release := range releases {
		t.Run(release.Name(), func(t *testing.T) { keepsFormats(t, filepath.Join(formats, release.Name())) })
	}
}

// ofRelease is a host with the configuration of a release, in a network of its own.
func ofRelease(t *testing.T, dir string) (*host, *netlab.Lab) {
	t.Helper()
	h, lab := newLab(t)
	text := string(must.Get(os.ReadFile(filepath.Join(dir, "ironvip.toml")))(t))
	h.write("ironvip.toml", strings.ReplaceAll(text, "@DIR@", h.dir))
	h.write("services.d/web.toml", string(must.Get(os.ReadFile(filepath.Join(dir, "web.toml")))(t)))
	return h, lab
}

// snapshotOf is a snapshot without what differs between hosts and runs, and without addresses in cooldown, which ends.
func snapshotOf(t testing.TB, text []byte) string {
	t.Helper()
	var s struct {
		Leases   []map[string]any `json:"leases"`
		Services map[string]any   `json:"services"`
		States   map[string]any   `json:"states"`
	}
	must.Succeed(t, json.Unmarshal(text, &s), "%s", text)
	s.Leases = slices.DeleteFunc(s.Leases, func(lease map[string]any) bool { return lease["state"] == "cooling" })
	return compact(s)
}

func keepsFormats(t *testing.T, dir string) {
	read := func(name string) []byte { return must.Get(os.ReadFile(filepath.Join(dir, name)))(t) }
	same := func(what string, h *host, snapshot string) {
		t.Helper()
		want := snapshotOf(t, read(snapshot))
		h.eventually(what, func() error {
			if got := snapshotOf(t, []byte(h.ok("snapshot", "save"))); got != want {
				return fmt.Errorf("the release wrote\n%s\nand this one has\n%s", want, got)
			}
			return nil
		})
	}
	state, _ := ofRelease(t, dir)
	must.Succeed(t, os.MkdirAll(filepath.Join(state.dir, "state"), 0o750))
	must.Succeed(t, os.WriteFile(filepath.Join(state.dir, "state", store.FileName), read(store.FileName), 0o600))
	state.start()
	same("the state of the release is in effect", state, "snapshot.json")

	now := promises(t, state)
	for line := range strings.Lines(string(read("promises"))) {
		expect.True(t, now[strings.TrimSuffix(line, "\n")], "no longer: %q", line)
	}

	restored, _ := ofRelease(t, dir)
	restored.restore(dir)
	restored.start()
	same("the snapshot of the release is in effect", restored, "snapshot.json")

	var tree map[string]string
	must.Succeed(t, json.Unmarshal(read("tree.json"), &tree))
	member, etcd := inFleet(t, dir)
	for key, value := range tree {
		must.Get(etcd.Client.Put(t.Context(), key, value))(t)
	}
	member.start()
	same("the tree of the release is in effect", member, "fleet.json")
}

// restore restores the snapshot of a release, in the network of the host.
func (h *host) restore(dir string) {
	h.t.Helper()
	h.inside(func() {
		r := command(h.t, "snapshot", "restore", filepath.Join(dir, "snapshot.json"), "--config", h.dir)
		must.Equal(h.t, r.code, 0, "restore: %s", r.stderr)
	})
}

// inFleet is a host of a fleet on etcd, with the configuration of a release.
func inFleet(t *testing.T, dir string) (*host, *etcdtest.Servers) {
	t.Helper()
	h, lab := ofRelease(t, dir)
	etcd := etcdtest.Start(t, etcdtest.Options{Hosts: []etcdtest.Host{{Node: lab.Client, Addr: lab.Client.Addr4}}})
	h.edit("ironvip.toml", `store = "bolt"`, `store = "etcd"`)
	text := must.Get(os.ReadFile(filepath.Join(h.dir, "ironvip.toml")))(t)
	h.write("ironvip.toml", string(text)+fmt.Sprintf("[etcd]\nendpoints = [%q]\n", etcd.URLs[0]))
	return h, etcd
}

// promises are the statements of the schemas and of the API document: the keys, types and values.
func promises(t *testing.T, h *host) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	add := func(what string, text []byte, input bool) {
		var document any
		must.Succeed(t, json.Unmarshal(text, &document), what)
		promise(all, what, document, input)
	}
	for _, schema := range []string{"config", "services", "hook"} {
		r := command(t, "config", "schema", schema)
		add(schema, []byte(r.stdout), true)
	}
	answer := must.Get(h.http().Get("http://ironvip/openapi.json"))(t)
	defer answer.Body.Close()
	add("api", must.Get(io.ReadAll(answer.Body))(t), false)
	return all
}

// words are the keys of a schema whose values may change: texts for people, and bounds, which may only become wider.
var words = []string{"description", "title", "summary", "example", "examples", "default", "info", "tags", "servers", "required", "pattern", "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "additionalProperties", "$id"}

// promise adds what a schema states. Of an input, what is not required is to stay so.
func promise(all map[string]bool, at string, schema any, input bool) {
	switch s := schema.(type) {
	case map[string]any:
		required, _ := s["required"].([]any)
		for key, value := range s {
			if names, is := value.(map[string]any); is && key == "properties" {
				for name, field := range names {
					if input && !slices.Contains(required, any(name)) {
						all[at+"/"+name+" is optional"] = true
					}
					promise(all, at+"/"+name, field, input)
				}
			} else if !slices.Contains(words, key) {
				promise(all, at+"/"+key, value, input)
			}
		}
	case []any:
		for _, value := range s {
			if _, nested := value.(map[string]any); nested {
				promise(all, at, value, input)
			} else {
				all[fmt.Sprint(at, " has ", value)] = true
			}
		}
	default:
		all[fmt.Sprint(at, " is ", s)] = true
	}
}

// The configuration and the services of a release.
const (
	releaseConfig = `[node]
name = "lb1"
state_dir = "@DIR@/state"

[api]
socket = "@DIR@/sock"

[dataplane]
mode = "proxy"

[ipam]
store = "bolt"

[[pool]]
name = "main"
cidrs = ["10.96.0.0/24"]

[[quota]]
namespace = "shop"
addresses = 10
`
	releaseServices = `[[service]]
name = "web"
ports = [{ name = "http", port = 80, target_port = 8080, node_port = "auto" }]
backends = [{ address = "10.1.0.11", weight = 3 }, { address = "10.1.0.12", backup = true }]
health = { type = "none" }
hostnames = ["web.example"]

[[service]]
name = "dns"
share_key = "edge"
ports = [{ port = 53, protocol = "udp" }]
backends = [{ address = "10.1.0.11" }]
affinity = { timeout = "1h" }

[[service]]
name = "mail"
share_key = "edge"
ports = [{ port = 25 }]
`
)

// writeRelease writes what this release writes.
func writeRelease(t *testing.T, dir string) {
	t.Helper()
	must.Succeed(t, os.Mkdir(dir, 0o755), "a release writes once")
	write := func(name string, text []byte) { must.Succeed(t, os.WriteFile(filepath.Join(dir, name), text, 0o644)) }
	write("ironvip.toml", []byte(releaseConfig))
	write("web.toml", []byte(releaseServices))

	h, _ := ofRelease(t, dir)
	h.start()
	for name, body := range map[string]string{
		"api":  `{"vips": ["10.96.0.20"], "ports": [{"port": 443}], "backends": [{"address": "10.1.0.11"}]}`,
		"gone": `{"ports": [{"port": 443}]}`,
	} {
		code, tree := h.rest("PUT", "/v1/services/shop/"+name, body, "Prefer", "wait=300")
		must.Equal(t, code, 201, "%v", tree)
	}
	h.ok("service", "delete", "shop/gone")
	h.ok("backend", "drain", "web", "10.1.0.11:8080")
	h.ok("vip", "reserve", "10.96.0.30", "--for", "later")
	var list []string
	for line := range promises(t, h) {
		list = append(list, line+"\n")
	}
	slices.Sort(list)
	write("promises", []byte(strings.Join(list, "")))
	h.stop()
	text, _ := h.save("--config", h.dir)
	write("snapshot.json", []byte(text))
	write(store.FileName, must.Get(os.ReadFile(filepath.Join(h.dir, "state", store.FileName)))(t))

	member, etcd := inFleet(t, dir)
	member.restore(dir)
	member.start()
	write("fleet.json", []byte(member.ok("snapshot", "save")))
	member.stop()
	tree := map[string]string{}
	for _, pair := range must.Get(etcd.Client.Get(t.Context(), "ironvip/", clientv3.WithPrefix()))(t).Kvs {
		tree[string(pair.Key)] = string(pair.Value)
	}
	write("tree.json", must.Get(json.MarshalIndent(tree, "", " "))(t))
}
