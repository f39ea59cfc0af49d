package ipvs

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/ironvip/ironvip/vip"
	"go4.org/netipx"
	"golang.org/x/sys/unix"
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

// query asks about inet tables. That a listing was interrupted by a change is no
// error: ours has no other writer, and what is missed is found by the next one.
func (f *firewall) query(ctx context.Context, typ, flags uint16, put func(b []byte) []byte, each func(data []byte) error) error {
	err := f.conn.query(ctx, func(b []byte) []byte {
		return put(appendTableMessage(b, typ, flags))
	}, func(got uint16, data []byte) error {
		if got>>8 != unix.NFNL_SUBSYS_NFTABLES || len(data) < 4 {
			return errMalformed
		}
		return each(data)
	})
	if err == errInterrupted {
		return nil
	}
	return err
}

// stringsOf returns an object's attributes of two types.
func stringsOf(data []byte, first, second uint16) (a, b string) {
	all := attrs{b: data[4:]}
	for typ, v, ok := all.next(); ok; typ, v, ok = all.next() {
		switch typ {
		case first:
			a = text(v)
		case second:
			b = text(v)
		}
	}
	return a, b
}

// there reports whether there is a table.
func (f *firewall) there(ctx context.Context) (bool, error) {
	err := f.query(ctx, unix.NFT_MSG_GETTABLE, 0, func(b []byte) []byte {
		return appendAttrString(b, unix.NFTA_TABLE_NAME, f.layout.table.Name)
	}, func([]byte) error { return nil })
	if err == unix.ENOENT {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for nftables table inet %s: %w", f.layout.table.Name, err)
	}
	return true, nil
}

// read returns what the table holds. A missing table is an empty ruleset.
func (f *firewall) read(ctx context.Context) (*ruleset, error) {
	if err := f.open(ctx); err != nil {
		return nil, err
	}
	defer f.conn.close()
	there, err := f.there(ctx)
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
			var edges []edge
			err := f.elements(ctx, s.name(fam), func(x *elementBytes) {
				if s.kind() == kindRange {
					if at, ok := x.asEdge(); ok {
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
				return nil, err
			}
			addRanges(&pods, edges)
		}
	}
	r.assign(unowned)
	f.size = len(r.sets)
	r.pods, err = pods.IPSet()
	return r, err
}

// sets returns the names of the table's sets whose keys are as long as ours, or
// are none of ours.
func (f *firewall) sets(ctx context.Context) (map[string]bool, error) {
	found := make(map[string]bool, len(f.layout.order))
	err := f.query(ctx, unix.NFT_MSG_GETSET, unix.NLM_F_DUMP, func(b []byte) []byte {
		return appendAttrString(b, unix.NFTA_SET_TABLE, f.layout.table.Name)
	}, func(data []byte) error {
		var name string
		var size uint32
		a := attrs{b: data[4:]}
		for typ, v, ok := a.next(); ok; typ, v, ok = a.next() {
			switch typ {
			case unix.NFTA_SET_NAME:
				name = text(v)
			case unix.NFTA_SET_KEY_LEN:
				if len(v) >= 4 {
					size = binary.BigEndian.Uint32(v)
				}
			}
		}
		ours := f.layout.sets[name]
		found[name] = ours == nil || size == ours.KeyType.Bytes
		return a.err
	})
	if err != nil {
		return nil, fmt.Errorf("list nftables sets: %w", err)
	}
	return found, nil
}

// elements lists a set's elements, each valid during the call only.
func (f *firewall) elements(ctx context.Context, set string, each func(x *elementBytes)) error {
	err := f.query(ctx, unix.NFT_MSG_GETSETELEM, unix.NLM_F_DUMP, func(b []byte) []byte {
		b = appendAttrString(b, unix.NFTA_SET_ELEM_LIST_TABLE, f.layout.table.Name)
		return appendAttrString(b, unix.NFTA_SET_ELEM_LIST_SET, set)
	}, func(data []byte) error {
		list, err := elementList(data)
		for err == nil && f.one.next(&list) {
			each(&f.one)
		}
		return errors.Join(err, list.err)
	})
	f.one = elementBytes{} // what it points to belongs to the socket
	if err != nil {
		return fmt.Errorf("list nftables set %s: %w", set, err)
	}
	return nil
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
	err := f.query(ctx, unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP, func(b []byte) []byte { return b }, func(data []byte) error {
		if table, _ := stringsOf(data, unix.NFTA_CHAIN_TABLE, 0); table != f.layout.table.Name {
			return nil
		}
		c, err := decodeChain(data)
		chains = append(chains, c)
		return err
	})
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
	err = f.query(ctx, unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP, func(b []byte) []byte {
		return appendAttrString(b, unix.NFTA_RULE_TABLE, f.layout.table.Name)
	}, func(data []byte) error {
		var chain string
		var comment []byte
		a := attrs{b: data[4:]}
		for typ, v, ok := a.next(); ok; typ, v, ok = a.next() {
			switch typ {
			case unix.NFTA_RULE_CHAIN:
				chain = text(v)
			case unix.NFTA_RULE_USERDATA:
				comment = v
			}
		}
		next, ours := comments[chain]
		switch {
		case !ours: // in a chain of somebody else
		case len(next) == 0 || !bytes.Equal(next[0], comment):
			intact = false
		default:
			comments[chain] = next[1:]
			left--
		}
		return a.err
	})
	if err != nil {
		return false, fmt.Errorf("list nftables rules: %w", err)
	}
	return intact && left == 0, nil
}

// decodeChain reads a chain's name, and its hook where it has one.
func decodeChain(data []byte) (c nftables.Chain, err error) {
	a := attrs{b: data[4:]}
	for typ, v, ok := a.next(); ok; typ, v, ok = a.next() {
		switch typ {
		case unix.NFTA_CHAIN_NAME:
			c.Name = text(v)
		case unix.NFTA_CHAIN_HOOK:
			hook := attrs{b: v}
			for typ, v, ok := hook.next(); ok; typ, v, ok = hook.next() {
				if len(v) < 4 {
					continue
				}
				switch n := binary.BigEndian.Uint32(v); typ {
				case unix.NFTA_HOOK_HOOKNUM:
					c.Hooknum = nftables.ChainHookRef(nftables.ChainHook(n))
				case unix.NFTA_HOOK_PRIORITY:
					c.Priority = nftables.ChainPriorityRef(nftables.ChainPriority(int32(n)))
				}
			}
			if hook.err != nil {
				return c, hook.err
			}
		}
	}
	return c, a.err
}
