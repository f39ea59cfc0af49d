package fleet

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/ironvip/ironvip/internal/backoff"
	"github.com/ironvip/ironvip/internal/event"
)

const (
	sessionTTL = 15 * time.Second
	lockDelay  = time.Second // after a session that wasn't ended by its host
	renewEvery = sessionTTL / 3
	// renewTimeout is short, because a renewal that hangs is the first sign of a
	// Consul that does.
	renewTimeout = 3 * time.Second
	endTimeout   = 2 * time.Second // for giving back what is held
)

// turn is what is known of the election.
type turn struct {
	news chan string // the session that holds the leader's key, "" for none; the newest only

	mu      sync.Mutex
	session string
	renewed time.Time // before the call that renewed it
	held    bool      // the leader's key, by this session
	since   uint64    // the index at which this session took the leader's key
	was     bool      // Mine, as told last
	elected string
	changed chan struct{}
	info    func() Node
}

func newTurn() *turn { return &turn{news: make(chan string, 1), changed: make(chan struct{})} }

// mine is Mine, with mu held. The clock is monotonic: a process that was
// stopped for longer than its session lives finds out here.
func (u *turn) mine() bool { return u.held && time.Since(u.renewed) < sessionTTL }

// set changes what is known and tells those who wait when it makes a difference.
func (u *turn) set(change func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	elected := u.elected
	change()
	if mine := u.mine(); mine != u.was || elected != u.elected {
		u.was = mine
		close(u.changed)
		u.changed = make(chan struct{})
	}
}

// Mine implements Turn.
func (t *Tree) Mine() bool {
	t.turn.mu.Lock()
	defer t.turn.mu.Unlock()
	return t.turn.mine()
}

// Elected implements Turn. While Consul can't be asked, it is the last one known.
func (t *Tree) Elected() string {
	t.turn.mu.Lock()
	defer t.turn.mu.Unlock()
	return t.turn.elected
}

// Changed implements Turn.
func (t *Tree) Changed() <-chan struct{} {
	t.turn.mu.Lock()
	defer t.turn.mu.Unlock()
	return t.turn.changed
}

// leaderValue is what the leader's key has.
type leaderValue struct {
	Node string `json:"node"`
}

