package announcing

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/internal/backoff"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/text"
	"github.com/ironvip/ironvip/ipam"
)

// Kinds of events.
const (
	eventAnnounced = "vip_announced"
	eventWithdrawn = "vip_withdrawn"
	eventConflict  = "vip_conflict"
	eventPeerUp    = "announce_peer_up"
	eventPeerDown  = "announce_peer_down"
)

// results is what has become of the VIPs that this host is to announce, as events have told it.
type results struct {
	here      map[netip.Addr]bool // the VIPs, and whether each is announced
	announced int                 // of these
	places    map[netip.Addr]announce.Announced
}

// followResults turns changes of the mirrors into events. A change of a session with a router costs O(VIPs) if the session
// begins or ceases to carry a family, or to keep up.
func (a *Announcing) followResults(ctx context.Context) error {
	announcements, announced, peers := a.Announcements.Watch(), a.Announced.Watch(), a.Peers.Watch()
	defer announcements.Close()
	defer announced.Close()
	defer peers.Close()
	x := &results{here: map[netip.Addr]bool{}, places: map[netip.Addr]announce.Announced{}}
	up := map[announce.PeerKey]bool{}
	carries := map[string]announce.Peer{} // the sessions with routers
	for {
		todo := map[netip.Addr]struct{}{}
		batch, more := announcements.TryNext()
		for i := range batch {
			todo[batch[i].Value.Addr] = struct{}{}
		}
		results, moreResults := announced.TryNext()
		for i := range results {
			r := &results[i].Value
			if r.State == announce.StateConflict && !results[i].Deleted && x.places[r.Addr].State != r.State {
				a.Events.Add(event.Event{Kind: eventConflict, Object: r.Addr.String(), Message: fmt.Sprintf("%s at %s: %s", r.Addr, r.At, r.Reason)})
			}
			if !results[i].Deleted {
				x.places[r.Addr] = *r
			} else if x.places[r.Addr].At == r.At { // else it is announced on other interfaces now
				delete(x.places, r.Addr)
			}
			todo[r.Addr] = struct{}{}
		}
		changed, morePeers := peers.TryNext()
		for i := range changed {
			p := &changed[i].Value
			was, known := up[p.PeerKey]
			switch is := p.Up && !changed[i].Deleted; {
			case is && !was:
				a.Events.Add(event.Event{Kind: eventPeerUp, Object: p.Name, Message: fmt.Sprintf("%s %s is %s", kindWord(p.Kind), p.Name, p.State)})
			case was && changed[i].Deleted:
				a.Events.Add(event.Event{Kind: eventPeerDown, Object: p.Name, Message: fmt.Sprintf("%s %s is gone", kindWord(p.Kind), p.Name)})
			case !is && was || !is && !known && !changed[i].Deleted:
				a.Events.Add(event.Event{Kind: eventPeerDown, Object: p.Name, Message: fmt.Sprintf("%s %s is %s: %s", kindWord(p.Kind), p.Name, p.State, p.Reason)})
			}
			if up[p.PeerKey] = p.Up; changed[i].Deleted {
				delete(up, p.PeerKey)
			}
			if p.Kind == announce.BGPSession {
				now := announce.Peer{PeerKey: p.PeerKey, Up: p.Up, Since: p.Since, Reason: p.Reason, Lacks: p.Lacks, Sending: p.Sending}
				if changed[i].Deleted {
					now = announce.Peer{}
				}
				if before := carries[p.Name]; before.Up != now.Up || before.Lacks != now.Lacks || before.Sending != now.Sending {
					for addr := range x.here {
						todo[addr] = struct{}{}
					}
				}
				if carries[p.Name] = now; changed[i].Deleted {
					delete(carries, p.Name)
				}
			}
		}
		a.Events.AddMany(a.look(x, todo, carries), func(n int) string {
			return text.Plural(n, "more VIP") + " began or ceased to be announced here"
		})
		if len(batch)+len(results)+len(changed) > 0 {
			continue
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-more:
		case <-moreResults:
		case <-morePeers:
		}
	}
}

