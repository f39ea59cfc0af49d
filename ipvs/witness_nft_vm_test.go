//go:build linux && vm

package ipvs

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/vip"
)

// witnessFilters compares, through nft's eyes, which virtual addresses are
// guarded and which frontends refuse their clients with what is wanted.
func witnessFilters(t *testing.T, node *netlab.Node, want []vip.Frontend) {
	t.Helper()
	wanted := map[string]bool{}
	for _, f := range want {
		family := strings.TrimPrefix(vip.FamilyOf(f.Key.Addr).String(), "ipv")
		wanted[fmt.Sprintf("vips%s %s", family, f.Key.Addr)] = true
		if !f.Usable() {
			wanted[fmt.Sprintf("refused%s %s %s %d", family, f.Key.Addr, f.Key.Protocol, f.Key.Port)] = true
		}
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
			Set *struct {
				Name string
				Elem []any
			}
		}
	}
	if err := json.Unmarshal(out, &ruleset); err != nil {
		t.Fatalf("nft -j: %v", err)
	}
	for _, object := range ruleset.Nftables {
		if object.Set == nil || !strings.HasPrefix(object.Set.Name, "vips") && !strings.HasPrefix(object.Set.Name, "refused") {
			continue
		}
		for _, e := range object.Set.Elem {
			has := object.Set.Name + " " + elementText(e)
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

// elementText joins the parts of a set's element with spaces.
func elementText(e any) string {
	m, ok := e.(map[string]any)
	if !ok {
		return fmt.Sprint(e)
	}
	parts, _ := m["concat"].([]any)
	texts := make([]string, len(parts))
	for i, p := range parts {
		texts[i] = fmt.Sprint(p)
	}
	return strings.Join(texts, " ")
}
