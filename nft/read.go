package nft

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"go4.org/netipx"

	"github.com/ironvip/ironvip/internal/nftwire"
	"github.com/ironvip/ironvip/plane/kernel/filter"
	"github.com/ironvip/ironvip/vip"
)

// content is what the table has besides the sets of every dataplane.
type content struct {
	services  map[vip.FrontendKey]*service
	byNumber  map[uint32]*service
	classes   map[class]uint32        // to their numbers
	chains    [origins]map[class]bool // those that have a chain
	lastClass uint32                  // the last number that a class got
	synProxy  bool                    // the table has the chains for it
	highest   numbers
}

func newContent() *content {
	c := &content{services: map[vip.FrontendKey]*service{}, byNumber: map[uint32]*service{}, classes: map[class]uint32{}}
	for o := range c.chains {
		c.chains[o] = map[class]bool{}
	}
	return c
}

// put adds a service, or replaces the one with its key.
func (c *content) put(s *service) {
	c.drop(s.key)
	c.services[s.key], c.byNumber[s.number] = s, s
}

// drop removes the service with a key, if there is one.
func (c *content) drop(k vip.FrontendKey) {
	if s := c.services[k]; s != nil {
		delete(c.services, k)
		delete(c.byNumber, s.number)
	}
}

// memberOf is the key of a member as it was read.
type memberOf struct{ member, service uint32 }

// reading collects elements until all sets are read: classes first, then services, then the rest.
type reading struct {
	content
	byClass map[uint32]class
	choices map[uint32][]uint32 // by service: the member of each slot
	members map[memberOf]netip.AddrPort
	guarded map[vip.FrontendKey]bool
	shards  int
	odd     string // what isn't as this package writes it, or ""
	layout  *filter.Layout
}

func newReading(l *filter.Layout) *reading {
	return &reading{content: *newContent(), byClass: map[uint32]class{}, choices: map[uint32][]uint32{}, members: map[memberOf]netip.AddrPort{}, guarded: map[vip.FrontendKey]bool{}, layout: l}
}

// readTable reads the table. The content is consistent if the ruleset is intact. If it isn't, services
// may not be whole.
func (t *Target) readTable(ctx context.Context) (*filter.Ruleset, *content, error) {
	r := newReading(t.layout)
	rules, err := t.fw.ReadWith(ctx, r.element)
	if err != nil {
		return nil, nil, err
	}
	// Services that are whole stay, even if the rules or other services aren't.
	r.finish(rules)
	if rules.Intact && r.odd != "" {
		rules.Intact = false
		t.opt.Log.Warn("nftables table has been changed", "table", t.opt.table(), "found", r.odd)
	}
	return rules, &r.content, nil
}

// element reads one element.
func (r *reading) element(set string, x *nftwire.Element) {
	if set == setShards {
		r.shards++
		if len(x.Key) != 4 || x.Verdict == nil || x.Verdict.Chain != shardChain(origin(binary.NativeEndian.Uint32(x.Key))) {
			r.odd = "a strange element in map " + set
		}
		return
	}
	id, known := setsByName[set]
	if !known || !r.decode(id, x) {
		r.odd = "a strange element in set " + set
	}
}

func (r *reading) decode(set setID, x *nftwire.Element) bool {
	key, value := fields{b: x.Key}, fields{b: x.Value}
	switch set.kind {
	case kindServices:
		s := &service{key: key.listener(set)}
		if set.origin.ranged() {
			end := fields{b: x.End}
			s.key.LastPort = end.listener(set).Port
		}
		both := value.word()
		s.number, s.classNo = both&maskNumber, both>>shiftClass
		if r.byNumber[s.number] != nil || originOf(s.key) != set.origin {
			return false
		}
		s.class = r.byClass[s.classNo]
		r.services[s.key], r.byNumber[s.number] = s, s
		r.highest.service = max(r.highest.service, s.number)
	case kindSlots:
		s, i := r.byNumber[key.word()], key.native()
		if s == nil || i >= uint32(s.class.slots) {
			return false
		}
		if s.slots == nil {
			s.slots = make([]netip.AddrPort, s.class.slots)
		}
		s.slots[i] = value.backend(set.family)
	case kindChoices:
		id := key.word()
		s, i := r.byNumber[id], key.native()
		if s == nil || i >= uint32(s.class.slots) || s.class.affinity == 0 {
			return false
		}
		if r.choices[id] == nil {
			r.choices[id] = make([]uint32, s.class.slots)
		}
		r.choices[id][i] = value.word()
	case kindClasses:
		if x.Verdict == nil {
			return false
		}
		c, ok := classOf(x.Verdict.Chain, set.origin)
		n := key.word() >> shiftClass
		if was, known := r.byClass[n]; !ok || known && was != c || r.classes[c] != 0 && r.classes[c] != n {
			return false
		}
		r.byClass[n], r.classes[c], r.chains[set.origin][c] = c, n, true
	case kindMembers:
		m := memberOf{key.word(), key.word()}
		r.members[m] = value.backend(set.family)
		r.highest.member = max(r.highest.member, m.member)
	case kindWeights:
		s := r.byNumber[key.word()]
		if s == nil {
			return false
		}
		s.weigh(key.backend(set.family), uint16(value.word()))
	case kindSources:
		s, end := r.byNumber[key.word()], fields{b: x.End}
		if s == nil || end.word() != s.number {
			return false
		}
		p, ok := netipx.IPRangeFrom(key.addr(set.family), end.addr(set.family)).Prefix()
		if !ok {
			return false
		}
		s.sources = append(s.sources, p)
	case kindGuarded:
		r.guarded[key.listener(set)] = true
	}
	return !key.short && !value.short
}

