package control

import (
	"context"
	"log/slog"

	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/table"
)

// DrainStore keeps the drains under way across a restart: under a frontend
// key's text, the frontend with its leaving endpoints only. A
// state.Bucket[vip.Frontend] is one. One goroutine calls its methods.
type DrainStore interface {
	// Put makes the value at key durable.
	Put(key string, f vip.Frontend) error
	// Delete removes the value at key, durably; a key that isn't there is no
	// error.
	Delete(key string) error
	// All returns every value that can be read, also beside an error.
	All() (map[string]vip.Frontend, error)
}

// persister brings a DrainStore to what a table holds. It is a goroutine of its
// own: no change of a frontend waits for a disk. What the store refuses is
// tried again; all that is at stake is a drain cut short by a restart.
type persister struct {
	store DrainStore
	want  *table.Table[vip.FrontendKey, vip.Frontend]
	feed  *table.Feed[vip.FrontendKey, vip.Frontend]
	open  map[vip.FrontendKey]struct{} // keys that the store doesn't have as wanted
	log   *slog.Logger
}

func newPersister(store DrainStore, want *table.Table[vip.FrontendKey, vip.Frontend], log *slog.Logger) *persister {
	return &persister{store: store, want: want, feed: want.Watch(), open: make(map[vip.FrontendKey]struct{}), log: log}
}

// run writes until the context ends, and then what is left, once.
func (p *persister) run(ctx context.Context) {
	defer p.feed.Close()
	retry := newBackoff()
	defer retry.stop()
	for {
		last := ctx.Err() != nil // before looking: whatever was set by then is seen
		batch, changed := p.feed.TryNext()
		for _, c := range batch {
			p.open[c.Key] = struct{}{}
		}
		if retry.due() || len(batch) > 0 || last {
			p.write(retry.failing())
			retry.set(len(p.open) > 0)
		}
		if len(batch) > 0 {
			continue
		}
		if last {
			return
		}
		select {
		case <-ctx.Done():
		case <-changed:
		case <-retry.C():
			retry.ring()
		}
	}
}

// write brings the open keys into the store. It stops at the first error.
func (p *persister) write(quiet bool) {
	for key := range p.open {
		var err error
		if f, _, ok := p.want.Get(key); ok {
			err = p.store.Put(key.String(), f)
		} else {
			err = p.store.Delete(key.String())
		}
		if err != nil {
			if !quiet {
				p.log.Error("keep a drain's deadline for a restart, to be tried again", "frontend", key, "err", err)
			}
			return
		}
		delete(p.open, key)
	}
}
