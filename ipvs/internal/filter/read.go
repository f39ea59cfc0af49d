package filter

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"go4.org/netipx"

	"github.com/ironvip/ironvip/internal/nftwire"
	"github.com/ironvip/ironvip/vip"
)

// Ruleset is the content of the table. Use NewRuleset.
type Ruleset struct {
	Intact bool // the rules are those of this version
	// Sets contains one bit for each set that a key is in. Others are elements with more than
	// a key.
	Sets   map[vip.FrontendKey]setBits
	Others map[Element]struct{}
	Pods   *netipx.IPSet
}

// setBits has one bit for each Set.
type setBits uint32

const _ = uint(32 - setCount) // each set has a bit

func NewRuleset(size int) *Ruleset {
	return &Ruleset{Sets: make(map[vip.FrontendKey]setBits, size), Others: map[Element]struct{}{}, Pods: &netipx.IPSet{}}
}

// BitsOfOthers are the sets with elements that don't belong to a single frontend.
const BitsOfOthers setBits = 1<<SetVIPs | 1<<SetHairpin | 1<<setPods

// plain reports whether an element has only a key.
func (e *Element) plain() bool { return e.Mark == 0 && !e.Source.IsValid() }

func (r *Ruleset) Add(e Element) {
	if e.plain() {
		r.Sets[e.Key] |= 1 << e.Set
	} else {
		r.Others[e] = struct{}{}
	}
}

func (r *Ruleset) Has(e Element) bool {
	if e.plain() {
		return r.Sets[e.Key]&(1<<e.Set) != 0
	}
	_, ok := r.Others[e]
	return ok
}

// Read returns the content of the table. A missing table is an empty ruleset.
func (f *Table) Read(ctx context.Context) (*Ruleset, error) {
	if err := f.conn.Open(ctx); err != nil {
		return nil, err
	}
	defer f.conn.Close()
	there, err := f.tableExists(ctx)
	if !there || err != nil {
		return NewRuleset(0), err
	}
	intact, err := f.rulesIntact(ctx)
	if err != nil {
		return nil, err
	}
	found, err := f.sets(ctx)
	if err != nil {
		return nil, err
	}
	r := NewRuleset(f.size)
	r.Intact = intact
	var unowned []Element
	var pods netipx.IPSetBuilder
	for s := range setCount {
		for _, fam := range families {
			if f.layout.sets[s.Name(fam)] == nil {
				continue // of another table
			}
			if !found[s.Name(fam)] {
				r.Intact = false
				continue
			}
			if s.Passing() {
				continue
			}
			var edges []nftwire.Edge
			err := f.conn.Elements(ctx, f.layout.table.Name, s.Name(fam), func(x *nftwire.Element) {
				if s.Kind() == kindRange {
					if at, ok := x.AsEdge(); ok {
						edges = append(edges, at)
					}
					return
				}
				e, ok := DecodeElement(s, fam, x)
				switch {
				case !ok:
					r.Intact = false
				case s.HasMark() && !s.IsMap():
					unowned = append(unowned, e)
				default:
					r.Add(e)
				}
			})
			if err != nil {
				return nil, fmt.Errorf("list nftables set %s: %w", s.Name(fam), err)
			}
			nftwire.AddRanges(&pods, edges)
		}
	}
	r.assign(unowned)
	f.size = len(r.Sets)
	r.Pods, err = pods.IPSet()
	return r, err
}

// TableExists asks on the open socket.
func (f *Table) tableExists(ctx context.Context) (bool, error) {
	there, err := f.conn.TableExists(ctx, f.layout.table)
	if err != nil {
		return false, fmt.Errorf("look for nftables table inet %s: %w", f.layout.table.Name, err)
	}
	return there, nil
}

// sets returns the names of the table's sets, except those of ours whose keys
// have another length.
func (f *Table) sets(ctx context.Context) (map[string]bool, error) {
	found := make(map[string]bool, len(f.layout.order))
	err := f.conn.Sets(ctx, f.layout.table.Name, func(name string, keyLen uint32) {
		ours := f.layout.sets[name]
		found[name] = ours == nil || keyLen == ours.KeyType.Bytes
	})
	if err != nil {
		return nil, fmt.Errorf("list nftables sets: %w", err)
	}
	return found, nil
}

// assign adds elements of sets of marks to the frontends with these marks. A mark without a
// frontend, or with several, isn't ours.
func (r *Ruleset) assign(unowned []Element) {
	type owned struct {
		family vip.Family
		mark   uint32
	}
	keys := map[owned]vip.FrontendKey{}
	for e := range r.Others {
		if !e.Set.IsMap() {
			continue
		}
		at := owned{vip.FamilyOf(e.Key.Addr), e.Mark}
		if other, taken := keys[at]; taken && other != e.Key {
			r.Intact = false
		}
		keys[at] = e.Key
	}
	for _, e := range unowned {
		key, ok := keys[owned{vip.FamilyOf(e.Key.Addr), e.Mark}]
		if !ok {
			r.Intact = false
			continue
		}
		e.Key = key
		r.Add(e)
	}
}

// rulesIntact compares the rules of each chain, in order, by their comments, which contain
// the version.
func (f *Table) rulesIntact(ctx context.Context) (bool, error) {
	chains := make([]nftables.Chain, 0, len(f.layout.chains))
	err := f.conn.Chains(ctx, f.layout.table.Name, func(c nftables.Chain) { chains = append(chains, c) })
	if err != nil {
		return false, fmt.Errorf("list nftables chains: %w", err)
	}
	for _, want := range f.layout.chains {
		there := slices.ContainsFunc(chains, func(c nftables.Chain) bool {
			return c.Name == want.Name && (c.Hooknum == nil) == (want.Hooknum == nil) &&
				(c.Priority == nil || *c.Priority == *want.Priority)
		})
		if !there {
			return false, nil
		}
	}
	want, got := map[string][]string{}, map[string][]string{} // comments by chain
	for _, r := range f.layout.rules {
		want[r.chain] = append(want[r.chain], string(r.userData()))
	}
	err = f.conn.Rules(ctx, f.layout.table.Name, func(chain string, comment []byte) {
		got[chain] = append(got[chain], string(comment))
	})
	if err != nil {
		return false, fmt.Errorf("list nftables rules: %w", err)
	}
	for chain, comments := range want { // other chains are foreign
		if !slices.Equal(comments, got[chain]) {
			return false, nil
		}
	}
	return true, nil
}
