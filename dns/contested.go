package dns

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/ironvip/ironvip/internal/backoff"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/vip"
)

// ContestedStore keeps which service has each contested name across a restart, by name. A
// store.Bucket[vip.ServiceKey] implements it. Its methods are not called concurrently.
type ContestedStore interface {
	// Write stores the values of put durably and deletes the keys in remove, all or nothing. A missing
	// key in remove is not an error. It keeps neither argument.
	Write(put map[string]vip.ServiceKey, remove []string) error
	// All returns every value that can be read, also together with an error. The error is an unreadable if
	// it has the names of all others.
	All() (map[string]vip.ServiceKey, error)
}

// unreadable is the error of stored values that can't be read. A *store.Error is one.
type unreadable interface {
	error
	Unreadable() (names []string)
}

// contested is a name that several services want, and the one that has it.
type contested struct {
	name   string
	winner vip.ServiceKey
}

func keyOfContested(c *contested) string { return c.name }

// Bounds of the waits before a failed write is tried again.
const (
	minRewrite = time.Second
	maxRewrite = time.Minute
)

// keeper updates a ContestedStore to the content of a table. It has its own goroutine, so that no name
// waits for a disk. It retries what the store rejects: at worst, the start after a crash answers for a
// contested name by what is known then.
type keeper struct {
	store  ContestedStore
	want   table.Reader[string, contested]
	stored map[string]vip.ServiceKey // what the store has; a zero key if it can't be read
	open   map[string]struct{}       // names that may differ in want and stored
	log    *slog.Logger
}

// newKeeper reads what the last run has stored. A name with a winner that can't be read is held for
// nobody until every source has been read, when it is stored anew or removed.
func newKeeper(from ContestedStore, want table.Reader[string, contested], log *slog.Logger) *keeper {
	stored, err := from.All()
	if stored == nil {
		stored = make(map[string]vip.ServiceKey)
	}
	var names []string
	if bad, ok := errors.AsType[unreadable](err); ok {
		names = bad.Unreadable()
	}
	switch {
	case len(names) > 0:
		log.Error("contested names unreadable; they get SERVFAIL until every source has been read, and are then stored again", "names", len(names), "err", err)
		for _, name := range names {
			stored[name] = vip.ServiceKey{}
		}
	case err != nil:
		log.Error("contested names unreadable; until every source has been read, clients can get the address of a service that has lost its name", "err", err)
	}
	return &keeper{store: from, want: want, stored: stored, open: make(map[string]struct{}), log: log}
}

// run writes until the context ends, and then writes the rest once. It begins when synced is closed: the
// table is incomplete before.
func (k *keeper) run(ctx context.Context, synced <-chan struct{}) {
	select {
	case <-ctx.Done():
		return
	case <-synced:
	}
	for name := range k.stored {
		k.open[name] = struct{}{}
	}
	feed := k.want.Watch()
	defer feed.Close()
	retry, failing := backoff.Backoff{Lo: minRewrite, Hi: maxRewrite}, false
	for {
		last := ctx.Err() != nil
		batch, changed := feed.TryNext()
		for i := range batch {
			k.open[batch[i].Value.name] = struct{}{}
		}
		err := k.write()
		if err != nil && !failing {
			k.log.Error("contested names not stored; trying again", "names", len(k.open), "err", err)
		}
		failing = err != nil
		switch {
		case last:
			return
		case failing:
			backoff.Sleep(ctx, retry.Next())
			continue
		case len(batch) > 0:
			continue
		}
		retry.Reset()
		select {
		case <-ctx.Done():
		case <-changed:
		}
	}
}

// write stores the open names that differ.
func (k *keeper) write() error {
	put := make(map[string]vip.ServiceKey)
	var remove []string
	for name := range k.open {
		row := k.want.Row(name)
		was, is := k.stored[name]
		switch {
		case row != nil && (!is || row.Value.winner != was):
			put[name] = row.Value.winner
		case row == nil && is:
			remove = append(remove, name)
		}
	}
	if len(put)+len(remove) > 0 {
		if err := k.store.Write(put, remove); err != nil {
			return err
		}
	}
	for name, winner := range put {
		k.stored[name] = winner
	}
	for _, name := range remove {
		delete(k.stored, name)
	}
	k.open = make(map[string]struct{}) // to clear it would cost as much as the largest batch
	return nil
}
