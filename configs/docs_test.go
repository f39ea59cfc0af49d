package configs

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/configs/reference"
	"github.com/ironvip/ironvip/internal/access"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/sources/consul"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/vip/spec"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// sections are the tables of ironvip.toml that occur once.
var sections = map[string]any{"node": Node{}, "api": API{}, "dataplane": Dataplane{}, "ipam": IPAM{}, "health": Health{}, "metrics": Metrics{}, "announce": Announce{}, "dns": DNS{}, "consul": Consul{}, "etcd": Etcd{}, "log": Log{}}

// Every key that is read has a row, and there are no other rows.
func TestReferenceIsComplete(t *testing.T) {
	keys := map[string][]string{"Pool": strict.Keys(Pool{}), "Quota": strict.Keys(Quota{}), "Role": strict.Keys(access.Rule{}), "Router": strict.Keys(BGPPeer{}),
		"Route": append(strict.Keys(PoolBGP{}), strict.Keys(BGPMatch{})...), "Source": strict.Keys(Source{}), "DNSService": {"srv", "host"}, "Hook": strict.Keys(Hook{}), "Service": append(strict.Keys(spec.Service{}), "affinity.timeout"),
		"Port": strict.Keys(spec.Port{}), "Backend": strict.Keys(spec.Backend{}), "Group": strict.Keys(spec.Group{}), "HealthCheck": strict.Keys(spec.HealthCheck{})}
	for section, shape := range sections {
		for _, key := range strict.Keys(shape) {
			keys["Config"] = append(keys["Config"], section+"."+key)
		}
	}
	for _, shape := range Shapes() { // a key that several types of sources have is documented once
		keys["Source"] = append(keys["Source"], strict.Keys(shape)...)
	}
	for name, want := range keys {
		slices.Sort(want)
		want = slices.Compact(want)
		var got []string
		for _, row := range reference.Tables[name] {
			if name != "Source" || len(Shapes()) == len(sourceTypes) || slices.Contains(want, row.Key) { // else it is of a type that this build lacks
				got = append(got, row.Key)
			}
		}
		slices.Sort(got)
		expect.Equal(t, fmt.Sprint(got), fmt.Sprint(want), "rows of the table %s, and the keys that are read", name)
	}
	if top := strict.Keys(Config{}); !slices.Equal(top, []string{"announce", "api", "consul", "dataplane", "dns", "etcd", "health", "hook", "ipam", "log", "metrics", "node", "pool", "quota", "source"}) {
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
	for _, page := range []string{"config.md", "services.md", "health.md", "hooks.md", "http-and-dns.md"} {
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

// markdown returns a table with the columns that a page has. Successive keys with the same texts share a row.
func markdown(keys reference.Table, columns []string) string {
	var b strings.Builder
	row := func(cells []string) {
		b.WriteString(strings.ReplaceAll("| "+strings.Join(cells, " | ")+" |", "|  |", "| |") + "\n")
	}
	row(columns)
	b.WriteString("|" + strings.Repeat("---|", len(columns)) + "\n")
	name := ""
	for i, k := range keys {
		name += "`" + k.Key + "`"
		if i+1 < len(keys) {
			if next := keys[i+1]; next.Meaning == k.Meaning && next.Values == k.Values && next.Default == k.Default {
				name += ", "
				continue
			}
		}
		row([]string{name, k.Meaning, k.Values, k.Default}[:len(columns)])
		name = ""
	}
	return b.String()
}

// A row states the words and the bounds of its key, and the default, as the code has them.
func TestReferenceStatesValues(t *testing.T) {
	check := func(table reference.Table, prefix string, shape any) {
		for _, f := range fields(reflect.TypeOf(shape)) {
			name, _, _ := strings.Cut(f.Tag.Get("toml"), ",")
			v := strict.ValuesOf(f)
			row, _ := table.Find(prefix + name)
			if strings.HasPrefix(row.Values, "as ") || row.Values == "" && prefix == "" || v.IsName() {
				continue
			}
			for _, want := range append(v.Words, v.Low, v.High) {
				expect.Contains(t, row.Values, want, "the values of %s%s", prefix, name)
			}
		}
	}
	for section, shape := range sections {
		check(reference.Config, section+".", shape)
	}
	check(reference.Pool, "", Pool{})
	check(reference.Quota, "", Quota{})
	check(reference.Router, "", BGPPeer{})
	check(reference.Route, "", PoolBGP{})
	check(reference.Hook, "", Hook{})
	for _, shape := range Shapes() {
		check(reference.Source, "", reflect.ValueOf(shape).Elem().Interface())
	}
	for _, v := range Default().Values() {
		row, _ := reference.Config.Find(v.Key)
		if word := strings.Trim(v.Value, `"`); word != "" && word != "[]" {
			expect.Contains(t, row.Default, word, "the default of %s", v.Key)
		}
	}
	mentions(t, "config.md", fmt.Sprint("up to ", MaxDomain, " bytes"), "`"+consul.DefaultTag+"`")
	mentions(t, "services.md", "up to 10,000", "1 to 256", "up to 64;", "0 to 65535", "up to 4 MiB")
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
