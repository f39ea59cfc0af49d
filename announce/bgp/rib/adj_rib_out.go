package rib

import (
	"bytes"
	"fmt"
	"net/netip"

	"github.com/ironvip/ironvip/announce/bgp/message"
	"github.com/ironvip/ironvip/internal/table"
)

// AdjRIBOut makes the UPDATE messages for one peer. Open one with LocRIB.Out, and close it. It is
// not safe for concurrent use.
type AdjRIBOut struct {
	loc        *LocRIB
	feed       *table.Feed[netip.Prefix, netip.Prefix]
	families   [message.Families]bool       // of the session: they have an End-of-RIB
	nextHop    [message.Families]netip.Addr // invalid: no routes of this family
	attributes []byte
	ended      bool // End-of-RIB was appended

	changed, ready <-chan struct{} // as of the latest AppendUpdates
}

// Out returns the messages for a peer with which the session has the given families, from the
// beginning. Prefixes of a family without a next hop are left out. Call SetAttributes first.
func (r *LocRIB) Out(families [message.Families]bool, nextHop [message.Families]netip.Addr) *AdjRIBOut {
	return &AdjRIBOut{loc: r, feed: r.Watch(), families: families, nextHop: nextHop}
}

// Close ends the use of the Loc-RIB.
func (o *AdjRIBOut) Close() { o.feed.Close() }

// SetAttributes sets the encoded path attributes, and reports whether they differ from before.
// Messages that were appended before have the former ones; see AppendAll. It is an error if they leave
// no room for a prefix: no message could then be made.
func (o *AdjRIBOut) SetAttributes(attributes []byte) (changed bool, err error) {
	if len(attributes) > message.MaxAttributes {
		return false, fmt.Errorf("path attributes of %d bytes are longer than the %d that a message has room for", len(attributes), message.MaxAttributes)
	}
	changed = !bytes.Equal(o.attributes, attributes)
	o.attributes = attributes
	return changed, nil
}

// sends reports whether prefixes of the family are announced.
func (o *AdjRIBOut) sends(f message.Family) bool { return o.families[f] && o.nextHop[f].IsValid() }

// AppendUpdates appends the messages for the next changes, which are at most 512 prefixes, and for
// the end of the initial ones. It returns false if there are no more changes yet. Changed and Ready
// say when to call it again.
func (o *AdjRIBOut) AppendUpdates(b []byte) (_ []byte, more bool) {
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
		for f := range message.Families {
			if o.families[f] {
				b = message.AppendEndOfRIB(b, f)
			}
		}
	}
	return b, false
}

// Changed returns a channel that is closed when there are changes after the latest AppendUpdates.
func (o *AdjRIBOut) Changed() <-chan struct{} { return o.changed }

// Ready returns a channel that is closed when the initial prefixes are complete; nil: AppendUpdates
// knows that.
func (o *AdjRIBOut) Ready() <-chan struct{} { return o.ready }

var closed = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

func (o *AdjRIBOut) appendChanges(b []byte, batch []table.Change[netip.Prefix]) []byte {
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

// AppendAll appends the messages for all prefixes of a family, for a router that asks for them or
// for new attributes.
func (o *AdjRIBOut) AppendAll(b []byte, f message.Family) []byte {
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

// Prefixes returns how many prefixes of each family are announced.
func (o *AdjRIBOut) Prefixes() (n [message.Families]int) {
	for f := range message.Families {
		if o.sends(f) {
			n[f] = o.loc.count[f]()
		}
	}
	return n
}
