// Package membership makes this host a member of its fleet: it keeps a session in the store that holds
// the locks on the host's id and on its node name, publishes the host's row, lists those of the
// other hosts, and takes part in the election of the leader.
//
// Each host holds its two locks before it reads the fleet's tree, so a copy of a host and a second
// host of one name change nothing. The package knows nothing of the tree's content. It reports to
// this host's copy of the tree through the functions in Options.
//
// Source code organization:
//
//   - session.go: the session with its locks, and the state that depends on it
//   - identity.go, duplicate.go: what distinguishes hosts, and another host with the same id or name
//   - leader.go, nodes.go, presence.go: the election, the rows of the hosts, and which are present
package membership

import (
	"context"
	"log/slog"
	"net/url"
	"time"

	"github.com/ironvip/ironvip/fleet/kv"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/parallel"
)

// Options are what a Member needs.
type Options struct {
	KV    kv.Store
	Trust *kv.Trust
	Keys  Keys
	Node  string // this host's name, unique in the fleet
	// Identity distinguishes this host whatever its name. New replaces the zero Identity.
	Identity Identity
	Events   *event.Log // nil drops them
	Log      *slog.Logger

	// Retry ends the pause between attempts to join, until the host has joined.
	Retry <-chan struct{}

	// The functions below belong to this host's copy of the tree.

	// Hold says whether another host may hold this host's id or name. The copy must not begin from
	// its cache then. It reports whether it has begun.
	Hold func(hold bool) (begun bool)
	// Stale receives why the host has not joined. The error may have a Hint method.
	Stale func(err error)
	// Duplicate receives the live host with this host's id or name, or nil once there is none.
	Duplicate func(*DuplicateNodeError)
	// Reached returns the highest of the store's indexes that the copy has reached.
	Reached func() uint64
	// Wake makes the copy ask the store instead of waiting for a change, also if it doesn't wait yet.
	Wake func()
}

// Keys are the keys in the store that a Member uses.
type Keys struct {
	Hosts  string // the prefix of the locks on hosts' ids
	Nodes  string // and of the locks on node names, which have the nodes' rows
	Leader string
	Head   string // the newest entry of the fleet's log
}

func (k Keys) host(id string) string { return k.Hosts + id }

func (k Keys) node(name string) string { return k.Nodes + url.PathEscape(name) }

// Member is this host as a member of its fleet. It is safe for concurrent use.
type Member struct {
	o        Options
	started  time.Time
	joined   chan struct{}
	joinedAt uint64 // written before joined is closed
	session  *session
	presence presence
}

// New returns a member. It does nothing until Run.
func New(o Options) *Member {
	if o.Identity.ID == "" {
		o.Identity.ID = newUUID()
	}
	m := &Member{o: o, started: time.Now(), joined: make(chan struct{}), session: newSession()}
	m.presence.reset()
	return m
}

// Run keeps the host in the fleet until the context ends, and then gives back what it holds. It
// returns a *DuplicateNodeError when another live host has this host's id or name, and this one has
// not begun. It is called once.
func (m *Member) Run(ctx context.Context) error {
	group, running := parallel.NewGroup(ctx)
	group.Go(func() error { return m.runSession(running) })
	group.Run(running, m.watchLeader)
	group.Run(running, m.watchPresence)
	return group.Wait()
}

// Joined returns a channel that is closed once the host has held its locks.
func (m *Member) Joined() <-chan struct{} { return m.joined }

// JoinedAt returns the index of the store at which the host has first held its locks. Joined is closed.
func (m *Member) JoinedAt() uint64 { return m.joinedAt }

func (m *Member) hasJoined() bool {
	select {
	case <-m.joined:
		return true
	default:
		return false
	}
}

// Session returns the ID of the session that holds the host's locks, or "" while there is none.
func (m *Member) Session() string {
	m.session.mu.Lock()
	defer m.session.mu.Unlock()
	return m.session.id
}
