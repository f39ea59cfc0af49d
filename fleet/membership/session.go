package membership

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/ironvip/ironvip/fleet/kv"
	"github.com/ironvip/ironvip/internal/backoff"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/wake"
)

// A host is in the fleet while its session in the store holds two locks: on hosts/<id>, for the
// UUID in its state file, and on nodes/<name>, for its node name. The tree is read only once
// they are held, so that a copy of a host and a second host of one name change nothing.

const (
	sessionTTL = 20 * time.Second
	// LockDelay is how long nobody can take a lock after a session that wasn't ended by its host.
	LockDelay  = time.Second
	renewEvery = sessionTTL * 2 / 3
	stateEvery = 5 * time.Second // between two looks at this node's own state
	// renewTimeout is short, because a renewal that hangs is the first sign of a
	// Consul that does.
	renewTimeout = 3 * time.Second

	// liveAfter is after how long a host that still holds a lock counts as alive. Consul ends a
	// session between one and two TTLs after its last renewal.
	liveAfter   = 2*sessionTTL + 5*time.Second
	holderPause = time.Second // between two looks at another holder
)

// session is this host's session in the store, and what it holds.
type session struct {
	holder chan string // the session that holds the leader's key, "" for none; the newest only

	// These belong to the goroutine of runSession.
	free      bool            // the leader's key, as far as it is known
	own       map[string]bool // sessions of this run that may still exist, and whether they may hold the leader's key
	host      uint64          // the index of the host's lock
	row       publishedRow
	duplicate *DuplicateNodeError // as reported last
	head      uint64              // the index of the log's newest entry when the row was written; 0 once it was compared

	mu        sync.Mutex
	id        string
	renewed   time.Time // before the call that renewed it
	leads     bool      // it holds the leader's key
	since     uint64    // the index at which it took the leader's key
	wasLeader bool      // Mine, as published last
	leader    string    // the leader's node name
	changed   wake.Broadcast
	info      func() Node
	hosts     int                // of the fleet, as in the leader's key
	held      context.CancelFunc // ends the blocking query for that key; nil if there is none
}

func newSession() *session {
	return &session{holder: make(chan string, 1), own: map[string]bool{}}
}

// valid reports whether the session surely lives, with mu held. The clock is monotonic: a
// process that was stopped for longer than its session lives finds out here.
func (s *session) valid() bool { return s.id != "" && time.Since(s.renewed) < sessionTTL }

// set changes what is known and wakes those who wait if that makes a difference.
func (s *session) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	leader := s.leader
	change()
	if mine := s.mine(); mine != s.wasLeader || leader != s.leader {
		s.wasLeader = mine
		s.changed.Send()
	}
}

// OwnName reports whether this host surely holds its node name now. While it doesn't, what is
// stored under that name may be another host's.
func (m *Member) OwnName() bool {
	m.session.mu.Lock()
	defer m.session.mu.Unlock()
	return m.session.valid()
}

// runSession keeps a session with both locks until the context ends. It returns a
// *DuplicateNodeError if another live host holds one of them before this host has begun.
//
// A host that has begun, on its cache or before its session expired, goes on with its traffic
// and with what it knows. It reports the other host, writes nothing, and tries again.
func (m *Member) runSession(ctx context.Context) error {
	defer m.leave(ctx)
	wait := kv.NewBackoff()
	var seen sighting
	for {
		err := m.join(ctx)
		if ctx.Err() != nil {
			return nil
		}
		held, isHeld := errors.AsType[*heldError](err)
		if !isHeld && !errors.Is(err, errLockDelay) {
			seen = sighting{}
			m.o.Hold(false)
		}
		switch {
		case err == nil:
			m.setDuplicate(nil)
			if !m.hasJoined() {
				m.joinedAt = m.session.host
				close(m.joined)
			}
			wait.Reset()
			m.keep(ctx)
			m.o.Wake() // a restored backup ends sessions, and may end no blocking query
		case errors.Is(err, errLockDelay):
			backoff.Sleep(ctx, LockDelay/2+rand.N(LockDelay/2))
		case isHeld:
			begun := m.o.Hold(true)
			other := m.duplicate(ctx, held)
			switch alive := seen.alive(held.pair); {
			case alive && !begun:
				return other
			case alive:
				m.setDuplicate(other)
			case !begun:
				m.wait(other, &seen)
			}
			backoff.Sleep(ctx, holderPause)
		default:
			retry := m.o.Retry
			if m.hasJoined() {
				retry = nil
			} else {
				m.o.Stale(err)
			}
			backoff.Nap(ctx, wait.Next(), retry)
		}
	}
}

