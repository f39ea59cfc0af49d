// Package lostnodes has the nodes that were present and are silent.
//
// In a fleet, its input is the roster, which the leader keeps: a node without a session in Consul is
// lost. Without a fleet, the nodes are the peers of the announcer, and a peer without heartbeats is
// lost. Its outputs are a table for the API, events, a line of `ironvip status` and a metric. It
// writes nothing to the fleet.
package lostnodes

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/announce/heartbeat"
	"github.com/ironvip/ironvip/fleet/roster"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/internal/text"
	"github.com/ironvip/ironvip/internal/wake"
)

// Node is a node that is lost.
type Node struct {
	Name    string
	Address string // without a fleet: of its heartbeats
	Since   time.Time
	VIPs    []netip.Addr // the first ones that it announced, in order
	Owned   int          // how many VIPs it announced
}

// Announced returns the VIPs in words: "192.0.2.10, 192.0.2.11 and 2 more"; "" for none.
func (n *Node) Announced(named int) string {
	var out []string
	for _, a := range n.VIPs[:min(named, len(n.VIPs))] {
		out = append(out, a.String())
	}
	more := max(n.Owned-len(out), 0)
	switch {
	case len(out) == 0 && more > 0:
		return text.Plural(more, "VIP")
	case more > 0:
		return fmt.Sprintf("%s and %d more", strings.Join(out, ", "), more)
	}
	return strings.Join(out, ", ")
}

// Roster is the part of a *roster.Roster that is read.
type Roster interface {
	Lost() table.Reader[string, roster.LostRow]
	IsPresent(node string) bool
}

// Options are what the package needs. All but Roster are required.
type Options struct {
	Roster   Roster // nil: a host without a fleet
	Peers    table.Reader[announce.PeerKey, announce.Peer]
	Draining func(node string) bool
	// Configured reports whether an address is that of a peer. It is called without a fleet only.
	Configured func(address string) bool
	Clock      *table.Clock
	Events     *event.Log
}

// Follower keeps the table. Create it with New and start Run.
type Follower struct {
	o    Options
	rows *table.Table[string, Node]
}

// New returns a follower. Its table is empty until Run.
func New(o Options) *Follower {
	return &Follower{o: o, rows: table.New(o.Clock, func(n *Node) string { return n.Name }, func(a, b Node) bool { return reflect.DeepEqual(a, b) })}
}

// Nodes returns the nodes that are lost, by name.
func (f *Follower) Nodes() []Node {
	byName := map[string]Node{} // All may yield a changing row twice
	for name, n := range f.rows.All() {
		byName[name] = n
	}
	var out []Node
	for _, n := range byName {
		out = append(out, n)
	}
	slices.SortFunc(out, func(a, b Node) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// Announced returns the first VIPs that a node announced when this host received it last, and how
// many they were.
func (f *Follower) Announced(node string) (vips []netip.Addr, owned int) {
	p, _, _ := f.o.Peers.Get(announce.PeerKey{Kind: announce.Neighbor, Name: node})
	return p.VIPs, p.Owned
}

// Run follows the inputs until the context ends, and returns its error.
func (f *Follower) Run(ctx context.Context) error {
	if f.o.Roster != nil {
		return f.followRoster(ctx)
	}
	return f.followPeers(ctx)
}

// followRoster mirrors the lost nodes of a fleet. Nodes that were lost before are no event.
func (f *Follower) followRoster(ctx context.Context) error {
	feed := f.o.Roster.Lost().Watch()
	defer feed.Close()
	for first := true; ; first = false {
		batch, more := feed.TryNext()
		for i := range batch {
			c := &batch[i]
			name := roster.NodeOf(c.Value.Key)
			if c.Deleted {
				f.remove(name, f.o.Roster.IsPresent(name))
				continue
			}
			n := Node{Name: name, Since: c.Value.Value.Since, VIPs: c.Value.Value.VIPs, Owned: c.Value.Value.Owned}
			if n.Owned == 0 { // the leader may not announce
				n.VIPs, n.Owned = f.Announced(name)
			}
			f.add(n, !first)
		}
		if len(batch) > 0 {
			continue
		}
		if err := wake.Wait(ctx, more); err != nil {
			return err
		}
	}
}

// firstHeartbeat is how long a peer may be unknown after the start of the announcer until it is lost.
const firstHeartbeat = 10 * time.Second

// followPeers derives the lost nodes from the announcer's peers. It costs O(peers) for a change of
// one. Nodes that were lost before Run are no event.
func (f *Follower) followPeers(ctx context.Context) error {
	begun := time.Now()
	feed := f.o.Peers.Watch()
	defer feed.Close()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		batch, more := feed.TryNext()
		if len(batch) > 0 {
			timer.Reset(0)
			continue
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-more:
			continue
		case <-timer.C:
		}
		if next := f.compare(time.Now(), begun); next > 0 {
			timer.Reset(next)
		}
	}
}

// compare takes in the state of all peers, and returns when to look again; 0: at the next change.
func (f *Follower) compare(now, begun time.Time) (next time.Duration) {
	peers := map[string]announce.Peer{} // by address: before the first heartbeat, the name is the address
	for _, p := range f.o.Peers.All() {
		if other, is := peers[p.Address]; p.Kind == announce.Neighbor && (!is || other.State == heartbeat.Unknown) {
			peers[p.Address] = p
		}
	}
	for _, n := range f.Nodes() {
		switch p, is := peers[n.Address]; {
		case !is && f.o.Configured(n.Address): // the announcer has just started again
		case !is:
			f.remove(n.Name, false)
		case p.State != heartbeat.Dead && p.State != heartbeat.Unknown:
			f.remove(n.Name, true)
		default:
			delete(peers, n.Address) // it is still silent
		}
	}
	for _, p := range peers {
		n := Node{Name: p.Name, Address: p.Address, Since: p.Since, VIPs: p.VIPs, Owned: p.Owned}
		switch p.State {
		case heartbeat.Dead:
			f.add(n, p.Since.After(begun))
		case heartbeat.Unknown:
			if left := p.Since.Add(firstHeartbeat).Sub(now); left > 0 {
				next = max(min(cmp.Or(next, left), left), time.Millisecond)
				continue
			}
			f.add(n, p.Since.After(begun))
		}
	}
	return next
}

// Kinds of events.
const (
	eventLost      = "node_lost"
	eventReturned  = "node_returned"
	eventForgotten = "node_forgotten"
)

func (f *Follower) add(n Node, isNew bool) {
	_, _, known := f.rows.Get(n.Name)
	f.rows.Set(n)
	if known || !isNew {
		return
	}
	message := fmt.Sprintf("node %s is lost: silent since %s", n.Name, n.Since.UTC().Format(time.RFC3339))
	if vips := n.Announced(len(n.VIPs)); vips != "" {
		message += "; it announced " + vips
	}
	f.o.Events.Add(event.Event{Kind: eventLost, Object: n.Name, Message: message})
}

func (f *Follower) remove(name string, present bool) {
	n, _, known := f.rows.Get(name)
	if !known {
		return
	}
	f.rows.Delete(name)
	e := event.Event{Kind: eventForgotten, Object: name, Message: fmt.Sprintf("node %s is forgotten: it was lost since %s", name, n.Since.UTC().Format(time.RFC3339))}
	if present {
		e.Kind, e.Message = eventReturned, fmt.Sprintf("node %s is back: it was lost since %s", name, n.Since.UTC().Format(time.RFC3339))
	}
	f.o.Events.Add(e)
}
