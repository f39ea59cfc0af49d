// Package nodes keeps what hosts must know of each other before they can exchange heartbeats, and
// which hosts an operator drains, and to which hosts an operator has moved VIPs.
//
// Its store is the fleet's tree, or the state file of a host without a fleet, which has the drain of
// this host and the moves to it. Its inputs are Drain, Move, what this host publishes of itself, and what
// other hosts write. Its outputs are the peers, the shared secret, the drains and the moves. A host's row stays when the host dies: heartbeats decide who lives.
// It ends with Forget.
package nodes

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"iter"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/fleet"
	"github.com/ironvip/ironvip/fleet/registry"
	"github.com/ironvip/ironvip/internal/backoff"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/internal/wake"
)

// Folder is the folder in the fleet's tree, and the bucket in the state file.
const Folder = "announce"

// Record is a stored value: a host at "hosts/NAME", a drain at "drains/NAME", a move at "moves/VIP", or
// the secret at "secret".
type Record struct {
	Address netip.AddrPort `json:"address,omitzero"` // of the host's heartbeats
	Pools   []netip.Prefix `json:"pools,omitempty"`  // that the host announces at layer 2
	Since   time.Time      `json:"since,omitzero"`   // of the drain or the move
	Author  string         `json:"author,omitempty"` // of the drain or the move
	Node    string         `json:"node,omitempty"`   // of the move: the VIP's host
	Pin     bool           `json:"pin,omitempty"`    // of the move
	Secret  string         `json:"secret,omitempty"`
}

const (
	hostPrefix  = "hosts/"
	drainPrefix = "drains/"
	movePrefix  = "moves/"
	secretKey   = "secret"
)

// Shared returns the records of a fleet. Call it before the tree runs.
func Shared(tree *fleet.Tree) *registry.Shared[Record] {
	return registry.NewShared(tree, Folder, check)
}

func check(key string, r Record) error {
	switch {
	case key == secretKey && r.Secret == "":
		return fmt.Errorf("the secret is empty")
	case strings.HasPrefix(key, hostPrefix) && !r.Address.IsValid():
		return fmt.Errorf("no address")
	case strings.HasPrefix(key, movePrefix):
		if _, ok := moveOf(key, r); !ok {
			return fmt.Errorf("no move of a VIP to a host")
		}
	}
	return nil
}

// moveOf returns the move of a record; not ok: it isn't one.
func moveOf(key string, r Record) (m announce.Move, ok bool) {
	text, _ := strings.CutPrefix(key, movePrefix)
	addr, err := netip.ParseAddr(text)
	return announce.Move{Addr: addr, Node: r.Node, Pin: r.Pin, Since: r.Since, Author: r.Author}, err == nil && r.Node != "" && key == movePrefix+addr.String()
}

// Drain is the drain of a host.
type Drain struct {
	Node   string
	Since  time.Time
	Author string
}

// Own is what this host publishes. Its zero value publishes nothing, and removes what was published.
type Own struct {
	Address netip.AddrPort
	Pools   []netip.Prefix
}

// Options are what Nodes needs. All but Events are required.
type Options struct {
	Store  registry.Store[Record]
	Node   string // this host
	Fleet  bool   // other hosts share the store
	Events *event.Log
	Log    *slog.Logger
}

// Nodes follows the records. Its methods are safe for concurrent use.
type Nodes struct {
	Options
	feed  registry.Feed[Record]
	locks registry.Locks
	wake  wake.Signal // this host's record may differ from own

	rows *table.Table[string, registry.Item[Record]] // as stored, without moves
	// Moves are the operator's moves of VIPs that this host knows: all of its fleet, or those to itself.
	Moves *table.Table[netip.Addr, announce.Move]

	known bool // the store has been read once; only Run uses it

	mu     sync.Mutex
	own    Own
	failed string // why this host's record was not written
}

// New returns nodes of a store that may not have been read yet.
func New(o Options) *Nodes {
	return &Nodes{Options: o, feed: o.Store.Watch(), wake: wake.New(),
		rows:  table.New(new(table.Clock), func(i *registry.Item[Record]) string { return i.Key }, nil),
		Moves: table.New(new(table.Clock), announce.KeyOfMove, func(a, b announce.Move) bool { return a == b })}
}

// Publish sets what this host publishes. It returns at once.
func (n *Nodes) Publish(own Own) {
	n.mu.Lock()
	n.own = own
	n.mu.Unlock()
	n.wake.Set()
}

// Changed returns a channel that is closed when a result of the other methods changes.
func (n *Nodes) Changed() <-chan struct{} { return n.rows.Changed() }

// named yields the records with a prefix, by what follows it.
func (n *Nodes) named(prefix string) iter.Seq2[string, Record] {
	return func(yield func(string, Record) bool) {
		for key, i := range n.rows.All() {
			if name, is := strings.CutPrefix(key, prefix); is && !yield(name, i.Value) {
				return
			}
		}
	}
}

