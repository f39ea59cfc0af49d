package filter

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"go4.org/netipx"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/nftwire"
	"github.com/ironvip/ironvip/plane/kernel/usage"
	"github.com/ironvip/ironvip/plane/reconcile"
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
	// Chains are the comments of the rules of chains that the layout lacks.
	Chains map[string][]string
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

// Orphans returns the virtual addresses and hairpin elements that no recorded frontend needs, one item per address.
func (r *Ruleset) Orphans(held *usage.Records) (out []reconcile.Observed[vip.Frontend]) {
	for k, sets := range r.Sets {
		var damage []string
		add := func(s Set, users int) {
			if sets&(1<<s) != 0 && users == 0 {
				damage = append(damage, fmt.Sprintf("should not be: %s", AddrElement(s, k.Addr)))
			}
		}
		add(SetVIPs, held.VIPs[k.Addr])
		add(SetHairpin, held.Hairpins[k.Addr])
		if damage != nil {
			out = append(out, usage.Orphan(k.Addr, damage...))
		}
	}
	return out
}

// StalePods is the damage of a table with other pod ranges than those that are wanted.
const StalePods = "pod ranges in the nftables table are not as configured"

// Damage is that of a table that isn't whole.
func Damage(table string) string {
	return fmt.Sprintf("nftables table inet %s is missing or not as it should be", table)
}

// Generation returns the number of the last transaction that changed any table of the network namespace.
func (f *Table) Generation(ctx context.Context) (uint32, error) {
	if err := f.conn.Open(ctx); err != nil {
		return 0, err
	}
	defer f.conn.Close()
	return f.conn.Generation(ctx)
}

// Read returns the content of the table. A missing table is an empty ruleset.
func (f *Table) Read(ctx context.Context) (*Ruleset, error) { return f.ReadWith(ctx, nil) }

// ReadWith does the same, and calls own for each element of a dataplane's own sets. The element is
// valid during the call only.
func (f *Table) ReadWith(ctx context.Context, own func(set string, x *nftwire.Element)) (*Ruleset, error) {
	if err := f.conn.Open(ctx); err != nil {
		return nil, err
	}
	defer f.conn.Close()
	r, err := f.read(ctx, own)
	if errors.Is(err, unix.ENOENT) {
		return NewRuleset(0), nil // another program has just deleted the table
	}
	return r, err
}

func (f *Table) read(ctx context.Context, own func(set string, x *nftwire.Element)) (*Ruleset, error) {
	there, dormant, err := f.table(ctx)
	if !there || err != nil {
		return NewRuleset(0), err
	}
	intact, others, err := f.rulesIntact(ctx)
	if err != nil {
		return nil, err
	}
	found, err := f.sets(ctx)
	if err != nil {
		return nil, err
	}
	r := NewRuleset(f.size)
	r.Intact, r.Chains = intact && !dormant, others
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
	for _, s := range f.layout.own {
		if !found[s.Name] {
			r.Intact = false
			continue
		}
		err := f.conn.Elements(ctx, f.layout.table.Name, s.Name, func(x *nftwire.Element) { own(s.Name, x) })
		if err != nil {
			return nil, fmt.Errorf("list nftables set %s: %w", s.Name, err)
		}
	}
	for _, s := range f.layout.written {
		r.Intact = r.Intact && found[s.Name]
	}
	r.assign(unowned)
	f.size = max(f.size, len(r.Sets))
	r.Pods, err = pods.IPSet()
	return r, err
}

// table asks on the open socket whether the table exists and is dormant.
func (f *Table) table(ctx context.Context) (there, dormant bool, err error) {
	there, dormant, err = f.conn.Table(ctx, f.layout.table)
	if err != nil {
		err = fmt.Errorf("look for nftables table inet %s: %w", f.layout.table.Name, err)
	}
	return there, dormant, err
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
// the version. Others are the comments of other chains.
func (f *Table) rulesIntact(ctx context.Context) (intact bool, others map[string][]string, err error) {
	chains := make([]nftables.Chain, 0, len(f.layout.chains))
	err = f.conn.Chains(ctx, f.layout.table.Name, func(c nftables.Chain) { chains = append(chains, c) })
	if err != nil {
		return false, nil, fmt.Errorf("list nftables chains: %w", err)
	}
	others = map[string][]string{}
	for _, c := range chains {
		others[c.Name] = nil
	}
	for _, want := range f.layout.chains {
		delete(others, want.Name)
		there := slices.ContainsFunc(chains, func(c nftables.Chain) bool {
			return c.Name == want.Name && (c.Hooknum == nil) == (want.Hooknum == nil) &&
				(c.Priority == nil || *c.Priority == *want.Priority) && (c.Policy == nil || *c.Policy == *want.Policy)
		})
		if !there {
			return false, nil, nil
		}
	}
	want, got := map[string][]string{}, map[string][]string{} // comments by chain
	for _, r := range f.layout.rules {
		want[r.chain] = append(want[r.chain], string(f.layout.userData(r)))
	}
	err = f.conn.Rules(ctx, f.layout.table.Name, func(chain string, comment []byte) {
		if _, other := others[chain]; other {
			others[chain] = append(others[chain], string(comment))
			return
		}
		got[chain] = append(got[chain], string(comment))
	})
	if err != nil {
		return false, nil, fmt.Errorf("list nftables rules: %w", err)
	}
	for chain, comments := range want { // other chains are foreign
		if !slices.Equal(comments, got[chain]) {
			return false, others, nil
		}
	}
	return true, others, nil
}
