// Package event keeps the latest events for operators, such as a repaired drift, a conflict or a
// drained backend. The log is bounded and in memory; logs and metrics keep the history.
package event

import (
	"container/list"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ironvip/ironvip/internal/wake"
)

// MaxAlike is the most events with the same kind, service and object in a log. So a service that
// changes its state all the time does not remove the events of all others.
const MaxAlike = 4

// Event is one event.
type Event struct {
	ID      uint64    `json:"id"` // grows by one within a run of the agent, and is above the IDs of earlier runs
	Time    time.Time `json:"time"`
	Kind    string    `json:"kind"` // stable and machine-readable: "drift_repaired"
	Service string    `json:"service,omitempty"`
	Object  string    `json:"object,omitempty"` // the affected object: "192.0.2.10:80/tcp", "public-v4"
	Message string    `json:"message"`
	// Count is the number of events with this kind, service and object since First, with this one. Both
	// are set only if the log no longer has all of these.
	Count uint64     `json:"count,omitempty"`
	First *time.Time `json:"first,omitempty"`
}

// Log has the latest events. Its methods may be called concurrently.
type Log struct {
	now   func() time.Time
	size  int
	first uint64 // ID of the first event

	mu         sync.Mutex
	events     *list.List // of *Event, by ID; at most size
	alike      map[subject]*history
	namespaces map[string]int // how many of events each namespace has
	next       uint64         // ID of the next event
	followers  []func(Event)
	changed    wake.Broadcast
}

// namespaceOf returns the namespace of a service of an event, as vip.ServiceKey.String writes it: "" for no
// service, and otherwise with a slash at its end, or only that.
func namespaceOf(service string) string {
	if service == "" {
		return ""
	}
	return service[:strings.IndexByte(service, '/')+1] + "/"
}

// subject is what events that are alike have in common.
type subject struct{ kind, service, object string }

func (e *Event) subject() subject { return subject{e.Kind, e.Service, e.Object} }

// history is what the log has of a subject.
type history struct {
	kept  []*list.Element // of Log.events, oldest first, 1 to MaxAlike
	count uint64          // with those that were removed
	first time.Time
}

// NewLog returns a log that keeps the latest size events. IDs start at the time of day in microseconds,
// so that a reader can continue after an event of an earlier run of the agent.
func NewLog(size int, now func() time.Time) *Log {
	first := uint64(now().UnixMicro())
	return &Log{now: now, size: size, first: first, events: list.New(), alike: map[subject]*history{}, namespaces: map[string]int{}, next: first}
}

// Issued reports whether id is that of an event of this log, which may have removed it.
func (l *Log) Issued(id uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.first <= id && id < l.next
}

// Add appends e, and sets its ID, time and count. A nil Log ignores it. Of MaxAlike events that are
// like e, the oldest is removed. Above the size of the log, that is the oldest of the namespace with the most
// events, so that one with many services or backends does not remove the events of all others. It then costs
// O(namespaces), and a walk to that event.
func (l *Log) Add(e Event) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tell(l.keep(l.stamp(e)))
	l.changed.Send()
}

// MaxMany is the most events of AddMany that the log keeps.
const MaxMany = 20

// AddMany adds events of one cause. Followers get all of them. The log keeps the first MaxMany, and one event of the kind of
// the next, with the message that others returns for their number: one cause does not remove all older events. A nil Log
// ignores them.
func (l *Log) AddMany(events []Event, others func(n int) string) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, e := range events {
		if e = l.stamp(e); i < MaxMany {
			e = l.keep(e)
		}
		l.tell(e)
	}
	if n := len(events) - MaxMany; n > 0 {
		l.keep(l.stamp(Event{Kind: events[MaxMany].Kind, Message: others(n)}))
	}
	l.changed.Send()
}

// stamp gives an event its ID and time. The caller holds mu, as those of keep and tell do.
func (l *Log) stamp(e Event) Event {
	e.ID, e.Time = l.next, l.now()
	l.next++
	return e
}

// keep appends e, and returns it with its count.
func (l *Log) keep(e Event) Event {
	h := l.alike[e.subject()]
	if h == nil {
		h = &history{first: e.Time}
		l.alike[e.subject()] = h
	}
	if h.count++; len(h.kept) == MaxAlike {
		l.removeOldest(h)
	}
	if first := h.first; h.count > MaxAlike {
		e.Count, e.First = h.count, &first
	}
	h.kept = append(h.kept, l.events.PushBack(&e))
	l.namespaces[namespaceOf(e.Service)]++
	if l.events.Len() > l.size {
		l.shrink()
	}
	return e
}

func (l *Log) tell(e Event) {
	for _, f := range l.followers {
		f(e)
	}
}

// Follow calls f with each event from now on, in order, also with those that the log soon removes. The log is locked
// meanwhile: f must not wait for anything, and not call the log.
func (l *Log) Follow(f func(Event)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.followers = append(l.followers, f)
}

// shrink removes the oldest event of the namespace with the most; of several such namespaces, the oldest event of all.
// The caller holds mu.
func (l *Log) shrink() {
	most := slices.Max(slices.Collect(maps.Values(l.namespaces)))
	at := l.events.Front()
	for l.namespaces[namespaceOf(at.Value.(*Event).Service)] < most {
		at = at.Next()
	}
	l.removeOldest(l.alike[at.Value.(*Event).subject()])
}

// removeOldest removes the oldest event of a subject. A subject or a namespace without events is forgotten. The caller
// holds mu.
func (l *Log) removeOldest(h *history) {
	e := l.events.Remove(h.kept[0]).(*Event)
	if h.kept = slices.Delete(h.kept, 0, 1); len(h.kept) == 0 {
		delete(l.alike, e.subject())
	}
	name := namespaceOf(e.Service)
	if l.namespaces[name]--; l.namespaces[name] == 0 {
		delete(l.namespaces, name)
	}
}

// Since returns the kept events with an ID above id, oldest first, and a channel that is closed at
// the next event. It costs O(returned events).
func (l *Log) Since(id uint64) ([]Event, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []Event
	for at := l.events.Back(); at != nil && at.Value.(*Event).ID > id; at = at.Prev() {
		out = append(out, *at.Value.(*Event))
	}
	slices.Reverse(out)
	return out, l.changed.Next()
}
