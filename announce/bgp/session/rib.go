package session

import (
	"net/netip"

	"github.com/ironvip/ironvip/announce/bgp/message"
	"github.com/ironvip/ironvip/internal/table"
)

// Routes is a table of prefixes without host bits.
type Routes = table.Reader[netip.Prefix, netip.Prefix]

// LocRIB is the set of prefixes that this host announces to every peer (RFC 4271, 3.2): a table of the
// caller, which is ready when it has every prefix that this host announces now. Each session sends
// End-of-RIB then.
type LocRIB struct {
	Routes
	count [message.Families]func() int
}

// NewLocRIB returns the set of a table's prefixes.
func NewLocRIB(routes Routes) *LocRIB {
	r := &LocRIB{Routes: routes}
	for f := range message.Families {
		r.count[f] = routes.Sum(func(p *netip.Prefix) int {
			if message.FamilyOf(*p) == f {
				return 1
			}
			return 0
		})
	}
	return r
}

// adjRIBOut makes the UPDATE messages for one peer. It stores no routes: it is a position in the feed of
// the Loc-RIB, and the attributes, which are the same for all routes of a peer. So a change of one prefix
// costs one UPDATE for each peer, whatever the number of prefixes, and a peer that reads slowly delays
// nobody else.
type adjRIBOut struct {
	loc        *LocRIB
	feed       *table.Feed[netip.Prefix, netip.Prefix]
	families   [message.Families]bool       // of the session: they have an End-of-RIB
	nextHop    [message.Families]netip.Addr // invalid: no routes of this family
	attributes []byte                       // encoded; of the messages that are appended next
	ended      bool                         // End-of-RIB was appended
	before     []netip.Prefix               // that the peer may have of an earlier process

	// As of the latest appendUpdates: closed when there are more changes, and when the initial prefixes are
	// complete. A nil ready: that is known.
	changed, ready <-chan struct{}
}

// out returns the messages for a peer with which the session has the given families, from the
// beginning. Prefixes of a family without a next hop are left out. The caller closes the feed.
func (r *LocRIB) out(families [message.Families]bool, nextHop [message.Families]netip.Addr) *adjRIBOut {
	return &adjRIBOut{loc: r, feed: r.Watch(), families: families, nextHop: nextHop}
}

// sends reports whether prefixes of the family are announced.
func (o *adjRIBOut) sends(f message.Family) bool { return o.families[f] && o.nextHop[f].IsValid() }

// appendUpdates appends the messages for the next changes, which are at most 512 prefixes, and for
// the end of the initial ones. It returns false if there are no more changes yet.
func (o *adjRIBOut) appendUpdates(b []byte) (_ []byte, more bool) {
	// Read before the feed: everything that a ready table has is then in the feed.
	o.ready = o.loc.Ready()
	isReady := table.IsClosed(o.ready)
	if isReady {
		o.ready = nil
	}
	batch, changed := o.feed.TryNext()
	if len(batch) > 0 {
		o.changed = closed // there may be more
		return o.appendChanges(b, batch), true
	}
	o.changed = changed
	if isReady && !o.ended {
		o.ended = true
		b = o.appendGone(b)
		for f := range message.Families {
			if o.families[f] {
				b = message.AppendEndOfRIB(b, f)
			}
		}
	}
	return b, false
}

// appendGone appends the withdrawal of prefixes that an earlier process has announced.
func (o *adjRIBOut) appendGone(b []byte) []byte {
	var gone [message.Families][]netip.Prefix
	for _, p := range o.before {
		if _, _, announced := o.loc.Get(p); !announced {
			gone[message.FamilyOf(p)] = append(gone[message.FamilyOf(p)], p)
		}
	}
	o.before = nil
	for f := range message.Families {
		b = message.AppendWithdraw(b, f, o.nextHop[f], gone[f])
	}
	return b
}

var closed = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

func (o *adjRIBOut) appendChanges(b []byte, batch []table.Change[netip.Prefix]) []byte {
	var announced, withdrawn [message.Families][]netip.Prefix
	for _, c := range batch {
		f := message.FamilyOf(c.Value)
		switch {
		case !o.sends(f):
		case c.Deleted:
			withdrawn[f] = append(withdrawn[f], c.Value)
		default:
			announced[f] = append(announced[f], c.Value)
		}
	}
	for f := range message.Families {
		b = message.AppendWithdraw(b, f, o.nextHop[f], withdrawn[f])
		b = message.AppendAnnounce(b, f, o.attributes, o.nextHop[f], announced[f])
	}
	return b
}

// appendAll appends the messages for all prefixes of a family, for a router that asks for them or
// for new attributes.
func (o *adjRIBOut) appendAll(b []byte, f message.Family) []byte {
	if !o.sends(f) {
		return b
	}
	var all []netip.Prefix
	for p := range o.loc.All() {
		if message.FamilyOf(p) == f {
			all = append(all, p)
		}
	}
	return message.AppendAnnounce(b, f, o.attributes, o.nextHop[f], all)
}

// prefixes returns how many prefixes of each family are announced.
func (o *adjRIBOut) prefixes() (n [message.Families]int) {
	for f := range message.Families {
		if o.sends(f) {
			n[f] = o.loc.count[f]()
		}
	}
	return n
}