// Peers returns the addresses of other hosts that announce one of the pools, sorted.
func (n *Nodes) Peers(pools []netip.Prefix) []netip.AddrPort {
	var out []netip.AddrPort
	for name, r := range n.named(hostPrefix) {
		if name != n.Node && slices.ContainsFunc(r.Pools, func(a netip.Prefix) bool { return slices.ContainsFunc(pools, a.Overlaps) }) {
			out = append(out, r.Address)
		}
	}
	slices.SortFunc(out, netip.AddrPort.Compare)
	return out
}

// Secret returns the fleet's shared secret; nil while there is none.
func (n *Nodes) Secret() []byte {
	i, _, is := n.rows.Get(secretKey)
	if !is {
		return nil
	}
	return []byte(i.Value.Secret)
}

// Drains returns the hosts that drain, by name.
func (n *Nodes) Drains() map[string]Drain {
	out := map[string]Drain{}
	for name, r := range n.named(drainPrefix) {
		out[name] = Drain{name, r.Since, r.Author}
	}
	return out
}

// Draining reports whether a host drains.
func (n *Nodes) Draining(node string) bool { return n.rows.Row(drainPrefix+node) != nil }

// Problem returns why this host's record could not be written; "" if it is.
func (n *Nodes) Problem() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.failed
}

// SetDrain starts or ends the drain of a host. It is durable and in effect on this host when
// SetDrain returns, and stays over restarts. Starting it again changes nothing.
func (n *Nodes) SetDrain(ctx context.Context, node string, drain bool, author string) error {
	return n.write(ctx, drainPrefix+node, func(now *Record) *Record {
		switch {
		case !drain:
			return nil
		case now != nil:
			return now
		}
		return &Record{Since: time.Now(), Author: author}
	})
}

// SetMove moves a VIP. It is durable when SetMove returns. Since of the move is now, or a second after the move before, and not
// before m.Since: the later move wins on hosts that know several.
func (n *Nodes) SetMove(ctx context.Context, m announce.Move) error {
	return n.write(ctx, movePrefix+m.Addr.String(), func(now *Record) *Record {
		since := time.Now()
		if since.Before(m.Since) {
			since = m.Since
		}
		since = since.UTC().Truncate(time.Second)
		if now != nil && !since.After(now.Since) {
			since = now.Since.Add(time.Second)
		}
		return &Record{Node: m.Node, Pin: m.Pin, Since: since, Author: m.Author}
	})
}

// EndMove ends the move of a VIP, if it is still the one with this stamp.
func (n *Nodes) EndMove(ctx context.Context, addr netip.Addr, stamp uint32) error {
	return n.write(ctx, movePrefix+addr.String(), func(now *Record) *Record {
		if now != nil && uint32(now.Since.Unix()) != stamp {
			return now
		}
		return nil
	})
}

// Recorded returns the hosts that have published themselves.
func (n *Nodes) Recorded() (names []string) {
	for name := range n.named(hostPrefix) {
		names = append(names, name)
	}
	return names
}

// Forget removes what is stored of a host that is gone for good, its drain and the moves to it included. It costs O(moves).
func (n *Nodes) Forget(ctx context.Context, node string) error {
	for _, prefix := range []string{hostPrefix, drainPrefix} {
		if n.Store.Get(prefix+node).Version == 0 {
			continue
		}
		if err := n.write(ctx, prefix+node, func(*Record) *Record { return nil }); err != nil {
			return err
		}
	}
	for addr, m := range n.Moves.All() {
		if m.Node == node {
			if err := n.EndMove(ctx, addr, m.Stamp()); err != nil {
				return err
			}
		}
	}
	return nil
}

// write replaces a record by what apply returns; nil removes it.
func (n *Nodes) write(ctx context.Context, key string, apply func(now *Record) *Record) error {
	unlock, err := n.locks.Lock(ctx, key)
	if err != nil {
		return err
	}
	defer unlock()
	op := registry.Op[Record]{Key: key, Apply: func(confirmed bool) (*registry.Edit[Record], error) {
		item := n.Store.Get(key)
		var now *Record
		if item.Version != 0 {
			now = &item.Value
		}
		next := apply(now)
		if next == now || next != nil && now != nil && same(*next, *now) {
			if !confirmed {
				return nil, registry.ErrConfirm // another host may have changed it
			}
			return nil, nil
		}
		return &registry.Edit[Record]{Key: key, Version: item.Version, Value: next}, nil
	}}
	if err := registry.Transact(ctx, n.Store, []*registry.Op[Record]{&op}, false, func([]int) {}); err != nil {
		return err
	}
	if op.Err == nil { // the feed of a host without a fleet doesn't return its own writes
		n.receive(n.Store.Get(key), n.Events)
	}
	return op.Err
}

