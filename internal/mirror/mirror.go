// Package mirror keeps tables of one process equal to those of another one, over a unix socket.
//
// Each side of a connection publishes tables, and mirrors those of the other side by their names. A connection
// begins with all rows, says that they are complete, and goes on with changes. So either side may end it at any
// time and lose nothing, and what a side has mirrored stays as it is without a connection.
//
// A client can also ask: Ask calls a Method of the server. A value that a reader needs only from time to time is asked for,
// instead of being a table that changes with each packet.
//
// A Client is the agent. The connection says that it is alive: the Server ends the connection of a client that
// does not run and so sends no keepalives. A client that runs, but makes no progress with its main work, ends
// it itself. The server accepts one client at a time, of its own user or root.
//
// Files:
//
//	mirror.go  tables that are published and mirrored
//	conn.go    a connection
//	call.go    questions and answers
//	server.go  the side that listens
//	client.go  the side that connects
package mirror

import (
	"context"
	"encoding/gob"
	"iter"

	"github.com/ironvip/ironvip/internal/table"
)

// State is the state of a connection.
type State struct {
	Connected bool
	Synced    bool   // all tables of the other side are complete
	Reason    string // why there is no connection
}

// Published is a table for the other side, see Publish.
type Published interface{ watch() source }

// Mirrored is a table of the other side, see Into.
type Mirrored interface{ begin() (name string, s sink) }

// Store is where the rows of the other side go: a table.Table, or what a process makes of them.
type Store[K comparable, V any] interface {
	KeyOf(*V) K
	All() iter.Seq2[K, V]
	SetAll([]V)
	Delete(K) bool
}

// Publish returns a table for the other side, which knows it by its name. The first rows are sent in the order of
// the tables. All rows are sent when every table is ready.
func Publish[K comparable, V any](name string, t table.Reader[K, V]) Published {
	return published[K, V]{name, t}
}

// Into returns a table of the other side. The mirror alone writes to the store.
func Into[K comparable, V any](name string, s Store[K, V]) Mirrored { return mirrored[K, V]{name, s} }

// IntoOne is Into for a table of one row, which is never removed. Set gets each new version of it.
func IntoOne[V any](name string, set func(*V)) Mirrored {
	return IntoFunc[struct{}](name, func(rows []V) { set(&rows[len(rows)-1]) })
}

// IntoFunc is Into for rows that are not kept: set gets those that are new or have changed, and at the beginning of each
// connection all of them.
func IntoFunc[K comparable, V any](name string, set func([]V)) Mirrored {
	return Into(name, passed[K, V](set))
}

type passed[K comparable, V any] func([]V)

func (passed[K, V]) KeyOf(*V) (none K) { return none }

func (passed[K, V]) All() iter.Seq2[K, V] { return func(func(K, V) bool) {} }

func (p passed[K, V]) SetAll(rows []V) { p(rows) }

func (passed[K, V]) Delete(K) bool { return false }

type published[K comparable, V any] struct {
	name  string
	table table.Reader[K, V]
}

func (p published[K, V]) watch() source { return &watched[K, V]{p, p.table.Watch()} }

// source is a table during a connection.
type source interface {
	// pass sends everything that has changed. The channel is closed at the next change.
	pass(c *conn) (more <-chan struct{}, err error)
	ready() <-chan struct{}
	close()
}

type watched[K comparable, V any] struct {
	published[K, V]
	feed *table.Feed[K, V]
}

func (w *watched[K, V]) ready() <-chan struct{} { return w.table.Ready() }

func (w *watched[K, V]) close() { w.feed.Close() }

func (w *watched[K, V]) pass(c *conn) (<-chan struct{}, error) {
	for {
		batch, more := w.feed.TryNext()
		if len(batch) == 0 {
			return more, nil
		}
		var set []V
		var removed []K
		for i := range batch {
			if b := &batch[i]; b.Deleted {
				removed = append(removed, w.table.KeyOf(&b.Value))
			} else {
				set = append(set, b.Value)
			}
		}
		if err := c.send(header{Table: w.name, Set: len(set), Removed: len(removed)}, set, removed); err != nil {
			return nil, err
		}
	}
}

// passAll sends all rows, then changes, until the context or the connection ends.
func passAll(ctx context.Context, c *conn, tables []Published) error {
	sources := make([]source, len(tables))
	for i, t := range tables {
		sources[i] = t.watch()
		defer sources[i].close()
	}
	for synced := false; ; {
		complete := true // what is ready before it is passed is passed as a whole
		var more []<-chan struct{}
		for _, s := range sources {
			ready := s.ready()
			if !table.IsClosed(ready) {
				complete = false
				more = append(more, ready)
			}
			changed, err := s.pass(c)
			if err != nil {
				return err
			}
			more = append(more, changed)
		}
		if complete && !synced {
			if err := c.send(header{Synced: true}, nil, nil); err != nil {
				return err
			}
			synced = true
		}
		if err := oneOf(ctx, more); err != nil {
			return err
		}
	}
}

type mirrored[K comparable, V any] struct {
	name  string
	store Store[K, V]
}

func (m mirrored[K, V]) begin() (string, sink) {
	return m.name, &rows[K, V]{store: m.store, seen: map[K]struct{}{}}
}

// sink is a mirrored table during a connection.
type sink interface {
	// decode reads the rows of a message. The returned function stores them.
	decode(d *gob.Decoder, h header) (apply func(), err error)
	// synced removes the rows that the connection has not named.
	synced()
}

type rows[K comparable, V any] struct {
	store Store[K, V]
	seen  map[K]struct{} // since the connection began; nil once it is synced
}

func (r *rows[K, V]) decode(d *gob.Decoder, h header) (func(), error) {
	var set []V
	var removed []K
	if h.Set > 0 {
		if err := d.Decode(&set); err != nil {
			return nil, err
		}
	}
	if h.Removed > 0 {
		if err := d.Decode(&removed); err != nil {
			return nil, err
		}
	}
	return func() {
		if len(set) > 0 {
			for i := range set {
				if r.seen != nil {
					r.seen[r.store.KeyOf(&set[i])] = struct{}{}
				}
			}
			r.store.SetAll(set)
		}
		for _, k := range removed {
			r.store.Delete(k)
		}
	}, nil
}

func (r *rows[K, V]) synced() {
	if r.seen == nil {
		return
	}
	var stale []K
	for k := range r.store.All() {
		if _, named := r.seen[k]; !named {
			stale = append(stale, k)
		}
	}
	for _, k := range stale {
		r.store.Delete(k)
	}
	r.seen = nil
}
