// Package fleettest has a Consul KV store in memory, which behaves and
// misbehaves as the real one does, for tests of what stands on package fleet.
// Several trees in one process share it, each through a Client of its own, so
// that faults can be had for one host or for all.
package fleettest

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ironvip/ironvip/fleet/kv"
)

// Memory is the store. Its methods may be called by any goroutine.
type Memory struct {
	mu         sync.Mutex
	index      uint64
	pairs      map[string]kv.Pair
	tombstones map[string]uint64 // when keys were removed
	sessions   map[string]*session
	delays     map[string]time.Time // until when a key can't be locked
	ids        int
	changed    chan struct{}
	replaced   chan struct{} // closed when another state is restored
	clients    map[string]*Client
	pace       time.Duration
	slow       sync.WaitGroup
	busy       chan struct{} // held by the transaction that is being done, where that takes time
	undo       []keyState    // what the keys were before the transaction that is being done changed them
}

// keyState is what the store holds for a key.
type keyState struct {
	key     string
	pair    *kv.Pair
	removed uint64
}

type session struct {
	id, name string
	ttl      time.Duration
	delay    time.Duration
	expiry   *time.Timer
}

// NewMemory returns an empty store.
func NewMemory() *Memory {
	return &Memory{
		index:      10,
		pairs:      map[string]kv.Pair{},
		tombstones: map[string]uint64{},
		sessions:   map[string]*session{},
		delays:     map[string]time.Time{},
		changed:    make(chan struct{}),
		replaced:   make(chan struct{}),
		clients:    map[string]*Client{},
		busy:       make(chan struct{}, 1),
	}
}

// Client returns how the host of that name reaches the store, always the same.
func (m *Memory) Client(host string) *Client {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.clients[host]
	if c == nil {
		c = &Client{memory: m, broken: make(chan struct{})}
		m.clients[host] = c
	}
	return c
}

// SetDown makes the store unavailable to every client there is, or available
// again.
func (m *Memory) SetDown(down bool) {
	m.mu.Lock()
	clients := slices.Collect(maps.Values(m.clients))
	m.mu.Unlock()
	for _, c := range clients {
		c.SetDown(down)
	}
}

// SetPace has transactions happen one after the other, each after that time for
// each of its operations, whether or not anybody still waits for it. At the end of the
// test they have all happened.
func (m *Memory) SetPace(t testing.TB, d time.Duration) {
	t.Cleanup(func() {
		m.setPace(0)
		m.slow.Wait()
	})
	m.setPace(d)
}

func (m *Memory) setPace(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pace = d
}

// slowly does a transaction at the store's pace.
func (m *Memory) slowly(ctx context.Context, ops []kv.Op) (kv.Outcome, error) {
	m.mu.Lock()
	pace := m.pace
	m.mu.Unlock()
	done := make(chan kv.Outcome, 1)
	do := func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		done <- m.txn(ops)
	}
	if pace == 0 {
		do()
	} else {
		m.slow.Go(func() {
			m.busy <- struct{}{}
			time.Sleep(pace * time.Duration(len(ops)))
			do()
			<-m.busy
		})
	}
	select {
	case out := <-done:
		return out, nil
	case <-ctx.Done():
		return kv.Outcome{}, ctx.Err()
	}
}

// Put writes a key as an operator would, past every tree.
func (m *Memory) Put(key, value string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.index++
	m.set(key, []byte(value), m.index)
	m.wake()
}

// Delete removes all keys that begin with prefix, past every tree.
func (m *Memory) Delete(prefix string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.index++
	for key := range m.pairs {
		if strings.HasPrefix(key, prefix) {
			m.remove(key, m.index)
		}
	}
	m.wake()
}

// Get returns a key's value, and whether there is one.
func (m *Memory) Get(key string) (string, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p, ok := m.pairs[key]
	return string(p.Value), ok
}

// Pairs returns all keys that begin with prefix, in order.
func (m *Memory) Pairs(prefix string) []kv.Pair {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.under(prefix)
}

// Index returns the index of the newest write.
func (m *Memory) Index() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.index
}