func same(a, b Record) bool {
	return a.Address == b.Address && slices.Equal(a.Pools, b.Pools) && a.Since.Equal(b.Since) && a.Author == b.Author && a.Secret == b.Secret && a.Node == b.Node && a.Pin == b.Pin
}

// Run follows the store and publishes this host, until the context ends. It returns its error.
func (n *Nodes) Run(ctx context.Context) error {
	retry := backoff.Backoff{Lo: time.Second, Hi: time.Minute}
	var again <-chan time.Time
	for {
		more := n.read()
		var ready <-chan struct{}
		if !n.known {
			ready = n.Store.Ready()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-more:
			continue
		case <-ready:
			continue
		case <-n.wake:
		case <-again:
		}
		if !table.IsClosed(n.Store.Ready()) {
			again = time.After(time.Second)
			continue
		}
		err := n.publish(ctx)
		n.note(err)
		if again = nil; err != nil && ctx.Err() == nil {
			again = time.After(retry.Next())
		} else {
			retry.Reset()
		}
	}
}

func (n *Nodes) note(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	former := n.failed
	if n.failed = ""; err != nil {
		n.failed = err.Error()
	}
	if n.failed != "" && n.failed != former {
		n.Log.Warn("publish this host to the fleet", "err", err)
	}
}

// publish writes this host's record, and the secret if there is none.
func (n *Nodes) publish(ctx context.Context) error {
	if !n.Fleet {
		return nil
	}
	n.mu.Lock()
	own := n.own
	n.mu.Unlock()
	published := n.rows.Row(hostPrefix + n.Node)
	if own.Address.IsValid() {
		if n.Secret() == nil {
			err := n.write(ctx, secretKey, func(now *Record) *Record {
				if now != nil {
					return now
				}
				return &Record{Secret: newSecret()}
			})
			if err != nil {
				return err
			}
		}
		next := Record{Address: own.Address, Pools: own.Pools}
		if published != nil && same(next, published.Value.Value) {
			return nil
		}
		return n.write(ctx, hostPrefix+n.Node, func(*Record) *Record { return &next })
	}
	if published == nil {
		return nil
	}
	return n.write(ctx, hostPrefix+n.Node, func(*Record) *Record { return nil })
}

func newSecret() string {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails
	return base64.StdEncoding.EncodeToString(b[:])
}

// read receives changes of the store. It returns the channel of the next one. There are no events of what the store had before.
func (n *Nodes) read() <-chan struct{} {
	var events *event.Log
	if n.known {
		events = n.Events
	}
	n.known = n.known || table.IsClosed(n.Store.Ready())
	return registry.Drain(n.feed, func(items []registry.Item[Record]) {
		for _, i := range items {
			n.receive(i, events)
		}
	})
}

func (n *Nodes) receive(i registry.Item[Record], events *event.Log) {
	n.mu.Lock() // one event for a drain that comes from a write and from the feed
	defer n.mu.Unlock()
	if strings.HasPrefix(i.Key, movePrefix) {
		n.receiveMove(i, events)
		return
	}
	was := n.rows.Row(i.Key) != nil
	is := i.Version != 0
	if is {
		n.rows.Set(i)
	} else {
		n.rows.Delete(i.Key)
	}
	name, drain := strings.CutPrefix(i.Key, drainPrefix)
	switch {
	case drain && is && !was:
		by := cmp.Or(i.Value.Author, "an operator")
		events.Add(event.Event{Kind: "node_drained", Object: name, Message: fmt.Sprintf("node %s is drained by %s", name, by)})
	case drain && was && !is:
		events.Add(event.Event{Kind: "node_undrained", Object: name, Message: fmt.Sprintf("node %s is no longer drained", name)})
	}
}

// receiveMove takes a changed record of a move. The caller holds mu.
func (n *Nodes) receiveMove(i registry.Item[Record], events *event.Log) {
	m, ok := moveOf(i.Key, i.Value)
	if i.Version == 0 {
		m, ok = moveOf(i.Key, Record{Node: "-"})
	}
	former, _, was := n.Moves.Get(m.Addr)
	switch {
	case !ok:
	case i.Version == 0 && was:
		n.Moves.Delete(m.Addr)
		events.Add(event.Event{Kind: "vip_move_ended", Object: m.Addr.String(), Message: fmt.Sprintf("the move of %s to %s has ended", m.Addr, former.Node)})
	case i.Version != 0 && former != m:
		n.Moves.Set(m)
		until := "until it fails, drains or is not eligible"
		if m.Pin {
			until = "and pinned there"
		}
		events.Add(event.Event{Kind: "vip_moved", Object: m.Addr.String(), Message: fmt.Sprintf("%s is moved to %s by %s, %s", m.Addr, m.Node, cmp.Or(m.Author, "an operator"), until)})
	}
}