// watchLeader tells elect who holds the leader's key.
func (t *Tree) watchLeader(ctx context.Context) {
	wait := newBackoff()
	var after uint64
	for ctx.Err() == nil {
		q, timeout := Query{After: after, Wait: heldFor}, heldFor+heldFor/8+callTimeout
		if after == 0 {
			q, timeout = Query{}, callTimeout
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
		if after = max(index, 1); backwards || early {
			after = 0
		}
		var session, node string
		if pair != nil && pair.Session != "" {
			var v leaderValue
			_ = json.Unmarshal(pair.Value, &v) // a name is for people
			session, node = pair.Session, v.Node
		}
		t.turn.set(func() {
			if index >= t.turn.since || backwards {
				t.turn.elected = node
				t.turn.held = session != "" && session == t.turn.session
			}
		})
		select { // the newest only
		case <-t.turn.news:
		default:
		}
		t.turn.news <- session
	}
}

// elect keeps a session, with it this host's place among the nodes, and takes
// its turn when nobody else has it.
func (t *Tree) elect(ctx context.Context) {
	wait := newBackoff()
	for ctx.Err() == nil {
		id, err := t.begin(ctx)
		if err != nil {
			backoff.Sleep(ctx, wait.Next())
			continue
		}
		wait.Reset()
		t.hold(ctx, id)
	}
	t.release(ctx)
}

// begin starts a session, after ending the one that a crash has left.
func (t *Tree) begin(ctx context.Context) (id string, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if old := t.cache.note(noteSession); old != "" {
		if err := t.o.KV.EndSession(ctx, old); err != nil {
			return "", err
		}
		t.cache.setNote(noteSession, "")
	}
	began := time.Now()
	id, err = t.o.KV.NewSession(ctx, "ironvip on "+t.o.Node, sessionTTL, lockDelay)
	if err != nil {
		return "", err
	}
	t.cache.setNote(noteSession, id)
	t.turn.set(func() { t.turn.session, t.turn.renewed, t.turn.held = id, began, false })
	return id, nil
}

// hold keeps the session until it is over.
func (t *Tree) hold(ctx context.Context, id string) {
	defer t.turn.set(func() { t.turn.session, t.turn.held = "", false })
	defer t.lost(ctx)
	renew := time.NewTimer(renewEvery)
	defer renew.Stop()
	refused := time.NewTimer(0)
	defer refused.Stop()
	p := &presence{tree: t, session: id}
	wait := newBackoff()
	away := false
	free := true // unless it turns out otherwise
	for {
		select {
		case <-ctx.Done():
			return
		case session := <-t.turn.news:
			free = session == ""
		case <-refused.C:
		case <-renew.C:
			began := time.Now()
			call, cancel := context.WithTimeout(ctx, renewTimeout)
			alive, err := t.o.KV.Renew(call, id)
			cancel()
			next := renewEvery - time.Since(began)
			switch {
			case err == nil && !alive:
				return
			case err == nil:
				t.turn.set(func() { t.turn.renewed = began })
				wait.Reset()
			default:
				if t.Stale() == "" {
					t.kick()
				}
				t.turn.set(func() {})
				next = min(wait.Next(), t.untilLapse())
			}
			renew.Reset(max(next, 0))
			away = err != nil
		}
		if away { // until a renewal succeeds
			continue
		}
		again := false
		if free {
			free = !t.stand(ctx, id)
			again = free
		}
		if !p.publish(ctx) {
			again = true
		}
		if again {
			refused.Reset(lockDelay + rand.N(lockDelay/2))
		}
	}
}

// untilLapse is how long the session is good for yet, or no bound once it isn't.
func (t *Tree) untilLapse() time.Duration {
	t.turn.mu.Lock()
	defer t.turn.mu.Unlock()
	if left := time.Until(t.turn.renewed.Add(sessionTTL)); left > 0 {
		return left + time.Millisecond
	}
	return maxWait
}

// lost tells that this host was elected until now.
func (t *Tree) lost(ctx context.Context) {
	t.turn.mu.Lock()
	defer t.turn.mu.Unlock()
	if t.turn.held && ctx.Err() == nil {
		t.o.Events.Add(event.Event{Kind: "fleet_not_elected", Object: t.o.Node, Message: "the session is over"})
	}
}

// stand tries to be elected and reports whether the key isn't free any more.
func (t *Tree) stand(ctx context.Context, session string) bool {
	value, err := json.Marshal(leaderValue{t.o.Node})
	if err != nil {
		panic("fleet: leader: " + err.Error()) // a string
	}
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	out, err := t.o.KV.Txn(call, []Op{{Verb: Lock, Key: t.paths.leader, Value: value, Session: session}})
	if err != nil || len(out.Refused) > 0 {
		return false
	}
	t.turn.set(func() {
		t.turn.held, t.turn.elected, t.turn.since = t.turn.session == session, t.o.Node, out.Index
	})
	t.o.Events.Add(event.Event{Kind: "fleet_elected", Object: t.o.Node, Message: "this host gives out addresses first from now on"})
	return true
}

// release gives back what the host holds, so that nobody waits for its session
// to expire.
func (t *Tree) release(ctx context.Context) {
	session := t.cache.note(noteSession)
	if session == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	// Refused when it isn't held. Without it, the lock delay would hold the others up.
	_, _ = t.o.KV.Txn(ctx, []Op{{Verb: Unlock, Key: t.paths.leader, Session: session}})
	if t.o.KV.EndSession(ctx, session) == nil {
		t.cache.setNote(noteSession, "")
	}
}
