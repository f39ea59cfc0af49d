package fleettest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ironvip/ironvip/fleet"
	"github.com/ironvip/ironvip/fleet/consul"
	"github.com/ironvip/ironvip/fleet/kv"
)

// ErrDown is why calls fail while a client is down.
var ErrDown = fmt.Errorf("%w: made unavailable", fleet.ErrUnavailable)

var errLost = fmt.Errorf("%w: answer made to be lost", fleet.ErrUnavailable)

// Client is one host's way to a Memory, a kv.Store with faults.
type Client struct {
	memory *Memory

	mu     sync.Mutex
	down   bool
	broken chan struct{} // closed to break held calls
	lose   int
	detain *[]kv.Op // where the next to be held up goes; nil: none is
	before func(Call) error
	after  func(Call)
	slow   time.Duration
	late   time.Duration
	behind *Memory // what answers stale reads; nil: the store itself
	// replaying is what answers all reads that aren't consistent; nil: none does.
	replaying *Memory
	calls     Counts
}

var _ kv.Store = (*Client)(nil)

// Engine implements kv.Store.
func (c *Client) Engine() kv.Engine { return consul.Words }

// Call names a call to the store.
type Call struct {
	Method string // "Get", "List", "Level", "Txn", "NewSession", "Renew", "EndSession"
	Key    string // key, prefix or session
	Query  kv.Query
	Ops    []kv.Op
}

// Writes reports whether the call may change the store.
func (c Call) Writes() bool {
	switch c.Method {
	case "Txn":
		return slices.ContainsFunc(c.Ops, func(op kv.Op) bool { return op.Verb != kv.Read })
	case "NewSession", "EndSession":
		return true
	}
	return false
}

// Counts is what a client has asked for.
type Counts struct {
	Reads, Held, Txns, Sessions int // Held are reads that wait for a change, and are no Reads; Txns write
	Bytes                       int // of keys and values that reads answered with
}

// SetDown makes every call fail, held ones too, or ends that.
func (c *Client) SetDown(down bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.down = down
	if down {
		close(c.broken)
		c.broken = make(chan struct{})
	}
}

// LoseAnswers has the next n transactions happen and their callers get an
// error.
func (c *Client) LoseAnswers(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lose = n
}

// Detain has the next transaction that a tree's Commit sends held up on its way, while
// its caller gets an error. Arrive has it happen after all, if its conditions hold
// then; without one, the next isn't held up any more.
func (c *Client) Detain() (arrive func() kv.Outcome) {
	detained := new([]kv.Op)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.detain = detained
	return func() kv.Outcome {
		c.mu.Lock()
		ops := *detained
		if c.detain == detained {
			c.detain = nil
		}
		c.mu.Unlock()
		if ops == nil {
			return kv.Outcome{}
		}
		c.memory.mu.Lock()
		defer c.memory.mu.Unlock()
		return c.memory.txn(ops)
	}
}

// detains reports whether a transaction is the one to be held up.
func (c *Client) detains(ops []kv.Op) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.detain == nil || !slices.ContainsFunc(ops, func(op kv.Op) bool { return op.Verb == kv.Cas }) {
		return false
	}
	*c.detain, c.detain = ops, nil
	return true
}

// SetSlow has each call take that long before it is looked at.
func (c *Client) SetSlow(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.slow = d
}

// SetLate has each answer to a read take that long to arrive: it is old then.
func (c *Client) SetLate(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.late = d
}

// SetBehind has a server that gets no more writes answer this client's stale reads. False has that
// server catch up.
func (c *Client) SetBehind(behind bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.behind
	if c.behind = nil; behind {
		c.behind = c.memory.Frozen()
	}
	if before != nil {
		before.mu.Lock()
		defer before.mu.Unlock()
		before.wake()
	}
}

// SetReplaying has a leader that has not applied its whole log yet answer this client's reads,
// unless they are consistent. It has the state of a Frozen store. Nil has it catch up.
func (c *Client) SetReplaying(state *Memory) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.replaying = state
}

// server returns what answers a read.
func (c *Client) server(q kv.Query) *Memory {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !q.Consistent && c.replaying != nil {
		return c.replaying
	}
	if q.Stale && c.behind != nil {
		return c.behind
	}
	return c.memory
}

// Before has f called before each call, which fails with f's error. Nil ends
// it. F may block and may write to the store.
func (c *Client) Before(f func(Call) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.before = f
}

// After has f called after each read was answered, before the answer arrives. Nil ends it. F may
// block: the answer is old then.
func (c *Client) After(f func(Call)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.after = f
}

// Counts returns what has been asked for so far.
func (c *Client) Counts() Counts {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls
}

