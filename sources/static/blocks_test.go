package static

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

// compareBlocks parses a text by blocks and as a whole. It returns the blocks for the next version,
// and whether parsing by blocks succeeded.
func compareBlocks(t *testing.T, data []byte, known map[digest]*row) (map[digest]*row, bool) {
	t.Helper()
	joined := bytes.Join(collect(data), nil)
	must.True(t, bytes.Equal(joined, data), "blocks of %q are %q", data, joined)
	content, rows, decoded, ok := parseBlocks("f.toml", data, "files", nil, known)
	if !ok {
		return nil, false
	}
	new := len(collect(data)) - len(known)
	must.AtLeast(t, decoded, new, "%q: decoded %d of at least %d new blocks", data, decoded, new)
	next := map[digest]*row{}
	got := map[vip.ServiceKey]vip.Service{}
	for key, r := range rows {
		next[r.text] = r
		s := r.service
		s.Origin = r.origin
		got[key] = s
	}
	whole := ParseServices("f.toml", data, "files", nil)
	want := map[vip.ServiceKey]vip.Service{}
	for _, s := range whole.Services {
		want[s.Key] = s
	}
	content.Services, whole.Services = nil, nil
	if !reflect.DeepEqual(got, want) || !reflect.DeepEqual(content, whole) {
		t.Fatalf("%q\nby blocks: %+v %+v\nas a whole: %+v %+v", data, got, content, want, whole)
	}
	return next, true
}

func poolOf(cidr string) []spec.Pool {
	return []spec.Pool{{Name: "p", CIDRs: []netip.Prefix{netip.MustParsePrefix(cidr)}}}
}

func collect(data []byte) (out [][]byte) {
	for _, text := range blocks(data) {
		out = append(out, text)
	}
	return out
}

// sampleBlocks are texts of blocks; %d is a number. Some are mistakes, and some are mistakes only
// after another one.
var sampleBlocks = []string{
	"[[service]]\nname = \"s%d\"\nports = [{ port = 80 }]\n",
	"[[service]] # comment\r\nname = \"s%d\"\r\nports = [\n  { port = 80 },\n]\n\n",
	"[[service]]\nname = \"s%d\"\nports = [{ port = 80 }]\n[service.health]\ntype = \"tcp\"\n[service.labels]\na = \"\"\"\n[[service]]\n\"\"\"\n",
	"[[service]]\nname = \"s%d\"\nports = [{ port = 80 }]\nhealth.type = \"tcp\"\n",
	"[[service]]\nname = \"s%d\"\n[[service.ports]]\nport = 80\n[[service.backends]]\naddress = \"10.0.0.1\"\n# end",
	"[[service]]\nname = \"s%d\"\nports = [{ port = 0 }]\n",
	"[[service]]\nname = \"s%d\"\nports = [{ port = 80 }]\n[[service]]\n",
	"[[service]]\nname = '''\n[[service]]\ns%d'''\n",
	" [[service]]\nname = \"s%d\"\nports = [{ port = 80 }]\n",
	"service = [{ name = \"s%d\", ports = [{ port = 80 }] }]\n",
	"[other]\n# %d\n",
	"# comment %d\n\n",
	"\ufeff# %d\n",
	"[[service]]\nname = \"same\" # %d\nports = [{ port = 80 }]\n",
}

func TestBlocksAreLikeTheWhole(t *testing.T) { blocksAreLikeTheWhole(t, 1, 150) }

// Parsing by blocks gives the result of parsing the whole file, after any edit.
func blocksAreLikeTheWhole(t *testing.T, seed uint64, lists int) {
	r := rand.New(rand.NewPCG(seed, 2))
	succeeded, refusals := 0, 0
	for range lists {
		var list []string
		var known map[digest]*row
		good := r.IntN(4) > 0 // few random lists have no mistake
		pick := func() string {
			n := len(sampleBlocks)
			if good {
				n = 5
			}
			return strings.ReplaceAll(sampleBlocks[r.IntN(n)], "%d", fmt.Sprint(r.IntN(20)))
		}
		for range 6 {
			switch at := r.IntN(len(list) + 1); {
			case at < len(list) && r.IntN(3) == 0:
				list = append(list[:at:at], list[at+1:]...)
			case at < len(list) && r.IntN(3) == 0:
				list[at] = pick()
			default:
				list = append(list[:at:at], append([]string{pick()}, list[at:]...)...)
			}
			text := strings.Join(list, "")
			if r.IntN(8) == 0 {
				text = "# first\n" + text
			}
			next, ok := compareBlocks(t, []byte(text), known)
			if ok {
				known = next
				succeeded++
				if strings.Contains(text, "port = 0") {
					refusals++
				}
			}
		}
	}
	if succeeded < lists || refusals < lists/20 {
		t.Errorf("only %d texts were parsed by blocks, %d with a refused one", succeeded, refusals)
	}
}