// sighting is a lock as it was first seen with another session.
type sighting struct {
	key, session string
	index        uint64
	at           time.Time
	logged       string
}

// alive reports whether the lock's holder has shown that it lives: it has written the lock's
// value again, or its session has not expired in the time in which that of a dead host does.
func (s *sighting) alive(p *kv.Pair) bool {
	if s.key != p.Key || s.session != p.Session {
		*s = sighting{key: p.Key, session: p.Session, index: p.Index, at: time.Now()}
	}
	return p.Index != s.index || time.Since(s.at) >= liveAfter
}

// locks are the two locks of a host as they were read; nil where there is no such key.
type locks struct{ host, node *kv.Pair }

func (l locks) all() []*kv.Pair {
	return slices.DeleteFunc([]*kv.Pair{l.host, l.node}, func(p *kv.Pair) bool { return p == nil || p.Session == "" })
}

// heldError says that a session that may be a live host's holds a lock.
type heldError struct {
	locks
	pair *kv.Pair // that lock
}

func (e *heldError) Error() string { return e.pair.Key + " is locked by session " + e.pair.Session }

// errLockDelay says that a lock was free, and couldn't be taken: another host was quicker, or
// Consul holds it back after a session that was not ended by its host.
var errLockDelay = errors.New("lock not taken")

// join begins a session that holds both locks. It takes over those of an earlier run of this
// host at once. The error is a *heldError, errLockDelay, or why the store can't be asked.
func (m *Member) join(ctx context.Context) error {
	s := m.session
	ctx, cancel := context.WithTimeout(ctx, kv.CallTimeout)
	defer cancel()
	l, err := m.readLocks(ctx)
	if err != nil {
		return err
	}
	if l.host != nil && l.host.Session != "" && m.isEarlierRun(l.host.Value) {
		s.own[l.host.Session] = true
	}
	var ops []kv.Op
	for _, p := range l.all() {
		if _, own := s.own[p.Session]; !own {
			return &heldError{l, p}
		}
		ops = append(ops, kv.Op{Verb: kv.Unlock, Key: p.Key, Session: p.Session})
	}
	began := time.Now()
	id, err := m.o.KV.NewSession(ctx, "ironvip on "+m.o.Node, sessionTTL, LockDelay)
	if err != nil {
		return err
	}
	ended := slices.Collect(maps.Keys(s.own))
	s.own[id] = false
	s.row = publishedRow{}
	ops = append(ops, kv.Op{Verb: kv.Lock, Key: m.o.Keys.host(m.o.Identity.ID), Value: m.hostRow(), Session: id})
	taken, out, err := m.publish(ctx, id, m.node(), ops...)
	switch {
	case err != nil:
		return err // it may have happened: id is among the own sessions
	case !taken:
		m.end(ctx, id)
		return errLockDelay
	}
	s.host = out.Index
	for _, id := range ended {
		m.end(ctx, id)
	}
	s.set(func() { s.id, s.renewed, s.leads = id, began, false })
	return nil
}

func (m *Member) readLocks(ctx context.Context) (l locks, err error) {
	host, node := m.o.Keys.host(m.o.Identity.ID), m.o.Keys.node(m.o.Node)
	out, err := m.o.KV.Txn(ctx, []kv.Op{{Verb: kv.Read, Key: host}, {Verb: kv.Read, Key: node}})
	for _, pair := range out.Pairs {
		switch pair.Key {
		case host:
			l.host = &pair
		case node:
			l.node = &pair
		}
	}
	return l, err
}

// isEarlierRun reports whether a host's row was written by a run of this host that has ended:
// by one that had the same state file open, on the kernel that is running.
func (m *Member) isEarlierRun(value []byte) bool {
	var row hostRow
	return json.Unmarshal(value, &row) == nil && row.File != "" && row.File == m.o.Identity.File
}

// end ends a session of this host. Its locks that weren't given back are subject to the lock delay.
func (m *Member) end(ctx context.Context, id string) {
	if m.o.KV.EndSession(ctx, id) == nil { // otherwise it expires
		delete(m.session.own, id)
	}
}