// enter counts a call and fails it if it should fail. Broken is closed when the
// client goes down.
func (c *Client) enter(ctx context.Context, call Call, count func(*Counts)) (broken <-chan struct{}, err error) {
	c.mu.Lock()
	count(&c.calls)
	down, before, slow, broken := c.down, c.before, c.slow, c.broken
	c.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if down {
		return nil, ErrDown
	}
	if slow > 0 {
		timer := time.NewTimer(slow)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-broken:
			return nil, ErrDown
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if before != nil {
		return broken, before(call)
	}
	return broken, nil
}

func (c *Client) count(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls.Bytes += n
}

// hold calls answer under the store's lock, until the index it returns is
// higher than the one waited for.
func (c *Client) hold(ctx context.Context, call Call, q kv.Query, answer func(*Memory) uint64) (uint64, error) {
	broken, err := c.enter(ctx, call, func(n *Counts) {
		if q.After > 0 {
			n.Held++
		} else {
			n.Reads++
		}
	})
	if err != nil {
		return 0, err
	}
	wait := time.NewTimer(q.Wait)
	defer wait.Stop()
	for late := false; ; {
		server := c.server(q)
		server.mu.Lock()
		index, changed, replaced := answer(server), server.changed, server.replaced
		server.mu.Unlock()
		if q.After == 0 || index > q.After || late {
			return index, c.arrive(ctx, call, broken)
		}
		select {
		case <-changed:
		case <-replaced:
			return index, c.arrive(ctx, call, broken)
		case <-wait.C:
			late = true
		case <-broken:
			return 0, ErrDown
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// arrive waits for as long as an answer is on its way.
func (c *Client) arrive(ctx context.Context, call Call, broken <-chan struct{}) error {
	c.mu.Lock()
	late, after := c.late, c.after
	c.mu.Unlock()
	if after != nil {
		after(call)
	}
	if late == 0 {
		return nil
	}
	timer := time.NewTimer(late)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-broken:
		return ErrDown
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Get implements kv.Store.
func (c *Client) Get(ctx context.Context, key string, q kv.Query) (*kv.Pair, uint64, error) {
	var pair *kv.Pair
	index, err := c.hold(ctx, Call{Method: "Get", Key: key, Query: q}, q, func(m *Memory) uint64 {
		pair = nil
		if p, ok := m.pairs[key]; ok {
			pair = &p
		}
		return m.keyIndex(key)
	})
	if err != nil {
		return nil, 0, err
	}
	if pair != nil {
		c.count(len(pair.Key) + len(pair.Value))
	}
	return pair, index, nil
}

// List implements kv.Store.
func (c *Client) List(ctx context.Context, prefix string, q kv.Query) (pairs []kv.Pair, index uint64, err error) {
	index, err = c.hold(ctx, Call{Method: "List", Key: prefix, Query: q}, q, func(m *Memory) uint64 {
		index := m.prefixIndex(prefix)
		pairs = m.under(prefix)
		return index
	})
	if err != nil {
		return nil, 0, err
	}
	n := 0
	for _, p := range pairs {
		n += len(p.Key) + len(p.Value)
	}
	c.count(n)
	return pairs, index, nil
}

// Level implements kv.Store.
func (c *Client) Level(ctx context.Context, prefix string) (names []string, index uint64, err error) {
	index, err = c.hold(ctx, Call{Method: "Level", Key: prefix}, kv.Query{}, func(m *Memory) uint64 {
		for _, p := range m.under(prefix) {
			name := p.Key
			if first, _, deeper := strings.Cut(name[len(prefix):], "/"); deeper {
				name = prefix + first + "/"
			}
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
		return m.prefixIndex(prefix)
	})
	if err != nil {
		return nil, 0, err
	}
	return names, index, nil
}

// Txn implements kv.Store. It refuses what Consul refuses for its size.
func (c *Client) Txn(ctx context.Context, ops []kv.Op) (kv.Outcome, error) {
	call := Call{Method: "Txn", Ops: ops}
	if _, err := c.enter(ctx, call, func(n *Counts) {
		if call.Writes() {
			n.Txns++
		} else {
			n.Reads++
		}
	}); err != nil {
		return kv.Outcome{}, err
	}
	size := 0
	for _, op := range ops {
		size += len(op.Key) + len(op.Value)*4/3 + 80
	}
	if len(ops) > 128 || size > 512<<10 {
		return kv.Outcome{}, errors.New("transaction is too large for Consul")
	}
	if c.detains(ops) {
		return kv.Outcome{}, errLost
	}
	out, err := c.memory.slowly(ctx, ops)
	if err != nil {
		return kv.Outcome{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lose > 0 {
		c.lose--
		return kv.Outcome{}, errLost
	}
	return out, nil
}

// NewSession implements kv.Store.
func (c *Client) NewSession(ctx context.Context, name string, ttl, lockDelay time.Duration) (string, error) {
	if _, err := c.enter(ctx, Call{Method: "NewSession"}, func(n *Counts) { n.Sessions++ }); err != nil {
		return "", err
	}
	c.memory.mu.Lock()
	defer c.memory.mu.Unlock()
	return c.memory.newSession(name, ttl, lockDelay), nil
}

// Renew implements kv.Store.
func (c *Client) Renew(ctx context.Context, id string) (bool, error) {
	if _, err := c.enter(ctx, Call{Method: "Renew", Key: id}, func(n *Counts) { n.Sessions++ }); err != nil {
		return false, err
	}
	c.memory.mu.Lock()
	defer c.memory.mu.Unlock()
	s := c.memory.sessions[id]
	if s != nil {
		s.expiry.Reset(s.ttl)
	}
	return s != nil, nil
}

// EndSession implements kv.Store.
func (c *Client) EndSession(ctx context.Context, id string) error {
	if _, err := c.enter(ctx, Call{Method: "EndSession", Key: id}, func(n *Counts) { n.Sessions++ }); err != nil {
		return err
	}
	c.memory.mu.Lock()
	defer c.memory.mu.Unlock()
	c.memory.endSession(id, true)
	return nil
}
