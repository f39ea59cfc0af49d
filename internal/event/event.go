// Package event keeps the latest events for operators, such as a repaired drift, a conflict or a
// drained backend. It is a bounded ring in memory; logs and metrics keep the history.
package event

import (
	"sync"
	"time"
)

// Event is one event.
type Event struct {
	ID      uint64    `json:"id"` // grows by one; unique within a run of the agent
	Time    time.Time `json:"time"`
	Kind    string    `json:"kind"` // stable and machine-readable: "drift_repaired"
	Service string    `json:"service,omitempty"`
	Object  string    `json:"object,omitempty"` // the affected object: "192.0.2.10:80/tcp", "public-v4"
	Message string    `json:"message"`
}

// Log is a ring of events. Its methods may be called concurrently.
type Log struct {
	now func() time.Time

	mu      sync.Mutex
	ring    []Event // ring[id % len] once full
	next    uint64  // ID of the next event; IDs start at 1
	changed chan struct{}
}

// NewLog returns a log that keeps the latest size events.
func NewLog(size int, now func() time.Time) *Log {
	return &Log{now: now, ring: make([]Event, size), next: 1, changed: make(chan struct{})}
}

// Add appends e, and sets its ID and time. A nil Log ignores it.
func (l *Log) Add(e Event) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	e.ID, e.Time = l.next, l.now()
	l.ring[e.ID%uint64(len(l.ring))] = e
	l.next++
	close(l.changed)
	l.changed = make(chan struct{})
}

// Since returns the kept events with an ID above id, oldest first, and a channel that is closed at
// the next event.
func (l *Log) Since(id uint64) ([]Event, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	oldest := uint64(1)
	if size := uint64(len(l.ring)); l.next > size {
		oldest = l.next - size
	}
	var out []Event
	for i := max(id+1, oldest); i < l.next; i++ {
		out = append(out, l.ring[i%uint64(len(l.ring))])
	}
	return out, l.changed
}
