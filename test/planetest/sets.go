//go:build linux

package planetest

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/netlab"
)

// Element is one element of a set or map as the nft program lists it: its parts joined with spaces, the ends of a range
// with a dash. Value is "" in a set, and the chain of a verdict.
type Element struct{ Key, Value string }

// Sets returns the sets and maps of an inet table by name, as the nft program lists them. It returns nil if there is no
// such table.
func Sets(t testing.TB, node *netlab.Node, table string) map[string][]Element {
	t.Helper()
	var out []byte
	var err error
	node.Do(func() { out, err = exec.Command("nft", "-j", "list", "table", "inet", table).Output() })
	if err != nil {
		return nil
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
	sets := map[string][]Element{}
	for _, object := range ruleset.Nftables {
		switch {
		case object.Map != nil:
			all := make([]Element, 0, len(object.Map.Elem))
			for _, e := range object.Map.Elem {
				if pair, ok := e.([]any); ok && len(pair) == 2 {
					all = append(all, Element{elementText(pair[0]), elementText(pair[1])})
				}
			}
			sets[object.Map.Name] = all
		case object.Set != nil:
			all := make([]Element, 0, len(object.Set.Elem))
			for _, e := range object.Set.Elem {
				all = append(all, Element{Key: elementText(e)})
			}
			sets[object.Set.Name] = all
		}
	}
	return sets
}

func elementText(e any) string {
	if n, ok := e.(float64); ok {
		return strconv.FormatFloat(n, 'f', -1, 64)
	}
	m, ok := e.(map[string]any)
	if !ok {
		return fmt.Sprint(e)
	}
	for _, verdict := range []string{"goto", "jump"} {
		if v, ok := m[verdict].(map[string]any); ok {
			return fmt.Sprint(v["target"])
		}
	}
	if inner, ok := m["elem"].(map[string]any); ok {
		return elementText(inner["val"])
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