// keep renews the session until it is lost. Meanwhile it publishes the node's row, and tries to
// become the leader whenever there is none.
func (m *Member) keep(ctx context.Context) {
	s := m.session
	id := s.id
	defer s.set(func() { s.id, s.leads = "", false })
	defer m.leadershipLost(ctx)
	renew := time.NewTimer(renewEvery)
	defer renew.Stop()
	state := time.NewTicker(stateEvery)
	defer state.Stop()
	retry := time.NewTimer(0)
	defer retry.Stop()
	wait := kv.NewBackoff()
	away := false
	for {
		select {
		case <-ctx.Done():
			return
		case holder := <-s.holder:
			s.free = holder == ""
		case <-retry.C:
		case <-state.C:
		case <-renew.C:
			began := time.Now()
			call, cancel := context.WithTimeout(ctx, renewTimeout)
			alive, err := m.o.KV.Renew(call, id)
			cancel()
			next := renewEvery - time.Since(began)
			switch {
			case err == nil && !alive:
				delete(s.own, id)
				return
			case err == nil:
				s.set(func() { s.renewed = began })
				wait.Reset()
			default:
				m.o.Wake()
				s.set(func() {})
				next = min(wait.Next(), m.untilExpiry())
			}
			renew.Reset(max(next, 0))
			away = err != nil
		}
		if away { // until a renewal succeeds
			continue
		}
		again := false
		if s.free {
			s.free = !m.campaign(ctx, id)
			again = s.free
		}
		if !m.updateHosts(ctx, id) {
			again = true
		}
		m.checkFollower()
		if node := m.node(); node.state() != s.row.node.state() || time.Since(s.row.at) >= publishEvery {
			switch taken, out, err := m.publish(ctx, id, node, kv.Op{Verb: kv.CheckIndex, Key: m.o.Keys.host(m.o.Identity.ID), Index: s.host}, kv.Op{Verb: kv.Read, Key: m.o.Keys.Head}); {
			case err != nil:
				again = true
			case !taken: // a lock was lost
				return
			case len(out.Pairs) > 0:
				s.head = out.Pairs[0].Index
			}
		}
		if again {
			retry.Reset(LockDelay + rand.N(LockDelay/2))
		}
	}
}

// untilExpiry is how long the session is surely good for, or no bound once it isn't.
func (m *Member) untilExpiry() time.Duration {
	m.session.mu.Lock()
	defer m.session.mu.Unlock()
	if left := time.Until(m.session.renewed.Add(sessionTTL)); left > 0 {
		return left + time.Millisecond
	}
	return kv.MaxPause
}

// leave gives back what the host holds, so that nobody waits for its session to expire.
func (m *Member) leave(ctx context.Context) {
	s := m.session
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), kv.EndTimeout)
	defer cancel()
	// Each is refused if it isn't held. A key that is still held when the session ends can't be
	// locked for the lock delay.
	if s.row.index > 0 {
		_, _ = m.o.KV.Txn(ctx, []kv.Op{
			{Verb: kv.DeleteCas, Key: m.o.Keys.host(m.o.Identity.ID), Index: s.host},
			{Verb: kv.DeleteCas, Key: m.o.Keys.node(m.o.Node), Index: s.row.index}})
	}
	for id, leads := range maps.Clone(s.own) {
		if leads {
			_, _ = m.o.KV.Txn(ctx, []kv.Op{{Verb: kv.Unlock, Key: m.o.Keys.Leader, Session: id}})
		}
		m.end(ctx, id)
	}
}

// wait reports that the host waits until the other one turns out to be alive or not.
func (m *Member) wait(other *DuplicateNodeError, seen *sighting) {
	why := waitingError{other}
	m.o.Stale(why)
	if text := why.Error(); seen.logged != text {
		seen.logged = text
		m.o.Log.Warn("waiting for a lock in the fleet's store", "err", text)
	}
}

// setDuplicate reports that another live host has this host's id or name, or with nil that none
// has.
func (m *Member) setDuplicate(other *DuplicateNodeError) {
	before := m.session.duplicate
	m.session.duplicate = other
	m.o.Duplicate(other)
	switch {
	case before == nil && other != nil:
		m.o.Log.Error("another host has this host's id or name: going on with what is known, and writing nothing", "err", other, "hint", other.hint)
		m.o.Events.Add(event.Event{Kind: "fleet_name_taken", Object: m.o.Node, Message: other.Error()})
	case before != nil && other == nil:
		m.o.Log.Info("this host holds its id and name again", "node", m.o.Node)
		m.o.Events.Add(event.Event{Kind: "fleet_name_free", Object: m.o.Node, Message: "no other host has this host's id or name any more"})
	}
}

// checkFollower makes blocking queries go to Consul's leader if this host's copy lacks an entry of
// the log that was there when the host has published its row. The server that answers them may be
// behind, or have lost its leader.
func (m *Member) checkFollower() {
	s := m.session
	if s.head == 0 || time.Since(s.row.at) < stateEvery {
		return
	}
	head := s.head
	if s.head = 0; head > m.o.Reached() {
		m.o.Trust.Doubt()
		s.endHeld()
		m.o.Wake()
	}
}
