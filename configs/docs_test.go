package configs

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/configs/reference"
	"github.com/ironvip/ironvip/internal/consulclient"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/sources/consul"
	"github.com/ironvip/ironvip/vip/spec"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// documented returns the keys of the tables under a heading of a reference page: the first cell of
// each row, in backquotes. Without a heading, it reads the whole page.
func documented(t *testing.T, page, heading string) []string {
	t.Helper()
	text, err := os.ReadFile("../docs/" + page)
	if err != nil {
		t.Fatal(err)
	}
	section := string(text)
	if heading != "" {
		_, rest, found := strings.Cut(section, "\n"+heading)
		if !found {
			t.Fatalf("%s has no %q", page, heading)
		}
		section = rest
		if end := strings.Index(section, "\n#"); end >= 0 {
			section = section[:end]
		}
	}
	var keys []string
	for _, row := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllStringSubmatch(section, -1) {
		keys = append(keys, row[1])
	}
	slices.Sort(keys)
	return keys
}

// Every key that is read has a row in its reference page, and there are no other rows.
func TestReferencePagesAreComplete(t *testing.T) {
	service := append(strict.Keys(spec.Service{}), "affinity.timeout")
	slices.Sort(service)
	var config []string
	for section, shape := range map[string]any{"node": Node{}, "api": API{}, "dataplane": Dataplane{}, "ipam": IPAM{}, "health": Health{}, "metrics": Metrics{}, "announce": Announce{}, "dns": DNS{}, "consul": Consul{}, "log": Log{}} {
		for _, key := range strict.Keys(shape) {
			config = append(config, section+"."+key)
		}
	}
	slices.Sort(config)
	// A key that several types of sources have is documented once.
	sourceKeys := strict.Keys(Source{})
	allTypes := true
	for _, typ := range sourceTypes {
		if typ.new == nil { // not in this build
			allTypes = false
			continue
		}
		sourceKeys = append(sourceKeys, strict.Keys(typ.new())...)
	}
	slices.Sort(sourceKeys)
	routeKeys := slices.Concat(strict.Keys(PoolBGP{}), strict.Keys(BGPMatch{}))
	slices.Sort(routeKeys)
	lists := slices.Concat(strict.Keys(Pool{}), slices.Compact(routeKeys), strict.Keys(Quota{}), strict.Keys(BGPPeer{}), strict.Keys(APIRole{}), strict.Keys(Hook{}), slices.Compact(sourceKeys))
	for _, test := range []struct {
		page, heading string
		want          []string
	}{
		{"services.md", "## Fields of a service", service},
		{"services.md", "## Fields of a port", strict.Keys(spec.Port{})},
		{"services.md", "## Fields of a backend", strict.Keys(spec.Backend{})},
		{"health.md", "## Fields of a health check", strict.Keys(spec.HealthCheck{})},
	} {
		if got := documented(t, test.page, test.heading); !slices.Equal(got, test.want) {
			t.Errorf("%s, %s has rows for\n%v, the code reads\n%v", test.page, test.heading, got, test.want)
		}
	}
	config = append(config, lists...)
	slices.Sort(config)
	got := slices.DeleteFunc(documented(t, "config.md", "## Keys"), func(k string) bool {
		return strings.Contains(k, "/") || !allTypes && !slices.Contains(config, k)
	})
	if !allTypes { // a key of several lists may be one of a source that this build lacks
		got, config = slices.Compact(got), slices.Compact(config)
	}
	if !slices.Equal(got, config) {
		t.Errorf("config.md has rows for\n%v, the code reads\n%v", got, config)
	}
	if top := strict.Keys(Config{}); !slices.Equal(top, []string{"announce", "api", "consul", "dataplane", "dns", "health", "hook", "ipam", "log", "metrics", "node", "pool", "quota", "source"}) {
		t.Errorf("sections %v: is one of them missing from this test and from config.md?", top)
	}
}

var update = flag.Bool("update", false, "write the tables of keys in docs")

