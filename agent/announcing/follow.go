package announcing

import (
	"context"
	"fmt"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/text"
)

// maxEvents bounds the events of one batch of changed VIPs. One more counts the others.
const maxEvents = 20

// Kinds of events.
const (
	eventAnnounced = "vip_announced"
	eventWithdrawn = "vip_withdrawn"
	eventConflict  = "vip_conflict"
	eventPeerUp    = "announce_peer_up"
	eventPeerDown  = "announce_peer_down"
)

// followResults turns changes of the mirrors into events.
func (a *Announcing) followResults(ctx context.Context) error {
	announcements, announced, peers := a.Announcements.Watch(), a.Announced.Watch(), a.Peers.Watch()
	defer announcements.Close()
	defer announced.Close()
	defer peers.Close()
	here := map[string]bool{}
	conflicts := map[announce.Place]bool{}
	up := map[announce.PeerKey]bool{}
	for {
		var events []event.Event
		batch, more := announcements.TryNext()
		for i := range batch {
			n := &batch[i].Value
			is, was := n.Here && !batch[i].Deleted, here[n.Addr.String()]
			switch {
			case is && !was:
				here[n.Addr.String()] = true
				events = append(events, event.Event{Kind: eventAnnounced, Object: n.Addr.String(), Message: fmt.Sprintf("%s is announced here: %s", n.Addr, n.Why)})
			case was && !is:
				delete(here, n.Addr.String())
				events = append(events, event.Event{Kind: eventWithdrawn, Object: n.Addr.String(), Message: fmt.Sprintf("%s is no longer announced here: %s", n.Addr, n.Why)})
			}
		}
		a.add(events)
		results, moreResults := announced.TryNext()
		for i := range results {
			r := &results[i].Value
			is := r.State == stateConflict && !results[i].Deleted
			if is && !conflicts[r.Place] {
				a.Events.Add(event.Event{Kind: eventConflict, Object: r.Addr.String(), Message: fmt.Sprintf("%s at %s: %s", r.Addr, r.At, r.Reason)})
			}
			if delete(conflicts, r.Place); is {
				conflicts[r.Place] = true
			}
		}
		changed, morePeers := peers.TryNext()
		for i := range changed {
			p := &changed[i].Value
			was, known := up[p.PeerKey]
			switch is := p.Up && !changed[i].Deleted; {
			case is && !was:
				a.Events.Add(event.Event{Kind: eventPeerUp, Object: p.Name, Message: fmt.Sprintf("%s %s is %s", kindWord(p.Kind), p.Name, p.State)})
			case !is && was || !is && !known:
				a.Events.Add(event.Event{Kind: eventPeerDown, Object: p.Name, Message: fmt.Sprintf("%s %s is %s: %s", kindWord(p.Kind), p.Name, p.State, p.Reason)})
			}
			if up[p.PeerKey] = p.Up; changed[i].Deleted {
				delete(up, p.PeerKey)
			}
		}
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

func (a *Announcing) add(events []event.Event) {
	for i, e := range events {
		if i == maxEvents {
			a.Events.Add(event.Event{Kind: e.Kind, Message: text.Plural(len(events)-i, "more VIP") + " began or ceased to be announced here"})
			return
		}
		a.Events.Add(e)
	}
}
