// Package keep writes the rows of a table to disk, so that the next run of the agent begins with them.
package keep

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/ironvip/ironvip/internal/backoff"
	"github.com/ironvip/ironvip/internal/table"
)

// Writer stores values by name. Its method is not called concurrently.
type Writer[R any] interface {
	// Write stores the values of put durably and deletes the names in remove, all or nothing, with one
	// durable write. A missing name in remove is not an error. It keeps neither argument.
	Write(put map[string]R, remove []string) error
}

// Store is a Writer with the values that it has stored. A *store.Bucket is one.
type Store[R any] interface {
	Writer[R]
	// All returns every value that can be read, also together with an error.
	All() (map[string]R, error)
}

// Keeper makes a Writer follow a table. It has a goroutine of its own, so that no change waits for a disk. A change
// costs O(change). It tries again what the store refuses, after 0.1 to 10 seconds.
type Keeper[K comparable, V, R any] struct {
	Table table.Reader[K, V]
	Store Writer[R]
	Log   *slog.Logger
	What  string         // what is kept, for the log, such as "cached services"
	Name  func(K) string // of a row in the store
	Kept  func(*V) bool  // whether a row is kept; nil: all rows
	Row   func(*V) R     // the stored form of a row
	// Pause is the time between two writes: the first change is written at once, and those that come meanwhile together.
	Pause time.Duration
	// Report gets the error of the first write that fails, and nil once a write succeeds again; it may be nil.
	Report func(error)
	// Tried gets the revision of the table up to which rows were written, or refused by the store; it may be nil.
	Tried *table.Reached

	// Names are those in the store before the first write; nil: unknown. With them, the store is asked to
	// remove only what it has.
	Names map[string]bool
	// Stored reports whether the store has this value under a name already; nil: unknown. It is not called concurrently.
	Stored func(name string, value R) bool
	// Complete are closed when the table has every row that it should have after a start. Then the names that it
	// lacks are removed, and Mark is stored with the zero value, unless it is empty. Without any, neither happens.
	Complete []<-chan struct{}
	Mark     string
}

// Run writes until the context ends, and then writes the rest once.
func (k *Keeper[K, V, R]) Run(ctx context.Context) {
	feed := k.Table.Watch()
	defer feed.Close()
	open := map[string]K{} // names whose stored value may differ from the row of this key
	complete := k.Complete
	retry, failing := backoff.Backoff{Lo: 100 * time.Millisecond, Hi: 10 * time.Second}, false
	var again <-chan time.Time // after a failure: the next try
	var wrote time.Time
	for {
		last, rev := ctx.Err() != nil, k.Table.Revision() // before the feed: it has all rows set by then
		batch, changed := feed.TryNext()
		for i := range batch {
			key := k.Table.KeyOf(&batch[i].Value)
			open[k.Name(key)] = key
		}
		if len(batch) > 0 && k.Pause > 0 {
			continue
		}
		for len(batch) == 0 && len(complete) > 0 && table.IsClosed(complete[0]) {
			if complete = complete[1:]; len(complete) == 0 {
				k.sweep(open)
			}
		}
		if len(batch) > 0 || again == nil || last {
			some := len(open) > 0
			err := k.write(open)
			if err != nil && !failing {
				k.Log.Error(k.What+" can't be written; trying again", "rows", len(open), "err", err)
			}
			if k.Report != nil && failing != (err != nil) {
				k.Report(err)
			}
			if some {
				wrote = time.Now()
			}
			if failing = err != nil; !failing {
				open, again = map[string]K{}, nil // the old one has room for the largest batch
				retry.Reset()
			} else if again == nil {
				again = time.After(retry.Next())
			}
		}
		if len(batch) > 0 {
			continue
		}
		if k.Tried != nil {
			k.Tried.Set(rev)
		}
		if last {
			return
		}
		var next <-chan struct{}
		if len(complete) > 0 {
			next = complete[0]
		}
		select {
		case <-ctx.Done():
		case <-again:
			again = nil
		case <-changed:
			backoff.Sleep(ctx, time.Until(wrote.Add(k.Pause)))
		case <-next:
		}
	}
}

// sweep opens the names that have no row, and the mark.
func (k *Keeper[K, V, R]) sweep(open map[string]K) {
	now := make(map[string]bool, len(k.Names))
	for key, v := range k.Table.All() {
		if k.kept(&v) {
			now[k.Name(key)] = true
		}
	}
	var none K
	for name := range k.Names {
		if _, is := open[name]; !is && !now[name] {
			open[name] = none
		}
	}
	if k.Mark != "" {
		open[k.Mark] = none
	}
}

func (k *Keeper[K, V, R]) kept(v *V) bool { return k.Kept == nil || k.Kept(v) }

// mostRows bounds how many rows one write has, so that the stored form of a whole table is never in memory at once.
const mostRows = 1024

// write stores the rows of the open names, in the order of the names, and the mark after all of them. It removes from open
// what it has written.
func (k *Keeper[K, V, R]) write(open map[string]K) error {
	names := slices.Sorted(maps.Keys(open))
	if i, marked := slices.BinarySearch(names, k.Mark); marked {
		names = append(slices.Delete(names, i, i+1), k.Mark)
	}
	for some := range slices.Chunk(names, mostRows) {
		if err := k.writeSome(some, open); err != nil {
			return err
		}
		for _, name := range some {
			delete(open, name)
		}
	}
	return nil
}

func (k *Keeper[K, V, R]) writeSome(names []string, open map[string]K) error {
	put := make(map[string]R, len(names))
	var remove []string
	for _, name := range names {
		switch row := k.Table.Row(open[name]); {
		case row != nil && k.kept(&row.Value):
			if value := k.Row(&row.Value); k.Stored == nil || !k.Stored(name, value) {
				put[name] = value
			}
		case name == k.Mark:
			var zero R
			put[name] = zero
		case k.Names == nil || k.Names[name]:
			remove = append(remove, name)
		}
	}
	if len(put)+len(remove) == 0 {
		return nil
	}
	if err := k.Store.Write(put, remove); err != nil {
		return err
	}
	if k.Names != nil {
		for name := range put {
			k.Names[name] = true
		}
		for _, name := range remove {
			delete(k.Names, name)
		}
	}
	return nil
}