// The tables of keys in the pages are those of package reference.
func TestTablesOfKeys(t *testing.T) {
	tables, written := maps.Clone(reference.Tables), map[string]bool{}
	for _, k := range event.Kinds {
		tables["Kinds"] = append(tables["Kinds"], reference.Key{Key: k.Name, Meaning: k.Meaning})
	}
	for _, page := range []string{"config.md", "services.md", "health.md", "hooks.md"} {
		path := "../docs/" + page
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		want := tableOfKeys.ReplaceAllStringFunc(string(text), func(old string) string {
			m := tableOfKeys.FindStringSubmatch(old)
			written[m[1]] = true
			head, _, _ := strings.Cut(m[2], "\n")
			return "<!-- keys: " + m[1] + " -->\n\n" + markdown(tables[m[1]], strings.Split(strings.Trim(head, "| "), " | "))
		})
		if want == string(text) {
			continue
		}
		if *update {
			err = os.WriteFile(path, []byte(want), 0o644)
		} else {
			err = fmt.Errorf("%s differs from configs/reference; run go test ./configs -update", path)
		}
		if err != nil {
			t.Error(err)
		}
	}
	if len(written) != len(tables) {
		t.Errorf("pages have the tables %v, want %d", written, len(tables))
	}
}

// tableOfKeys matches a table after its name in a comment.
var tableOfKeys = regexp.MustCompile(`<!-- keys: (\w+) -->\n\n((?:\|.*\n)+)`)

// markdown returns a table with the columns that a page has.
func markdown(keys reference.Table, columns []string) string {
	var b strings.Builder
	row := func(cells []string) {
		b.WriteString(strings.ReplaceAll("| "+strings.Join(cells, " | ")+" |", "|  |", "| |") + "\n")
	}
	row(columns)
	b.WriteString("|" + strings.Repeat("---|", len(columns)) + "\n")
	for _, k := range keys {
		reload := "restart"
		if k.Live {
			reload = "live"
		}
		row([]string{"`" + k.Key + "`", k.Meaning, k.Values, k.Default, reload}[:len(columns)])
	}
	return b.String()
}

// The numbers and names of the pages equal those of the code.
func TestReferenceStatesTheDefaults(t *testing.T) {
	d := Default()
	for page, wants := range map[string][]string{
		"config.md": {"`" + d.Node.StateDir + "`", "`" + d.API.Socket + "`", `"` + d.API.SocketMode.String() + `"`, "`" + d.Dataplane.Mode + "`",
			`"` + d.Dataplane.ResyncInterval.String() + `"`, "`" + d.Dataplane.Device + "`", `"` + d.Dataplane.HardStopAfter.String() + `"`, `"` + d.IPAM.ReuseDelay.String() + `"`, `"` + d.IPAM.OrphanGrace.String() + `"`, `"` + d.IPAM.NodePorts.String() + `"`,
			"`" + consulclient.DefaultAddress + "`", "`" + DefaultConsulPrefix + "`", "`" + consul.DefaultTag + "`", "`" + d.Health.Default + "`",
			`"` + d.Announce.Heartbeat.String() + `"`, `"` + d.Announce.Settle.String() + `"`, `"` + d.Announce.Hold.String() + `"`, `"` + d.Announce.Listen + `"`, "`" + d.Announce.Socket + "`",
			"`" + d.DNS.Domain + "`", `"` + d.DNS.TTL.String() + `"`, `"` + d.DNS.NegativeTTL.String() + `"`, fmt.Sprint("up to ", MaxDomain, " bytes")},
		"services.md": {"up to 10,000", "1 to 256", "up to 64;", "0 to 65535", "up to 4 MiB"},
	} {
		mentions(t, page, wants...)
	}
}

// mentions checks that a reference page has some texts.
func mentions(t *testing.T, page string, wants ...string) {
	t.Helper()
	text, err := os.ReadFile("../docs/" + page)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range wants {
		if !strings.Contains(string(text), want) {
			t.Errorf("%s does not say %s", page, want)
		}
	}
}
