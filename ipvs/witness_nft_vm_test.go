//go:build linux && vm

package ipvs

import (
	_ "embed"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/plane/kernel/filter"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/planetest"
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
	p.Create(t, f)
	p.remove(t, f)
	expect.Equal(t, run(t, lab.Director, "nft", "list", "table", "inet", DefaultTable), goldenTable, "testdata/table.nft")
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
	sets := planetest.Sets(t, node, DefaultTable)
	if sets == nil && len(want) > 0 {
		t.Error("nft has no table of ours")
	}
	for name, all := range sets {
		if strings.HasPrefix(name, "pods") || strings.HasPrefix(name, "hairpin") {
			continue
		}
		for _, e := range all {
			has := name + " " + e.Key // another check compares the mark
			if !wanted[has] {
				t.Errorf("nft has %q, which nobody wants", has)
			}
			delete(wanted, has)
		}
	}
	if sets == nil {
		return
	}
	for missing := range wanted {
		t.Errorf("nft doesn't have %q", missing)
	}
}

// witnessMarks returns the marks of frontends from nft's output.
func witnessMarks(t *testing.T, node *netlab.Node) map[vip.FrontendKey]uint32 {
	t.Helper()
	out := map[vip.FrontendKey]uint32{}
	for name, all := range planetest.Sets(t, node, DefaultTable) {
		for _, e := range all {
			if e.Value == "" {
				continue // no map
			}
			var k vip.FrontendKey
			var addr, protocol, ports string
			fmt.Sscan(e.Key, &addr, &protocol, &ports)
			k.Addr = netip.MustParseAddr(addr)
			must.Succeed(t, k.Protocol.UnmarshalText([]byte(protocol)))
			fmt.Sscanf(ports, "%d-%d", &k.Port, &k.LastPort)
			if strings.HasPrefix(name, "internal") {
				k.Audience = vip.InternalClients
			}
			var mark uint32
			fmt.Sscan(e.Value, &mark)
			out[k] = mark
		}
	}
	return out
}
