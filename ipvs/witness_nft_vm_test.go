//go:build linux && vm

package ipvs

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"net/netip"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/ipvs/internal/filter"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/vip"
)

//go:embed testdata/table.nft
var goldenTable string

// The table without its elements equals nft's output in testdata. Rules and sets are fixed, and a
// change of them shows what an operator will see.
func TestTableAsNftShowsIt(t *testing.T) {
	lab := netlab.New(t)
	p := newPlane(t, lab.Director)
	f := frontend("10.96.0.1:80", vip.TCP)
	p.create(t, f)
	p.remove(t, f)
	if got := run(t, lab.Director, "nft", "list", "table", "inet", DefaultTable); got != goldenTable {
		t.Errorf("testdata/table.nft isn't what nft shows:\n%s", got)
	}
}

// witnessFilters compares the sets in nft's output with the wanted ones, without backends that may
// be their own clients.
func witnessFilters(t *testing.T, node *netlab.Node, want []vip.Frontend) {
	t.Helper()
	frontends := map[vip.FrontendKey]*vip.Frontend{}
	var marks map[vip.FrontendKey]uint32
	for i := range want {
		frontends[want[i].Key] = &want[i]
		if filter.ByMark(want[i].Key) && marks == nil {
			marks = witnessMarks(t, node)
		}
	}
	wanted := map[string]bool{}
	for e := range needed(frontends) {
		k := e.Key
		text := fmt.Sprintf("%s %s %d", k.Addr, k.Protocol, k.Port)
		switch e.Set.Kind() {
		case filter.KindPair:
			continue
		case filter.KindAddr:
			text = k.Addr.String()
		case filter.KindPorts:
			text = fmt.Sprintf("%s-%d", text, k.LastPort)
		case filter.KindMark, filter.KindMarkSource:
			text = fmt.Sprint(marks[k])
		}
		if e.Source.IsSingleIP() {
			text += " " + e.Source.Addr().String()
		} else if e.Source.IsValid() {
			text += " " + e.Source.String()
		}
		wanted[e.Set.Name(vip.FamilyOf(k.Addr))+" "+text] = true
	}
	var out []byte
	var err error
	node.Do(func() { out, err = exec.Command("nft", "-j", "list", "table", "inet", DefaultTable).Output() })
	if err != nil {
		if len(want) > 0 {
			t.Errorf("nft has no table of ours: %v", err)
		}
		return
	}
	var ruleset struct {
		Nftables []struct {
			Set, Map *struct {
				Name string
				Elem []any
			}
		}
	}
	if err := json.Unmarshal(out, &ruleset); err != nil {
		t.Fatalf("nft -j: %v", err)
	}
	for _, object := range ruleset.Nftables {
		set := object.Set
		if object.Map != nil {
			set = object.Map
		}
		if set == nil || strings.HasPrefix(set.Name, "pods") || strings.HasPrefix(set.Name, "hairpin") {
			continue
		}
		for _, e := range set.Elem {
			if object.Map != nil {
				e = e.([]any)[0] // another check compares the mark
			}
			has := set.Name + " " + elementText(e)
			if !wanted[has] {
				t.Errorf("nft has %q, which nobody wants", has)
			}
			delete(wanted, has)
		}
	}
	for missing := range wanted {
		t.Errorf("nft doesn't have %q", missing)
	}
}

// witnessMarks returns the marks of frontends from nft's output.
func witnessMarks(t *testing.T, node *netlab.Node) map[vip.FrontendKey]uint32 {
	t.Helper()
	var ruleset struct {
		Nftables []struct {
			Map *struct {
				Name string
				Elem [][2]any
			}
		}
	}
	if err := json.Unmarshal([]byte(run(t, node, "nft", "-j", "list", "table", "inet", DefaultTable)), &ruleset); err != nil {
		t.Fatalf("nft -j: %v", err)
	}
	out := map[vip.FrontendKey]uint32{}
	for _, object := range ruleset.Nftables {
		if object.Map == nil {
			continue
		}
		for _, e := range object.Map.Elem {
			var k vip.FrontendKey
			var addr, protocol, ports string
			fmt.Sscan(elementText(e[0]), &addr, &protocol, &ports)
			k.Addr = netip.MustParseAddr(addr)
			if err := k.Protocol.UnmarshalText([]byte(protocol)); err != nil {
				t.Fatal(err)
			}
			fmt.Sscanf(ports, "%d-%d", &k.Port, &k.LastPort)
			if strings.HasPrefix(object.Map.Name, "internal") {
				k.Audience = vip.InternalClients
			}
			out[k] = uint32(e[1].(float64))
		}
	}
	return out
}

// elementText joins the parts of a set's element with spaces, and the ends of a range with a dash.
func elementText(e any) string {
	if n, ok := e.(float64); ok {
		return strconv.FormatFloat(n, 'f', -1, 64)
	}
	m, ok := e.(map[string]any)
	if !ok {
		return fmt.Sprint(e)
	}
	if p, ok := m["prefix"].(map[string]any); ok {
		return fmt.Sprintf("%v/%v", p["addr"], p["len"])
	}
	parts, _ := m["concat"].([]any)
	separator := " "
	if ends, ok := m["range"].([]any); ok {
		parts, separator = ends, "-"
	}
	texts := make([]string, len(parts))
	for i, p := range parts {
		texts[i] = elementText(p)
	}
	return strings.Join(texts, separator)
}
