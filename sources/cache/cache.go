// Package cache keeps a source's last services on disk, so that an agent can start with them while
// the source can't be read.
//
// Its inputs are the source's rows in [services], which are written to disk within a second; no
// change waits for that. In a new run of the agent, its output are those rows, if the source sends
// nothing within a moment or reports that it can't be read. Otherwise traffic would stop because
// Consul is away. The source's own full list replaces them. The package decides nothing about
// services.
package cache

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/ironvip/ironvip/internal/keep"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/sources"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

// answerTimeout is how long a source may send nothing before its cached services are used.
const answerTimeout = 2 * time.Second

// flushEvery is how long a change may wait to be written.
const flushEvery = time.Second

// Row is one service on disk.
type Row struct {
	Spec   spec.Service `json:"spec"` // with every default stated
	Origin string       `json:"origin,omitempty"`
	// Assigned and Preferred are not part of the spec: no user writes them.
	Assigned  bool         `json:"assigned,omitempty"`
	Preferred []netip.Addr `json:"preferred,omitempty"`
	// Checked states that the source checks the backends, and Unhealthy lists those that it found
	// unhealthy, by ID.
	Checked   bool     `json:"checked,omitempty"`
	Unhealthy []string `json:"unhealthy,omitempty"`
}

// completeKey has an empty row once the cache holds the source's full list. It distinguishes a
// source without services from one that was never read. It has no slash, which every service's key
// has.
const completeKey = "complete"

// Store keeps rows durably under "namespace/name".
type Store interface {
	keep.Store[Row]
	// Keys returns the keys of all rows, also of those that can't be read.
	Keys() ([]string, error)
}

// Source is a source with a cache. It implements sources.Source and sources.Guarded.
type Source struct {
	inner    sources.Source
	name     string
	store    Store
	services table.Reader[vip.ServiceKey, vip.Service]
	log      *slog.Logger

	answered chan struct{} // closed when inner has sent its full list in this process
	once     sync.Once
}

// New returns a source with a cache. Services are the rows in effect of all sources.
func New(name string, inner sources.Source, store Store, services table.Reader[vip.ServiceKey, vip.Service], log *slog.Logger) *Source {
	return &Source{inner: inner, name: name, store: store, services: services, log: log, answered: make(chan struct{})}
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

// Prior returns how many services the cache holds: before Keep, those of the last run of the agent.
// It costs O(those services).
func (s *Source) Prior() int {
	keys, _ := s.store.Keys() // Restore logs the error
	return len(slices.DeleteFunc(keys, func(key string) bool { return key == completeKey }))
}

// Run implements sources.Source.
func (s *Source) Run(ctx context.Context, out sources.Sink) error {
	if table.IsClosed(s.answered) {
		return s.inner.Run(ctx, out) // its services are in effect
	}
	sink := &sink{Sink: out, source: s}
	timer := time.AfterFunc(answerTimeout, func() { sink.recall(errors.New("no answer yet")) })
	defer timer.Stop()
	err := s.inner.Run(ctx, sink)
	if ctx.Err() == nil {
		sink.recall(err)
	}
	sink.close()
	return err
}

// sink passes on the calls of the source, and the cached services before them.
type sink struct {
	sources.Sink
	source *Source

	mu     sync.Mutex
	listed bool // the full list was sent, by the source or from the cache, or the run is over
}

// recall sends the cached services if the source hasn't sent its full list. Why is the reason.
func (k *sink) recall(why error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.listed {
		return
	}
	k.listed = true
	rows, all := Restore(k.source.name, k.source.store, k.source.log)
	if len(rows) == 0 && !all {
		return
	}
	k.source.log.Warn("source can't be read: starting with its cached services", "source", k.source.name, "services", len(rows), "err", why)
	k.Sink.Replace(rows, nil)
	k.Sink.Stale(fmt.Errorf("not read since the agent started, using cached services: %w", why))
}

// close disables recall once the run is over.
func (k *sink) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.listed = true
}

// Replace implements sources.Sink.
func (k *sink) Replace(services []vip.Service, problems []vip.Problem) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.listed = true
	k.Sink.Replace(services, problems)
	k.source.once.Do(func() { close(k.source.answered) })
}

// Stale implements sources.Sink.
func (k *sink) Stale(err error) {
	k.Sink.Stale(err)
	k.recall(err)
}

// Restore returns the cached services of a source. Whole says that they are all that the source had.
func Restore(source string, from Store, log *slog.Logger) (rows []vip.Service, whole bool) {
	all, err := from.All()
	if err != nil {
		log.Warn("cached services can't be read", "source", source, "err", err)
	}
	_, whole = all[completeKey]
	whole = whole && err == nil
	delete(all, completeKey)
	rows = make([]vip.Service, 0, len(all))
	for key, kept := range all {
		row, problems := kept.Spec.Build(source, kept.Origin)
		if len(problems) > 0 {
			log.Warn("cached service is invalid", "source", source, "service", key, "err", problems[0].Error())
			whole = false
			continue
		}
		row.Assigned, row.Preferred = kept.Assigned, kept.Preferred
		kept.setHealth(row.Backends)
		rows = append(rows, row)
	}
	return rows, whole
}

// Keep writes the source's rows to the cache until the context ends, and returns its error. A
// change costs O(change), and is on disk at once, or within a second of the change before. Once the full list is known, what the source no longer has
// is dropped, and the cache is complete.
func (s *Source) Keep(ctx context.Context) error {
	keys, err := s.store.Keys()
	if err != nil {
		s.log.Warn("cached services can't be read", "source", s.name, "err", err)
	}
	names := make(map[string]bool, len(keys))
	for _, name := range keys {
		names[name] = true
	}
	k := keep.Keeper[vip.ServiceKey, vip.Service, Row]{
		Table: s.services, Store: s.store, Log: s.log.With("source", s.name), What: "cached services", Pause: flushEvery,
		Name: nameOf, Kept: func(row *vip.Service) bool { return row.Source == s.name }, Row: rowOf,
		Names: names, Complete: []<-chan struct{}{s.services.Ready(), s.answered}, Mark: completeKey,
	}
	k.Run(ctx)
	return ctx.Err()
}

func nameOf(key vip.ServiceKey) string { return key.Namespace + "/" + key.Name }

func rowOf(row *vip.Service) Row {
	kept := Row{Spec: spec.FromService(*row), Origin: row.Origin, Assigned: row.Assigned, Preferred: row.Preferred}
	for i := range row.Backends {
		b := &row.Backends[i]
		kept.Checked = kept.Checked || b.Health != 0
		if b.Health == vip.Unhealthy {
			kept.Unhealthy = append(kept.Unhealthy, b.ID())
		}
	}
	return kept
}

// setHealth sets what the source observed of the backends.
func (r *Row) setHealth(backends []vip.Backend) {
	if !r.Checked {
		return
	}
	unhealthy := make(map[string]bool, len(r.Unhealthy))
	for _, id := range r.Unhealthy {
		unhealthy[id] = true
	}
	for i := range backends {
		backends[i].Health = vip.Healthy
		if len(unhealthy) > 0 && unhealthy[backends[i].ID()] {
			backends[i].Health = vip.Unhealthy
		}
	}
}
