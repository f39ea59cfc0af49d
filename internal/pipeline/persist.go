package pipeline

import (
	"context"
	"log/slog"

	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/vip"
)

// DrainStore keeps the drains under way across a restart. The key is the text of a frontend key,
// and the value is the frontend with its leaving endpoints only. A store.Bucket[vip.Frontend]
// implements it. One goroutine calls its methods.
type DrainStore interface {
	// Write stores the values of put durably and deletes the keys in remove, all or nothing, with
	// one durable write. A missing key in remove is not an error. It keeps neither argument.
	Write(put map[string]vip.Frontend, remove []string) error
	// All returns every value that can be read, also together with an error.
	All() (map[string]vip.Frontend, error)
}

// persister updates a DrainStore to the content of a table. It has its own goroutine, so that no
// change of a frontend waits for a disk. It retries what the store rejects: at worst a restart cuts
// a drain short. Callers that need certainty wait for tried.
type persister struct {
	store DrainStore
	want  *table.Table[vip.FrontendKey, vip.Frontend]
	feed  *table.Feed[vip.FrontendKey, vip.Frontend]
	open  map[vip.FrontendKey]struct{} // keys for which the store differs from want
	tried *table.Reached               // the revision of want up to which the store was written or tried
	log   *slog.Logger
}

func newPersister(store DrainStore, want *table.Table[vip.FrontendKey, vip.Frontend], tried *table.Reached, log *slog.Logger) *persister {
	return &persister{store: store, want: want, feed: want.Watch(), open: make(map[vip.FrontendKey]struct{}), tried: tried, log: log}
}

// run writes until the context ends, and then writes the rest once.
func (p *persister) run(ctx context.Context) {
	defer p.feed.Close()
	retry := newBackoff()
	for {
		last, rev := ctx.Err() != nil, p.want.Revision() // before the feed: sees all rows set by then
		batch, changed := p.feed.TryNext()
		for _, c := range batch {
			p.open[c.Value.Key] = struct{}{}
		}
		if retry.due() || len(batch) > 0 || last {
			p.write(retry.failing())
			retry.set(len(p.open) > 0)
		}
		if len(batch) > 0 {
			continue
		}
		p.tried.Set(rev)
		if last {
			return
		}
		select {
		case <-ctx.Done():
		case <-changed:
		case <-retry.C():
		}
	}
}

// write stores the open keys in batches. It stops at the first error.
func (p *persister) write(quiet bool) {
	for len(p.open) > 0 {
		put := make(map[string]vip.Frontend)
		var remove []string
		var batch []vip.FrontendKey
		for key := range p.open {
			if f, _, ok := p.want.Get(key); ok {
				put[key.String()] = f
			} else {
				remove = append(remove, key.String())
			}
			if batch = append(batch, key); len(batch) == commitBatch {
				break
			}
		}
		if err := p.store.Write(put, remove); err != nil {
			if !quiet {
				p.log.Error("keep the deadlines of drains for a restart, to be tried again", "frontends", len(p.open), "err", err)
			}
			return
		}
		for _, key := range batch {
			delete(p.open, key)
		}
	}
}