// Frozen returns a copy of the store that nobody writes to.
func (m *Memory) Frozen() *Memory {
	m.mu.Lock()
	defer m.mu.Unlock()
	copied := NewMemory()
	copied.index, copied.pairs, copied.tombstones = m.index, maps.Clone(m.pairs), maps.Clone(m.tombstones)
	return copied
}

// Snapshot is what the store held at one time.
type Snapshot struct {
	index uint64
	pairs map[string]kv.Pair
}

// Snapshot returns what the store holds now.
func (m *Memory) Snapshot() Snapshot {
	m.mu.Lock()
	defer m.mu.Unlock()
	return Snapshot{m.index, maps.Clone(m.pairs)}
}

// Restore makes the store hold what it held then. Indexes go backwards, and all
// sessions are over. With rebuilt set, indexes of new writes are repeated, as
// when the snapshot is loaded into new servers; else they go on. As in Consul,
// blocking queries end with the answer of the replaced state, and later ones wait
// until the index has passed theirs.
func (m *Memory) Restore(s Snapshot, rebuilt bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, session := range m.sessions {
		session.expiry.Stop()
		delete(m.sessions, id)
	}
	m.pairs, m.tombstones = maps.Clone(s.pairs), map[string]uint64{}
	for key, p := range m.pairs {
		if p.Session != "" {
			delete(m.pairs, key)
		}
	}
	if rebuilt {
		m.index = s.index
	}
	m.index++
	close(m.replaced)
	m.replaced = make(chan struct{})
}

// ExpireTombstones forgets which keys were removed, as Consul does after 15 minutes.
func (m *Memory) ExpireTombstones() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.tombstones)
}

// ExpireSessions ends all sessions, as a Consul does after their TTL.
func (m *Memory) ExpireSessions() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(m.sessions)) {
		m.endSession(id, true)
	}
}

// Sessions returns how many sessions live.
func (m *Memory) Sessions() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.sessions)
}

// The rest is called with mu held.

func (m *Memory) wake() {
	close(m.changed)
	m.changed = make(chan struct{})
}

// set writes the key, unless it has that value already: then, as in Consul, its
// index stays.
func (m *Memory) set(key string, value []byte, index uint64) uint64 {
	old, ok := m.pairs[key]
	if ok && bytes.Equal(old.Value, value) {
		return old.Index
	}
	m.put(kv.Pair{Key: key, Value: bytes.Clone(value), Index: index, Session: old.Session})
	return index
}

func (m *Memory) put(p kv.Pair) {
	m.remember(p.Key)
	m.pairs[p.Key] = p
	delete(m.tombstones, p.Key)
}

func (m *Memory) remove(key string, index uint64) {
	m.remember(key)
	delete(m.pairs, key)
	m.tombstones[key] = index
}

// remember notes the state of a key before its change.
func (m *Memory) remember(key string) {
	before := keyState{key: key, removed: m.tombstones[key]}
	if p, exists := m.pairs[key]; exists {
		before.pair = &p
	}
	m.undo = append(m.undo, before)
}

// restore undoes the changes since the start of the transaction.
func (m *Memory) restore() {
	for _, before := range slices.Backward(m.undo) {
		delete(m.pairs, before.key)
		delete(m.tombstones, before.key)
		if before.pair != nil {
			m.pairs[before.key] = *before.pair
		}
		if before.removed != 0 {
			m.tombstones[before.key] = before.removed
		}
	}
}

func (m *Memory) under(prefix string) []kv.Pair {
	var out []kv.Pair
	for key, p := range m.pairs {
		if strings.HasPrefix(key, prefix) {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b kv.Pair) int { return strings.Compare(a.Key, b.Key) })
	return out
}

// prefixIndex is the index of an answer about a prefix: that of the newest
// change under it, or of the whole store when there never was any.
func (m *Memory) prefixIndex(prefix string) (index uint64) {
	for key, p := range m.pairs {
		if strings.HasPrefix(key, prefix) {
			index = max(index, p.Index)
		}
	}
	for key, at := range m.tombstones {
		if strings.HasPrefix(key, prefix) {
			index = max(index, at)
		}
	}
	if index == 0 {
		return m.index
	}
	return index
}

