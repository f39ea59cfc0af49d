// Package cache lets an agent start with the services that a source had
// before, while that source can't be read.
//
// In come the rows in force, which are kept on disk behind everybody's back: no
// change waits for it. Out of it comes, in a new run of the agent, what was kept,
// if the source itself says nothing within a moment or says that it can't:
// without that, what forwards would be taken down because Consul is away. What
// the source says counts from its first word on. The package decides nothing
// about services, and is for sources whose input isn't on this host's disk
// already.
package cache

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/sources"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

// Patience is how long a source may say nothing before it is spoken for.
const Patience = 2 * time.Second

// flushEvery is how long a change may wait to be kept.
const flushEvery = time.Second

// Row is one service as it is kept.
type Row struct {
	Spec   spec.Service `json:"spec"` // with every default stated
	Origin string       `json:"origin,omitempty"`
	// Assigned is what the spec has no word for: no user writes it.
	Assigned bool `json:"assigned,omitempty"`
}

// heardKey has an empty row once what is kept is all that the source has said: so
// a source without services is told from one that was never heard. It is no
// service's, which have a slash.
const heardKey = "heard"

// Store keeps rows durably under "namespace/name". A *store.Bucket is one.
type Store interface {
	All() (map[string]Row, error)
	Write(put map[string]Row, remove []string) error
}

// Source is a source with a memory. It implements sources.Source, and
// sources.Guarded.
type Source struct {
	inner    sources.Source
	name     string
	store    Store
	services table.Reader[vip.ServiceKey, vip.Service]
	log      *slog.Logger

	heard chan struct{} // closed when inner has stated its full list in this process
	once  sync.Once
}

// New gives the source of that name a memory. Services are the rows in force of
// all sources.
func New(name string, inner sources.Source, store Store, services table.Reader[vip.ServiceKey, vip.Service], log *slog.Logger) *Source {
	return &Source{inner: inner, name: name, store: store, services: services, log: log, heard: make(chan struct{})}
}

// ShrinkGuard implements sources.Guarded: it is the inner source's.
func (s *Source) ShrinkGuard() time.Duration {
	if guarded, ok := s.inner.(sources.Guarded); ok {
		return guarded.ShrinkGuard()
	}
	return 0
}

// Name is the source's name.
func (s *Source) Name() string { return s.name }

// Prior returns how many services are remembered: before Keep, those that the
// last run of the agent had. It costs O(those services).
func (s *Source) Prior() int {
	all, _ := s.store.All() // what can't be read is told of by who restores it
	delete(all, heardKey)
	return len(all)
}

// Run implements sources.Source.
func (s *Source) Run(ctx context.Context, out sources.Sink) error {
	select {
	case <-s.heard:
		return s.inner.Run(ctx, out) // what it said is in force
	default:
	}
	sink := &sink{Sink: out, source: s}
	timer := time.AfterFunc(Patience, func() { sink.recall(errors.New("it has not answered yet")) })
	defer timer.Stop()
	err := s.inner.Run(ctx, sink)
	if ctx.Err() == nil {
		sink.recall(err)
	}
	sink.close()
	return err
}

// sink passes on what the source says, and what is remembered before that.
type sink struct {
	sources.Sink
	source *Source

	mu     sync.Mutex
	spoken bool // the source has stated its full list, was spoken for, or its run is over
}

// recall speaks for a source that hasn't spoken. Why is what keeps it.
func (k *sink) recall(why error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.spoken {
		return
	}
	k.spoken = true
	rows, all := k.source.restore()
	if len(rows) == 0 && !all {
		return
	}
	k.source.log.Warn("a source can't be read: beginning with the services that it had before", "source", k.source.name, "services", len(rows), "err", why)
	k.Sink.Replace(rows, nil)
	k.Sink.Stale(fmt.Errorf("not read since the agent started, its services are those of before: %w", why))
}

// close keeps the memory quiet once the run is over.
func (k *sink) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.spoken = true
}

// Replace implements sources.Sink.
func (k *sink) Replace(services []vip.Service, problems []vip.Problem) uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.spoken = true
	rev := k.Sink.Replace(services, problems)
	k.source.once.Do(func() { close(k.source.heard) })
	return rev
}

// Stale implements sources.Sink.
func (k *sink) Stale(err error) {
	k.Sink.Stale(err)
	k.recall(err)
}