// look compares VIPs with what was reported of them.
func (a *Announcing) look(x *results, todo map[netip.Addr]struct{}, sessions map[string]announce.Peer) (events []event.Event) {
	if len(todo) == 0 {
		return nil
	}
	places := make([]announce.Announced, 0, len(sessions)+1)
	for addr := range todo {
		n, _, ok := a.Announcements.Get(addr)
		was, why := x.here[addr], n.Why
		is := ok && n.Here
		if was {
			x.announced--
		}
		if delete(x.here, addr); is {
			places = places[:0]
			if at, ok := x.places[addr]; ok {
				places = append(places, at)
			}
			if n.Mode == announce.BGP {
				for _, p := range sessions {
					r, _ := p.Result(&n)
					places = append(places, r)
				}
			}
			state, reason := announce.Outcome(n.Mode, places)
			if is = state == announce.StateAnnounced; !is {
				why = reason
			}
			if x.here[addr] = is; is {
				x.announced++
			}
		}
		switch {
		case is && !was:
			events = append(events, event.Event{Kind: eventAnnounced, Object: addr.String(), Message: fmt.Sprintf("%s is announced here: %s", addr, why)})
		case was && !is:
			events = append(events, event.Event{Kind: eventWithdrawn, Object: addr.String(), Message: fmt.Sprintf("%s is no longer announced here: %s", addr, why)})
		}
	}
	a.announced.Store(int64(x.announced))
	a.waiting.Store(int64(len(x.here) - x.announced))
	slices.SortFunc(events, func(a, b event.Event) int { return strings.Compare(a.Object, b.Object) })
	return events
}

// endMoves forgets the moves to this host that the announcer says are over, and those of VIPs that services have given up: the
// next service with the address has not been moved. Without a fleet, that includes what was given up before a start. In a fleet,
// another host sees that, and this host may learn of a move before it learns of the lease.
func (a *Announcing) endMoves(ctx context.Context) error {
	feed, moves, leases := a.Announcements.Watch(), a.Nodes.Moves.Watch(), a.Leases.Watch()
	defer feed.Close()
	defer moves.Close()
	defer leases.Close()
	synced := a.Synced                // the leases are loaded
	todo := map[netip.Addr]struct{}{} // moves to look at
	retry := backoff.Backoff{Lo: time.Second, Hi: time.Minute}
	over := map[netip.Addr]uint32{}
	var again <-chan time.Time
	for {
		batch, more := feed.TryNext()
		for i := range batch {
			if n := &batch[i].Value; n.Over != 0 && !batch[i].Deleted {
				over[n.Addr] = n.Over
			}
		}
		moved, moreMoves := moves.TryNext()
		for i := range moved {
			if !a.Fleet {
				todo[moved[i].Value.Addr] = struct{}{}
			}
		}
		changed, moreLeases := leases.TryNext()
		for i := range changed {
			addr := changed[i].Value.Resource.Addr
			if _, _, moved := a.Nodes.Moves.Get(addr); moved {
				todo[addr] = struct{}{}
			}
		}
		if synced == nil {
			for addr := range todo {
				l, _, leased := a.Leases.Get(ipam.Resource{Addr: addr})
				if m, _, moved := a.Nodes.Moves.Get(addr); moved && (!leased || l.State != ipam.Held) {
					over[addr] = m.Stamp()
				}
			}
			clear(todo)
		}
		again = nil
		for addr, stamp := range over {
			if err := a.Nodes.EndMove(ctx, addr, stamp); err != nil {
				a.Log.Warn("forget the move of a VIP that is over", "vip", addr, "err", err)
				again = time.After(retry.Next())
				break
			}
			retry.Reset()
			delete(over, addr)
		}
		if len(batch)+len(moved)+len(changed) > 0 {
			continue
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-synced:
			synced = nil
		case <-more:
		case <-moreMoves:
		case <-moreLeases:
		case <-again:
		}
	}
}