func (m *Memory) keyIndex(key string) uint64 {
	if p, ok := m.pairs[key]; ok {
		return p.Index
	}
	return m.index
}

// txn does all of the operations, or none.
func (m *Memory) txn(ops []kv.Op) kv.Outcome {
	m.undo = m.undo[:0]
	var out kv.Outcome
	next := m.index + 1
	onlyRead := true
	for i, op := range ops {
		if op.Verb == kv.Read {
			if p, ok := m.pairs[op.Key]; ok {
				out.Pairs = append(out.Pairs, p)
			}
			continue
		}
		onlyRead = false
		index, refused := m.do(op, next)
		if refused != "" {
			out.Refused = append(out.Refused, kv.Refusal{Op: i, Reason: refused})
		}
		out.Index = max(out.Index, index)
	}
	if len(out.Refused) > 0 {
		m.restore()
		return kv.Outcome{Refused: out.Refused}
	}
	if onlyRead {
		return out
	}
	m.index = next
	m.wake()
	return out
}

func (m *Memory) do(op kv.Op, next uint64) (index uint64, refused string) {
	old, exists := m.pairs[op.Key]
	switch op.Verb {
	case kv.Set:
		return m.set(op.Key, op.Value, next), ""
	case kv.Cas:
		if exists && op.Index != old.Index || !exists && op.Index != 0 {
			return 0, fmt.Sprintf("failed to set key %q, index is stale", op.Key)
		}
		return m.set(op.Key, op.Value, next), ""
	case kv.Delete:
		if exists {
			m.remove(op.Key, next)
		}
	case kv.DeleteCas:
		if exists && op.Index != old.Index {
			return 0, fmt.Sprintf("failed to delete key %q, index is stale", op.Key)
		}
		if exists {
			m.remove(op.Key, next)
		}
	case kv.CheckGone:
		if exists {
			return 0, fmt.Sprintf("key %q exists", op.Key)
		}
	case kv.CheckIndex:
		if !exists || op.Index != old.Index {
			return 0, fmt.Sprintf("current modify index does not match for key %q", op.Key)
		}
	case kv.Lock:
		switch {
		case m.sessions[op.Session] == nil:
			return 0, fmt.Sprintf("invalid session %q", op.Session)
		case old.Session != "" && old.Session != op.Session, time.Now().Before(m.delays[op.Key]):
			return 0, fmt.Sprintf("failed to lock key %q, lock is already held", op.Key)
		case exists && old.Session == op.Session && bytes.Equal(old.Value, op.Value):
			return old.Index, ""
		}
		m.put(kv.Pair{Key: op.Key, Value: bytes.Clone(op.Value), Index: next, Session: op.Session})
		return next, ""
	case kv.Unlock:
		if !exists || old.Session != op.Session {
			return 0, fmt.Sprintf("failed to unlock key %q, lock isn't held, or is held by another session", op.Key)
		}
		m.put(kv.Pair{Key: op.Key, Value: bytes.Clone(op.Value), Index: next})
		return next, ""
	default:
		return 0, fmt.Sprintf("unknown verb %q", op.Verb)
	}
	return 0, ""
}

func (m *Memory) newSession(name string, ttl, delay time.Duration) string {
	m.ids++
	id := fmt.Sprintf("session-%d", m.ids)
	s := &session{id: id, name: name, ttl: ttl, delay: delay}
	s.expiry = time.AfterFunc(ttl, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.sessions[id] == s {
			m.endSession(id, true)
		}
	})
	m.sessions[id] = s
	return id
}

func (m *Memory) endSession(id string, delay bool) {
	s := m.sessions[id]
	if s == nil {
		return
	}
	s.expiry.Stop()
	delete(m.sessions, id)
	m.index++
	for key, p := range m.pairs {
		if p.Session == id {
			m.remove(key, m.index)
			if delay {
				m.delays[key] = time.Now().Add(s.delay)
			}
		}
	}
	m.wake()
}
