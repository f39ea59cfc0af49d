package ipvs

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"go4.org/netipx"

	"github.com/ironvip/ironvip/internal/nftwire"
	"github.com/ironvip/ironvip/vip"
)

// ruleset is what the table holds. Make it with newRuleset.
type ruleset struct {
	intact bool // the rules are ours, of this version
	// sets say of a key in which sets it is: one bit for each. Others are elements
	// that have more than a key.
	sets   map[vip.FrontendKey]setBits
	others map[element]struct{}
	pods   *netipx.IPSet
}

// setBits is a set of setIDs.
type setBits uint32

const _ = uint(32 - setCount) // there is a bit for each

func newRuleset(size int) *ruleset {
	return &ruleset{sets: make(map[vip.FrontendKey]setBits, size), others: map[element]struct{}{}, pods: &netipx.IPSet{}}
}

// bitsOfOthers are the sets whose elements are not single frontends'.
const bitsOfOthers setBits = 1<<setVIPs | 1<<setHairpin | 1<<setPods

// plain reports whether an element is a key and nothing else.
func (e *element) plain() bool { return e.mark == 0 && !e.source.IsValid() }

func (r *ruleset) add(e element) {
	if e.plain() {
		r.sets[e.key] |= 1 << e.set
	} else {
		r.others[e] = struct{}{}
	}
}

func (r *ruleset) has(e element) bool {
	if e.plain() {
		return r.sets[e.key]&(1<<e.set) != 0
	}
	_, ok := r.others[e]
	return ok
}

// read returns what the table holds. A missing table is an empty ruleset.
func (f *firewall) read(ctx context.Context) (*ruleset, error) {
	if err := f.open(ctx); err != nil {
		return nil, err
	}
	defer f.conn.Close()
	there, err := f.tableExists(ctx)
	if !there || err != nil {
		return newRuleset(0), err
	}
	intact, err := f.rulesIntact(ctx)
	if err != nil {
		return nil, err
	}
	found, err := f.sets(ctx)
	if err != nil {
		return nil, err
	}
	r := newRuleset(f.size)
	r.intact = intact
	var unowned []element
	var pods netipx.IPSetBuilder
	for s := range setCount {
		for _, fam := range families {
			if !found[s.name(fam)] {
				r.intact = false
				continue
			}
			if s.passing() {
				continue
			}
			var edges []nftwire.Edge
			err := f.conn.Elements(ctx, f.layout.table.Name, s.name(fam), func(x *nftwire.Element) {
				if s.kind() == kindRange {
					if at, ok := x.AsEdge(); ok {
						edges = append(edges, at)
					}
					return
				}
				e, ok := decodeElement(s, fam, x)
				switch {
				case !ok:
					r.intact = false
				case s.hasMark() && !s.isMap():
					unowned = append(unowned, e)
				default:
					r.add(e)
				}
			})
			if err != nil {
				return nil, fmt.Errorf("list nftables set %s: %w", s.name(fam), err)
			}
			nftwire.AddRanges(&pods, edges)
		}
	}
	r.assign(unowned)
	f.size = len(r.sets)
	r.pods, err = pods.IPSet()
	return r, err
}

// TableExists asks on the open socket.
func (f *firewall) tableExists(ctx context.Context) (bool, error) {
	there, err := f.conn.TableExists(ctx, f.layout.table.Name)
	if err != nil {
		return false, fmt.Errorf("look for nftables table inet %s: %w", f.layout.table.Name, err)
	}
	return there, nil
}

// sets returns the names of the table's sets, except those of ours whose keys
// have another length.
func (f *firewall) sets(ctx context.Context) (map[string]bool, error) {
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

// assign adds elements of sets of marks, whose frontends the maps tell. A mark
// that no map has, or that several frontends have, is nothing that we left.
func (r *ruleset) assign(unowned []element) {
	type owned struct {
		family vip.Family
		mark   uint32
	}
	keys := map[owned]vip.FrontendKey{}
	for e := range r.others {
		if !e.set.isMap() {
			continue
		}
		at := owned{vip.FamilyOf(e.key.Addr), e.mark}
		if other, taken := keys[at]; taken && other != e.key {
			r.intact = false
		}
		keys[at] = e.key
	}
	for _, e := range unowned {
		key, ok := keys[owned{vip.FamilyOf(e.key.Addr), e.mark}]
		if !ok {
			r.intact = false
			continue
		}
		e.key = key
		r.add(e)
	}
}

// rulesIntact compares the rules by their comments, which carry the version,
// chain by chain and in order.
func (f *firewall) rulesIntact(ctx context.Context) (bool, error) {
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
	comments := map[string][][]byte{} // those that are still to come, by chain
	for i := range f.layout.rules {
		r := &f.layout.rules[i]
		comments[r.chain] = append(comments[r.chain], r.userData())
	}
	left, intact := len(f.layout.rules), true
	err = f.conn.Rules(ctx, f.layout.table.Name, func(chain string, comment []byte) {
		next, ours := comments[chain]
		switch {
		case !ours: // in a chain of somebody else
		case len(next) == 0 || !bytes.Equal(next[0], comment):
			intact = false
		default:
			comments[chain] = next[1:]
			left--
		}
	})
	if err != nil {
		return false, fmt.Errorf("list nftables rules: %w", err)
	}
	return intact && left == 0, nil
}