func FuzzBlocks(f *testing.F) {
	for _, a := range sampleBlocks {
		f.Add([]byte(a), []byte(a+sampleBlocks[0]))
		f.Add([]byte(sampleBlocks[0]), []byte(strings.ReplaceAll(sampleBlocks[0]+a, "%d", "1")))
	}
	f.Fuzz(func(t *testing.T, before, after []byte) {
		known, _ := compareBlocks(t, before, nil)
		compareBlocks(t, after, known)
	})
}

// A change of one of many blocks costs no allocations for the others, except for the lists of
// all of them. They are not published again.
func TestOneBlockOfManyIsParsedAlone(t *testing.T) {
	for _, refused := range []int{0, 1} { // which are parsed again
		t.Run(fmt.Sprint(refused, " refused"), func(t *testing.T) { oneBlockOfMany(t, refused) })
	}
}

func oneBlockOfMany(t *testing.T, refused int) {
	b := begun(t)
	cost := map[int]float64{}
	for _, n := range []int{10, 1000} {
		text := func(port int) string {
			var all strings.Builder
			for i := range n {
				if i > 0 {
					port = 80
				}
				all.WriteString(service(fmt.Sprintf("s%d", i), port))
			}
			for i := range refused {
				all.WriteString(service(fmt.Sprintf("bad%d", i), 0))
			}
			return all.String()
		}
		b.write("a.toml", text(81))
		b.refresh(t.Context(), nil, true)
		var texts []string
		for port := range 21 {
			texts = append(texts, text(90+port))
		}
		puts, decoded, dirty := b.sink.puts, b.files.decoded.Load(), map[string]struct{}{b.path("a.toml"): {}}
		cost[n] = testing.AllocsPerRun(20, func() {
			b.write("a.toml", texts[0])
			b.refresh(t.Context(), dirty, false)
			texts = texts[1:]
		})
		if puts = b.sink.puts - puts; puts != 21 {
			t.Errorf("%d puts for 21 changes", puts)
		}
		expect.Equal(t, b.files.decoded.Load()-decoded, int64(21*(1+refused)), "blocks decoded")
	}
	perBlock := (cost[1000] - cost[10]) / 990
	t.Logf("allocations: %v, %.2f for each unchanged block", cost, perBlock)
	if perBlock > 3 { // parsing costs 100
		t.Errorf("%.1f allocations for each unchanged block", perBlock)
	}
}

// A refused block and the blocks around it have the lines of the whole file, wherever they move.
func TestLinesOfMovedBlocks(t *testing.T) {
	b := begun(t)
	bad, good := service("bad", 0), service("good", 80)
	b.write("a.toml", "# comment\n"+bad+good)
	b.expect("good:80", `a.toml:4: service "bad": ports[0].port`)
	b.write("a.toml", "# comment\n"+good+"\n\n"+bad)
	b.expect("good:80", `a.toml:9: service "bad": ports[0].port`)
	b.write("a.toml", good+bad+good)
	b.expect("good:80", `a.toml:6: service "bad": ports[0].port`, `a.toml:8: service "good": name: "good" is the name of the service at`)
	b.write("a.toml", bad+service("good", 81))
	b.expect("good:81", `a.toml:3: service "bad": ports[0].port`)
}

// A block that a change of the pools makes invalid is not taken from the version before.
func TestChangedPoolsCheckEveryBlock(t *testing.T) {
	b := begun(t)
	inPool := service("a", 80) + "backends = [{address = '10.0.0.1'}]\n"
	b.write("a.toml", inPool+service("b", 80))
	b.expect("a:80 b:80")
	b.pools = poolOf("10.0.0.0/24")
	wrong := `a.toml:4: service "a": backends[0].address`
	b.write("a.toml", inPool+service("b", 81))
	b.expect("a:80 b:81", wrong)
	b.write("a.toml", inPool+service("b", 82))
	b.expect("a:80 b:82", wrong)
	b.pools = nil
	b.write("a.toml", inPool+service("b", 83))
	b.expect("a:80 b:83")
}

// A start reads no service of the last run while the files are good.
func TestAStartWithGoodFilesNeedsNoPriorServices(t *testing.T) {
	b := begun(t)
	b.write("a.toml", service("web", 80)+service("db", 5432))
	b.write("b.toml", service("dns", 53))
	b.write("c.toml", service("gone", 1))
	b.expect("db:5432 dns:53 gone:1 web:80")
	b.restart()
	b.write("a.toml", service("web", 81)+service("db", 5432))
	b.remove("c.toml")
	b.begin()
	b.inEffect("db:5432 dns:53 web:81")
	expect.Equal(t, b.priors, 0, "reads of prior services")

	b.restart()
	b.write("a.toml", "[[")
	b.remove("b.toml")
	b.begin()
	b.inEffect("db:5432 web:81", "a.toml:1: not valid TOML")
	expect.Equal(t, b.priors, 1, "reads of prior services")
}
