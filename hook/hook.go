// Package hook tells programs and webhooks of events.
//
// Its inputs are the event log and the [[hook]] tables of ironvip.toml. Each hook has a bounded queue of documents, a
// goroutine that delivers them in order, and a copy of the queue on disk, so that the next run of the agent delivers what
// this one has not. Nothing waits for a hook: an event costs an append to a queue. A full queue drops its oldest document,
// and the document after it says so.
//
// Files:
//
//	config.go   the settings, and which events a hook gets
//	hook.go     the queues
//	deliver.go  a run of a program, and a request to a webhook
//	status.go   problems and metrics
package hook

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/ironvip/ironvip/internal/backoff"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/keep"
	"github.com/ironvip/ironvip/internal/parallel"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/internal/wake"
	"github.com/ironvip/ironvip/internal/workqueue"
)

// Document is what a hook gets of an event, as JSON.
type Document struct {
	Hook string `json:"hook"` // its name
	Node string `json:"node"` // node.name of the agent
	event.Event
	Dropped uint64 `json:"dropped"` // how many events of this hook, directly before this one, a full queue has dropped
}

// Row is a document that is not delivered yet.
type Row struct {
	Seq uint64 // grows by one, also across runs of the agent
	Document
}

type key struct {
	hook string
	seq  uint64
}

func (r *Row) key() key { return key{r.Hook, r.Seq} }

// Options are what the hooks need. All are required.
type Options struct {
	Node   string
	Store  keep.Store[Row] // of documents that are not delivered yet
	Events *event.Log
	Clock  *table.Clock
	Log    *slog.Logger
}

// Hooks are the hooks of an agent. Create them with New, and start Run.
type Hooks struct {
	o      Options
	rows   *table.Table[key, Row]
	stored map[string]bool // the names of the rows in the store at the start
	retry  backoff.Backoff // of each hook
	wake   wake.Signal     // of Run: there are other hooks

	mu    sync.Mutex
	hooks map[string]*one
	seq   uint64 // of the latest row
}

// one is a hook. Hooks.mu guards its fields.
type one struct {
	config  Config
	client  *http.Client // for config
	changed wake.Signal  // config is another one
	queue   workqueue.Queue[key]
	sending key    // in delivery, so that it is not dropped
	stop    func() // ends the delivery; nil before it begins
	stats   stats
}

func newOne(c Config) *one { return &one{config: c, client: newClient(&c), changed: wake.New()} }

// New returns the hooks with the documents that an earlier run of the agent has not delivered. Events from now on are
// queued; Run delivers them.
func New(o Options, hooks []Config) *Hooks {
	h := &Hooks{
		o: o, rows: table.New(o.Clock, (*Row).key, nil), stored: map[string]bool{},
		retry: backoff.Backoff{Lo: time.Second, Hi: time.Minute}, wake: wake.New(), hooks: map[string]*one{},
	}
	stored, err := o.Store.All()
	if err != nil {
		o.Log.Error("queued events of hooks are lost: unreadable", "err", err)
	}
	if damaged, is := errors.AsType[interface {
		error
		Unreadable() []string
	}](err); is {
		for _, name := range damaged.Unreadable() {
			h.stored[name] = true // to remove it
		}
	}
	var rows []Row
	for name, r := range stored {
		h.stored[name] = true
		rows = append(rows, r)
	}
	slices.SortFunc(rows, func(a, b Row) int { return cmp.Compare(a.Seq, b.Seq) })
	for _, r := range rows {
		h.seq = max(h.seq, r.Seq)
		if h.hooks[r.Hook] == nil {
			h.hooks[r.Hook] = newOne(Config{Name: r.Hook, Queue: maxQueue}) // as long as it is not known whether there is one
		}
		h.put(h.hooks[r.Hook], r)
	}
	h.Reload(hooks)
	o.Events.Follow(h.follow)
	return h
}

// follow queues an event. The log is locked meanwhile.
func (h *Hooks) follow(e event.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for name, x := range h.hooks {
		if x.config.wants(&e) {
			h.seq++
			h.put(x, Row{h.seq, Document{Hook: name, Node: h.o.Node, Event: e}})
		}
	}
}

// put adds a document at the end of a queue. The caller holds mu, or is New.
func (h *Hooks) put(x *one, r Row) {
	h.rows.Set(r)
	x.queue.Add(r.key())
	h.shrink(x)
}

// shrink drops the oldest documents of a queue that is too long. The caller holds mu.
func (h *Hooks) shrink(x *one) {
	for x.queue.Len() > x.config.Queue {
		var oldest *Row
		for k := range x.queue.All() {
			if r := h.rows.Row(k); oldest == nil && k != x.sending {
				oldest = &r.Value
			} else if oldest != nil {
				next := r.Value
				next.Dropped += oldest.Dropped + 1
				h.rows.Set(next)
				break
			}
		}
		if x.stats.full.add(time.Now()) {
			h.o.Log.Warn("queue of a hook is full: its oldest events are dropped", "hook", x.config.Name, "queue", x.config.Queue)
		}
		h.remove(x, oldest.key())
	}
}

func (h *Hooks) remove(x *one, k key) {
	x.queue.Remove(k)
	h.rows.Delete(k)
}

// Reload makes these the hooks. A hook that was there keeps its queue, and tries again at once. The queue of a hook that is
// no longer there is removed.
func (h *Hooks) Reload(hooks []Config) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := map[string]bool{}
	for _, c := range hooks {
		now[c.Name] = true
		x := h.hooks[c.Name]
		switch {
		case x == nil:
			h.hooks[c.Name] = newOne(c)
			h.wake.Set()
		case !reflect.DeepEqual(x.config, c):
			x.config, x.client = c, newClient(&c)
			x.changed.Set()
			h.shrink(x)
		}
	}
	for name, x := range h.hooks {
		if now[name] {
			continue
		}
		if x.stop != nil {
			x.stop()
		}
		if n := x.queue.Len(); n > 0 {
			h.o.Log.Warn("hook removed: its queued events are not delivered", "hook", name, "events", n)
		}
		for k := range x.queue.All() {
			h.remove(x, k)
		}
		delete(h.hooks, name)
	}
}

// storePause is the time between two writes of the queues.
const storePause = 100 * time.Millisecond

// Run delivers until the context ends, and then ends the deliveries at once: the next run repeats them.
func (h *Hooks) Run(ctx context.Context) error {
	keeper := keep.Keeper[key, Row, Row]{
		Table: h.rows, Store: h.o.Store, Log: h.o.Log, What: "queued events of hooks", Pause: storePause,
		Name: func(k key) string { return fmt.Sprintf("%s/%020d", k.hook, k.seq) }, Row: func(r *Row) Row { return *r },
		Names: h.stored, Complete: []<-chan struct{}{h.rows.Ready()},
	}
	group, ctx := parallel.NewGroup(ctx)
	group.Run(ctx, keeper.Run)
	for {
		h.mu.Lock()
		for _, x := range h.hooks {
			if x.stop == nil {
				own, stop := context.WithCancel(ctx)
				x.stop = stop
				group.Run(own, func(ctx context.Context) { h.deliver(ctx, x) })
			}
		}
		h.mu.Unlock()
		select {
		case <-ctx.Done():
			return group.Wait()
		case <-h.wake:
		}
	}
}
