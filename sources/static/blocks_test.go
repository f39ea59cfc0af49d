package static

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

// compareBlocks parses a text by blocks and as a whole. It returns the blocks for the next version,
// and whether parsing by blocks succeeded.
func compareBlocks(t *testing.T, data []byte, known map[digest]*row) (map[digest]*row, bool) {
	t.Helper()
	joined := bytes.Join(collect(data), nil)
	if !bytes.Equal(joined, data) {
		t.Fatalf("blocks of %q are %q", data, joined)
	}
	rows, ok := parseBlocks("f.toml", data, "files", nil, known)
	if !ok {
		return nil, false
	}
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
	if !reflect.DeepEqual(got, want) || len(whole.Problems) > 0 || whole.Incomplete || whole.Empty {
		t.Fatalf("%q\nby blocks: %+v\nas a whole: %+v", data, got, whole)
	}
	return next, true
}

// countedStore counts the writes.
type countedStore struct {
	Store
	writes int
}

func (c *countedStore) Batch(fill func(tx *store.Tx[LastGood])) error {
	c.writes++
	return c.Store.Batch(fill)
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

// Parsing by blocks gives the result of parsing the whole file, after any edit.
func TestBlocksAreLikeTheWhole(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	succeeded := 0
	for range 1000 {
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
			}
		}
	}
	if succeeded < 1000 {
		t.Errorf("only %d texts were parsed by blocks", succeeded)
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
// all of them. Their definitions are neither published nor stored again.
func TestOneBlockOfManyIsParsedAlone(t *testing.T) {
	b := newBench(t)
	b.begin()
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
			return all.String()
		}
		b.write("a.toml", text(81))
		b.refresh(t.Context(), nil, true)
		b.save()
		var texts []string
		for port := range 21 {
			texts = append(texts, text(90+port))
		}
		puts, dirty := b.sink.puts, map[string]struct{}{b.path("a.toml"): {}}
		cost[n] = testing.AllocsPerRun(20, func() {
			b.write("a.toml", texts[0])
			b.refresh(t.Context(), dirty, false)
			texts = texts[1:]
		})
		if puts = b.sink.puts - puts; puts != 21 {
			t.Errorf("%d puts for 21 changes", puts)
		}
		if len(b.unsaved) != 1 {
			t.Errorf("%d definitions to store for one", len(b.unsaved))
		}
	}
	perBlock := (cost[1000] - cost[10]) / 990
	t.Logf("allocations: %v, %.2f for each unchanged block", cost, perBlock)
	if perBlock > 3 { // parsing costs 100
		t.Errorf("%.1f allocations for each unchanged block", perBlock)
	}
}

// A block that a change of the pools makes invalid is not taken from the version before.
func TestChangedPoolsCheckEveryBlock(t *testing.T) {
	b := newBench(t)
	b.begin()
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

// Many changes within a second are one write, and the last state is stored, also at the end.
func TestChangesAreStoredTogether(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := newBench(t)
		counted := &countedStore{Store: b.o.Store}
		b.o.Store = counted
		for port := 80; port < 90; port++ {
			b.write("a.toml", service("web", port)+service("db", 5432))
			b.refresh(t.Context(), nil, true)
		}
		if counted.writes != 0 {
			t.Errorf("%d writes on the path of a change", counted.writes)
		}
		start := time.Now()
		<-b.saveTimer.C
		if waited := time.Since(start); waited != saveDelay {
			t.Errorf("stored after %v", waited)
		}
		b.save()
		b.write("a.toml", service("web", 90))
		b.refresh(t.Context(), nil, true)
		b.restart() // stores the rest
		if counted.writes != 2 {
			t.Errorf("%d writes", counted.writes)
		}
		b.write("a.toml", "[[")
		b.begin()
		b.inEffect("web:90", "a.toml:1: not valid TOML")
	})
}
