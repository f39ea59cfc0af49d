package proxy

import (
	"context"
	"maps"
	"slices"
)

// Drain leaves new clients to another process that has the listening sockets, and waits until the
// open connections and UDP sessions have ended or ctx ends. Apply fails from then on. Close must
// follow: it ends what is left.
func (t *Target) Drain(ctx context.Context) {
	t.mu.Lock()
	t.closed = true
	frontends := slices.Collect(maps.Values(t.frontends))
	t.mu.Unlock()
	for _, f := range frontends {
		f.listener.stop()
	}
	t.drains.Store(true)
	drained := make(chan struct{})
	t.background.Go(func() { // until Close at the latest
		defer close(drained)
		for _, f := range frontends {
			f.tasks.Wait()
		}
	})
	select {
	case <-drained:
	case <-ctx.Done():
	}
}
