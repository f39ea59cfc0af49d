package membership

import (
	"context"
	"encoding/json"

	"github.com/ironvip/ironvip/fleet/kv"
	"github.com/ironvip/ironvip/internal/backoff"
	"github.com/ironvip/ironvip/internal/event"
)

// mine is Mine, with mu held.
func (s *session) mine() bool { return s.leads && s.valid() }

// Mine reports whether this host is the leader.
func (m *Member) Mine() bool {
	m.session.mu.Lock()
	defer m.session.mu.Unlock()
	return m.session.mine()
}

// Elected returns the leader's node name, or "" if there is none. While the store can't be asked, it is
// the last one known.
func (m *Member) Elected() string {
	m.session.mu.Lock()
	defer m.session.mu.Unlock()
	return m.session.leader
}

// Changed returns a channel that is closed when Mine or Elected changes. Every change replaces it.
func (m *Member) Changed() <-chan struct{} { return m.session.changed.Next() }

// leaderValue is what the leader's key has. Every host follows that key.
type leaderValue struct {
	Node  string `json:"node"`
	Hosts int    `json:"hosts,omitempty"` // roughly how many hosts are present
}

// watchLeader follows who holds the leader's key.
func (m *Member) watchLeader(ctx context.Context) {
	wait := kv.NewBackoff()
	var after uint64
	for ctx.Err() == nil {
		var q kv.Query
		held, cancel := context.WithCancel(ctx)
		if after > 0 {
			m.session.setHeld(cancel) // before the trust is read: it may change
			q = kv.Query{After: after, Wait: kv.HeldFor, Stale: m.o.Trust.Any()}
		}
		pair, index, early, err := kv.Watch(held, m.o.KV, m.o.Keys.Leader, q)
		m.session.setHeld(nil)
		ended := held.Err() != nil
		cancel()
		if err != nil && ended {
			after = 0
			continue
		}
		if err != nil {
			after = 0
			backoff.Sleep(ctx, wait.Next())
			continue
		}
		wait.Reset()
		backwards := index < q.After
		if backwards && q.Stale { // that server is behind
			m.o.Trust.Lagged()
			after = 0
			continue
		}
		if after = max(index, 1); backwards || early {
			after = 0
			m.o.Wake() // the copy may have had no blocking query at that moment, and the next one would not return
		}
		var session, node string
		if pair != nil && pair.Session != "" {
			var v leaderValue
			_ = json.Unmarshal(pair.Value, &v) // a name is for people
			session, node = pair.Session, v.Node
			m.session.setFleetSize(v.Hosts)
		}
		m.session.set(func() {
			if index >= m.session.since || backwards {
				m.session.leader = node
				m.session.leads = session != "" && session == m.session.id
			}
		})
		select { // the newest only
		case <-m.session.holder:
		default:
		}
		m.session.holder <- session
	}
}

// setHeld sets the function that ends the blocking query for the leader's key, nil after it.
func (s *session) setHeld(end context.CancelFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held = end
}

// endHeld ends the blocking query for the leader's key.
func (s *session) endHeld() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held != nil {
		s.held()
	}
}

// campaign tries to become the leader, and reports whether the key isn't free any more.
func (m *Member) campaign(ctx context.Context, session string) bool {
	s := m.session
	index := m.lockLeader(ctx, session, m.Hosts())
	if index == 0 {
		return false
	}
	s.set(func() { s.leads, s.leader, s.since = s.id == session, m.o.Node, index })
	m.o.Wake() // the leader compares its copy with the tree at certain times
	m.o.Events.Add(event.Event{Kind: "fleet_elected", Object: m.o.Node, Message: "this host gives out addresses first from now on"})
	return true
}

// lockLeader takes the leader's key, or writes it again. It returns its index, or 0 if it failed.
func (m *Member) lockLeader(ctx context.Context, session string, hosts int) (index uint64) {
	value, err := json.Marshal(leaderValue{m.o.Node, hosts})
	if err != nil {
		panic("fleet: leader: " + err.Error()) // a string and a number
	}
	call, cancel := context.WithTimeout(ctx, kv.CallTimeout)
	defer cancel()
	out, err := m.o.KV.Txn(call, []kv.Op{{Verb: kv.Lock, Key: m.o.Keys.Leader, Value: value, Session: session}})
	m.session.own[session] = err != nil || len(out.Refused) == 0
	if err != nil || len(out.Refused) > 0 {
		return 0
	}
	m.session.setFleetSize(hosts)
	return out.Index
}

// Hosts returns roughly how many hosts are in the fleet, as its leader has published it; 0 if
// unknown.
func (m *Member) Hosts() int {
	m.session.mu.Lock()
	defer m.session.mu.Unlock()
	return m.session.hosts
}

func (s *session) setFleetSize(hosts int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hosts = hosts
}

// updateHosts has the leader publish how many hosts are present, whenever that has changed by more
// than a quarter. It reports whether it has succeeded.
func (m *Member) updateHosts(ctx context.Context, session string) bool {
	hosts, published := m.presence.count(), m.Hosts()
	if !m.Mine() || hosts == 0 || hosts*4 <= published*5 && hosts*5 >= published*4 {
		return true
	}
	return m.lockLeader(ctx, session, hosts) != 0
}

// leadershipLost reports that this host was the leader until now.
func (m *Member) leadershipLost(ctx context.Context) {
	m.session.mu.Lock()
	defer m.session.mu.Unlock()
	if m.session.leads && ctx.Err() == nil {
		m.o.Events.Add(event.Event{Kind: "fleet_not_elected", Object: m.o.Node, Message: "the session is over"})
	}
}