// restore returns what is remembered. That it is all that the source had says
// whole.
func (s *Source) restore() (rows []vip.Service, whole bool) {
	all, err := s.store.All()
	if err != nil {
		s.log.Warn("some of a source's services are not remembered", "source", s.name, "err", err)
	}
	_, whole = all[heardKey]
	whole = whole && err == nil
	delete(all, heardKey)
	rows = make([]vip.Service, 0, len(all))
	for key, kept := range all {
		row, problems := kept.Spec.Build(s.name, kept.Origin)
		if len(problems) > 0 {
			s.log.Warn("a service is not remembered", "source", s.name, "service", key, "err", problems[0].Error())
			whole = false
			continue
		}
		row.Assigned = kept.Assigned
		rows = append(rows, row)
	}
	return rows, whole
}

// Keep keeps the source's rows in force, until the context ends, and returns its
// error. A change costs O(change), and a write to the disk within a second.
func (s *Source) Keep(ctx context.Context) error {
	k := keeper{Source: s, known: map[string]struct{}{}, put: map[string]Row{}, remove: map[string]struct{}{}}
	all, err := s.store.All()
	if err != nil {
		s.log.Warn("some of a source's services are not remembered", "source", s.name, "err", err)
	}
	for key := range all {
		k.known[key] = struct{}{}
	}
	all = nil
	feed := s.services.Watch()
	defer feed.Close()
	flush := time.NewTicker(flushEvery)
	defer flush.Stop()
	ready, heard := s.services.Ready(), (<-chan struct{})(s.heard)
	for {
		batch, more := feed.TryNext()
		for _, c := range batch {
			k.change(c.Value.Key, c.Value, c.Deleted)
		}
		if len(batch) > 0 {
			continue
		}
		select {
		case <-ctx.Done():
			k.flush()
			return ctx.Err()
		case <-more:
		case <-ready:
			ready = nil
		case <-heard:
			heard = nil
		case <-flush.C:
			// Once all is known that the source has now, what it had before is forgotten.
			if !k.swept && ready == nil && heard == nil {
				k.sweep()
			}
			k.flush()
		}
	}
}

// keeper is the state of Keep.
type keeper struct {
	*Source
	known  map[string]struct{} // that are kept
	put    map[string]Row
	remove map[string]struct{}
	swept  bool
}

func nameOf(key vip.ServiceKey) string { return key.Namespace + "/" + key.Name }

func (k *keeper) change(key vip.ServiceKey, row vip.Service, deleted bool) {
	name := nameOf(key)
	if deleted || row.Source != k.name {
		k.drop(name)
		return
	}
	delete(k.remove, name)
	k.known[name] = struct{}{}
	k.put[name] = Row{Spec: spec.FromService(row), Origin: row.Origin, Assigned: row.Assigned}
}

func (k *keeper) drop(name string) {
	delete(k.put, name)
	if _, kept := k.known[name]; kept {
		delete(k.known, name)
		k.remove[name] = struct{}{}
	}
}

// sweep drops what the source had in an earlier run of the agent, and hasn't now.
// Then what is kept is all that there is.
func (k *keeper) sweep() {
	k.swept = true
	now := map[string]struct{}{}
	for key, row := range k.services.All() {
		if row.Source != k.name {
			continue
		}
		now[nameOf(key)] = struct{}{}
		if _, known := k.known[nameOf(key)]; !known { // the feed is not as far yet
			k.change(key, row, false)
		}
	}
	_, heard := k.known[heardKey]
	for name := range k.known {
		if _, there := now[name]; !there && name != heardKey {
			k.drop(name)
		}
	}
	if !heard {
		k.known[heardKey], k.put[heardKey] = struct{}{}, Row{}
	}
}

// flush writes what has changed. What can't be written is tried again.
func (k *keeper) flush() {
	if len(k.put)+len(k.remove) == 0 {
		return
	}
	gone := make([]string, 0, len(k.remove))
	for name := range k.remove {
		gone = append(gone, name)
	}
	if err := k.store.Write(k.put, gone); err != nil {
		k.log.Warn("a source's services can't be remembered; trying again", "source", k.name, "err", err)
		return
	}
	clear(k.put)
	clear(k.remove)
}
