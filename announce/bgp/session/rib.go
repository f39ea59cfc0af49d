package session

import (
	"net/netip"
	"unique"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/announce/bgp/message"
	"github.com/ironvip/ironvip/internal/table"
)

// LocRIB is the routes that this host announces (RFC 4271, 3.2): a table of the caller, which is ready when
// it has every route that this host announces now. Each session sends End-of-RIB then. Prefixes have no host bits.
type LocRIB = table.Reader[netip.Prefix, announce.PrefixRoute]

// attributes are the encoded attributes of routes, each set once in memory; the zero value: no route.
type attributes = unique.Handle[string]

// adjRIBOut makes the UPDATE messages for one peer. It is a position in the feed of the Loc-RIB, so a peer
// that reads slowly delays nobody else, and the attributes with which the peer has each prefix. So a change
// of one prefix costs at most one UPDATE for each peer, whatever the number of prefixes, and a change of the
// settings costs the UPDATEs of the routes that differ.
type adjRIBOut struct {
	loc      LocRIB
	feed     *table.Feed[netip.Prefix, announce.PrefixRoute]
	families [message.Families]bool       // of the session: they have an End-of-RIB
	nextHop  [message.Families]netip.Addr // invalid: no routes of this family
	encode   func(announce.Route) string  // as it is now; "": the peer does not get the route
	sent     map[netip.Prefix]attributes
	prefixes [message.Families]int // that are in sent
	resumed  bool                  // sent has prefixes of the earlier process, until the end
	ended    bool                  // End-of-RIB was appended

	// As of the latest appendUpdates: closed when there are more changes, and when the initial prefixes are
	// complete. A nil ready: that is known.
	changed, ready <-chan struct{}
}

// newAdjRIBOut returns the messages for a peer with which the session has the given families, from the
// beginning. Prefixes of a family without a next hop are left out. The caller closes the feed.
func newAdjRIBOut(loc LocRIB, families [message.Families]bool, nextHop [message.Families]netip.Addr, encode func(announce.Route) string) *adjRIBOut {
	return &adjRIBOut{loc: loc, feed: loc.Watch(), families: families, nextHop: nextHop, encode: encode, sent: map[netip.Prefix]attributes{}}
}

// unknown are the attributes of a prefix that the peer has from the earlier process.
var unknown = unique.Make("unknown")

// resume notes the prefixes that the peer has from the earlier process. Each is sent again, or withdrawn.
func (o *adjRIBOut) resume(prefixes []netip.Prefix) {
	o.resumed = true
	for _, p := range prefixes {
		o.sent[p] = unknown
		o.prefixes[message.FamilyOf(p)]++
	}
}

// appendGone appends the withdrawal of the prefixes of the earlier process that this one does not announce.
func (o *adjRIBOut) appendGone(b []byte) []byte {
	all := o.begin()
	for p, a := range o.sent {
		if a == unknown {
			all.add(&announce.PrefixRoute{Prefix: p}, true, false)
		}
	}
	return all.append(b)
}

// appendUpdates appends the messages for the next changes, which are at most 512 prefixes, and for
// the end of the initial ones. It returns false if there are no more changes yet.
func (o *adjRIBOut) appendUpdates(b []byte) (_ []byte, more bool) {
	// Read before the feed: everything that a ready table has is then in the feed.
	o.ready = o.loc.Ready()
	isReady := table.IsClosed(o.ready)
	if isReady {
		o.ready = nil
	}
	changes, changed := o.feed.TryNext()
	if len(changes) > 0 {
		o.changed = closed // there may be more
		all := o.begin()
		for i := range changes {
			all.add(&changes[i].Value, changes[i].Deleted, false)
		}
		return all.append(b), true
	}
	o.changed = changed
	if isReady && !o.ended {
		o.ended = true
		if o.resumed {
			b = o.appendGone(b)
		}
		for f := range message.Families {
			if o.families[f] {
				b = message.AppendEndOfRIB(b, f)
			}
		}
	}
	return b, false
}

var closed = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// appendChanged appends the messages for all prefixes whose attributes differ from those that the peer has.
func (o *adjRIBOut) appendChanged(b []byte) []byte {
	all := o.begin()
	for _, r := range o.loc.All() {
		all.add(&r, false, false)
	}
	return all.append(b)
}

// appendAgain appends the messages for all prefixes of a family, for a router that asks for them.
func (o *adjRIBOut) appendAgain(b []byte, f message.Family) []byte {
	all := o.begin()
	for _, r := range o.loc.All() {
		if message.FamilyOf(r.Prefix) == f {
			all.add(&r, false, true)
		}
	}
	return all.append(b)
}

// batch collects the changes for some messages.
type batch struct {
	*adjRIBOut
	withdrawn [message.Families][]netip.Prefix
	announced map[group][]netip.Prefix
	groups    []group // of announced, in the order in which they came first
	encoded   map[announce.Route]attributes
}

// group is what prefixes in one message have in common.
type group struct {
	family message.Family
	attributes
}

func (o *adjRIBOut) begin() *batch {
	return &batch{adjRIBOut: o, announced: map[group][]netip.Prefix{}, encoded: map[announce.Route]attributes{}}
}

// add notes that the peer is to have a route from now on, unless the peer has it. Again sends the route also then.
func (b *batch) add(r *announce.PrefixRoute, deleted, again bool) {
	f := message.FamilyOf(r.Prefix)
	if !b.families[f] || !b.nextHop[f].IsValid() && !deleted { // the router may have one of the earlier process
		return
	}
	var none, now attributes
	if !deleted {
		now = b.attributesOf(r.Route)
	}
	was := b.sent[r.Prefix]
	switch {
	case now == none && was == none, now == was && !again:
	case now == none:
		delete(b.sent, r.Prefix)
		b.prefixes[f]--
		b.withdrawn[f] = append(b.withdrawn[f], r.Prefix)
	default:
		if was == none {
			b.prefixes[f]++
		}
		b.sent[r.Prefix] = now
		g := group{f, now}
		if b.announced[g] == nil {
			b.groups = append(b.groups, g)
		}
		b.announced[g] = append(b.announced[g], r.Prefix)
	}
}

func (b *batch) attributesOf(r announce.Route) attributes {
	a, known := b.encoded[r]
	if !known {
		if text := b.encode(r); text != "" {
			a = unique.Make(text)
		}
		b.encoded[r] = a
	}
	return a
}

// append appends the messages. An aggregate comes before the withdrawal of the routes in it.
func (b *batch) append(to []byte) []byte {
	for _, g := range b.groups {
		to = message.AppendAnnounce(to, g.family, []byte(g.Value()), b.nextHop[g.family], b.announced[g])
	}
	for f := range message.Families {
		to = message.AppendWithdraw(to, f, b.nextHop[f], b.withdrawn[f])
	}
	return to
}