// finish joins what was read.
func (r *reading) finish(rules *filter.Ruleset) {
	members := 0
	for id, choices := range r.choices {
		s := r.byNumber[id]
		s.slots, s.members = make([]netip.AddrPort, len(choices)), map[netip.AddrPort]uint32{}
		for i, member := range choices {
			addr := r.members[memberOf{member, id}]
			if was := s.members[addr]; was == 0 {
				s.members[addr] = member
				members++
			} else if was != member {
				r.odd = fmt.Sprintf("two members with one backend of %s", s.key)
			}
			s.slots[i] = addr
		}
	}
	needed := false
	for _, s := range r.services {
		needed = needed || s.class.synProxy
		slices.SortFunc(s.sources, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
		if !r.chains[originOf(s.key)][s.class] || !s.whole() || s.guarded() != r.guarded[s.key] {
			r.odd = fmt.Sprintf("a part of %s is missing or has changed", s.key)
		}
	}
	any, whole := r.layout.HasSynProxy(rules.Chains, guarded)
	r.synProxy = any
	switch {
	case (any || needed) && !whole:
		r.odd = "a chain for syn_proxy"
	case r.shards != int(shards):
		r.odd = fmt.Sprintf("map %s has %d elements", setShards, r.shards)
	case members != len(r.members):
		r.odd = fmt.Sprintf("%d members, not %d", len(r.members), members)
	case !r.chainsIntact(rules.Chains):
		r.odd = "a chain of a class"
	}
}

// chainsIntact compares the chains of classes with those that there must be.
func (r *reading) chainsIntact(chains map[string][]string) bool {
	want := map[string]class{}
	for o := range origins {
		for c := range r.chains[o] {
			want[c.chain(o)] = c
		}
	}
	for name, comments := range chains {
		c, known := want[name]
		if !known {
			if isClassChain(name) {
				return false
			}
			continue // foreign
		}
		delete(want, name)
		var ours []string
		for _, one := range c.rules(r.layout, 0) {
			ours = append(ours, string(filter.Comment(layoutVersion, one.comment)))
		}
		if !slices.Equal(comments, ours) {
			return false
		}
	}
	return len(want) == 0
}

// fields reads the parts of a key or value in order. Missing parts are zero.
type fields struct {
	b     []byte
	short bool
}

func (r *fields) take(n int) []byte {
	if len(r.b) < n {
		r.b, r.short = nil, true
		return make([]byte, n)
	}
	part := r.b[:n]
	r.b = r.b[n:]
	return part
}

func (r *fields) word() uint32   { return binary.BigEndian.Uint32(r.take(4)) }
func (r *fields) native() uint32 { return binary.NativeEndian.Uint32(r.take(4)) }

func (r *fields) addr(f vip.Family) netip.Addr {
	a, _ := netip.AddrFromSlice(r.take(4 * int(wordsOf(f))))
	return a
}

func (r *fields) backend(f vip.Family) netip.AddrPort {
	a := r.addr(f)
	return netip.AddrPortFrom(a, binary.BigEndian.Uint16(r.take(4)))
}

func (r *fields) listener(set setID) vip.FrontendKey {
	k := vip.FrontendKey{Addr: r.addr(set.family)}
	k.Protocol = vip.Protocol(r.take(4)[0])
	k.Port = binary.BigEndian.Uint16(r.take(4))
	if set.origin == fromInternal || set.origin == fromInternalRanges {
		k.Audience = vip.InternalClients
	}
	return k
}
