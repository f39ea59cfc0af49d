package fleet

import (
	"context"
	"encoding/json"
	"time"

	"golang.org/x/time/rate"

	"github.com/ironvip/ironvip/internal/backoff"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/fleet/consulkv"
)

// mine is Mine, with mu held.
func (s *session) mine() bool { return s.leads && s.valid() }

// Mine implements Leadership.
func (t *Tree) Mine() bool {
	t.session.mu.Lock()
	defer t.session.mu.Unlock()
	return t.session.mine()
}

// Elected implements Leadership. While Consul can't be asked, it is the last one known.
func (t *Tree) Elected() string {
	t.session.mu.Lock()
	defer t.session.mu.Unlock()
	return t.session.leader
}

// Changed implements Leadership.
func (t *Tree) Changed() <-chan struct{} {
	t.session.mu.Lock()
	defer t.session.mu.Unlock()
	return t.session.changed
}

// leaderValue is what the leader's key has. Every host follows that key.
type leaderValue struct {
	Node  string `json:"node"`
	Hosts int    `json:"hosts,omitempty"` // roughly how many hosts are present
}

// watchLeader follows who holds the leader's key.
func (t *Tree) watchLeader(ctx context.Context) {
	wait := newBackoff()
	var after uint64
	for ctx.Err() == nil {
		q, timeout := consulkv.Query{After: after, Wait: heldFor, Stale: t.follower.trusting()}, heldFor+heldFor/8+callTimeout
		if after == 0 {
			q, timeout = consulkv.Query{}, callTimeout
		}
		call, cancel := context.WithTimeout(ctx, timeout)
		began := time.Now()
		pair, index, err := t.o.KV.Get(call, t.paths.leader, q)
		cancel()
		if err != nil {
			after = 0
			backoff.Sleep(ctx, wait.Next())
			continue
		}
		wait.Reset()
		early := q.After > 0 && index == q.After && time.Since(began) < q.Wait/2
		if early { // as in follower.early
			backoff.Sleep(ctx, noNewsPause)
		}
		backwards := index < q.After
		if backwards && q.Stale { // that server is behind
			t.follower.distrust(lagFor)
			after = 0
			continue
		}
		if after = max(index, 1); backwards || early {
			after = 0
		}
		var session, node string
		if pair != nil && pair.Session != "" {
			var v leaderValue
			_ = json.Unmarshal(pair.Value, &v) // a name is for people
			session, node = pair.Session, v.Node
			t.session.setFleetSize(v.Hosts)
			t.follower.pace.SetLimit(paceOf(v.Hosts))
		}
		t.session.set(func() {
			if index >= t.session.since || backwards {
				t.session.leader = node
				t.session.leads = session != "" && session == t.session.id
			}
		})
		select { // the newest only
		case <-t.session.holder:
		default:
		}
		t.session.holder <- session
	}
}

// campaign tries to become the leader, and reports whether the key isn't free any more.
func (t *Tree) campaign(ctx context.Context, session string) bool {
	s := t.session
	index := t.lockLeader(ctx, session, s.fleetSize())
	if index == 0 {
		return false
	}
	s.set(func() { s.leads, s.leader, s.since = s.id == session, t.o.Node, index })
	t.mu.Lock()
	t.interrupt() // the follower has a full read to do at a certain time from now on
	t.mu.Unlock()
	t.o.Events.Add(event.Event{Kind: "fleet_elected", Object: t.o.Node, Message: "this host gives out addresses first from now on"})
	return true
}

// lockLeader takes the leader's key, or writes it again. It returns its index, or 0 if it failed.
func (t *Tree) lockLeader(ctx context.Context, session string, hosts int) (index uint64) {
	value, err := json.Marshal(leaderValue{t.o.Node, hosts})
	if err != nil {
		panic("fleet: leader: " + err.Error()) // a string and a number
	}
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	out, err := t.o.KV.Txn(call, []consulkv.Op{{Verb: consulkv.Lock, Key: t.paths.leader, Value: value, Session: session}})
	if err != nil || len(out.Refused) > 0 {
		return 0
	}
	t.session.setFleetSize(hosts)
	return out.Index
}

// fleetSize returns how many hosts are in the fleet, as its leader has published it; 0 if unknown.
func (s *session) fleetSize() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hosts
}

func (s *session) setFleetSize(hosts int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hosts = hosts
}

// updateHosts has the leader publish how many hosts are present, whenever that has changed by more
// than a quarter. It reports whether it has succeeded.
func (t *Tree) updateHosts(ctx context.Context, session string) bool {
	hosts, published := t.presence.count(), t.session.fleetSize()
	if !t.Mine() || hosts == 0 || hosts*4 <= published*5 && hosts*5 >= published*4 {
		return true
	}
	return t.lockLeader(ctx, session, hosts) != 0
}

// paceOf is the rate of reads of the log by each of that many hosts. Consul takes a tenth of a
// millisecond of CPU for one, and in a storm of changes another one or two for the entries before
// the newest. At this rate all hosts together take less than one of its processors.
func paceOf(hosts int) rate.Limit {
	return rate.Every(min(max(time.Duration(hosts)*perHostPause, minPause), maxPause))
}

// leadershipLost reports that this host was the leader until now.
func (t *Tree) leadershipLost(ctx context.Context) {
	t.session.mu.Lock()
	defer t.session.mu.Unlock()
	if t.session.leads && ctx.Err() == nil {
		t.o.Events.Add(event.Event{Kind: "fleet_not_elected", Object: t.o.Node, Message: "the session is over"})
	}
}
