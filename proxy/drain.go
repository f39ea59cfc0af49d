package proxy

import (
	"context"
	"maps"
	"slices"

	"github.com/ironvip/ironvip/internal/parallel"
)

// Leave leaves new clients to another process that has the listening sockets, if there is one. Apply fails from then on,
// and the connections that go on show nothing of their backends any more: another Target may report passive health.
func (t *Target) Leave() { t.leave() }

// leave returns the frontends.
func (t *Target) leave() []*frontend {
	t.mu.Lock()
	t.closed = true
	frontends := slices.Collect(maps.Values(t.frontends))
	t.mu.Unlock()
	if t.steering != nil {
		t.steering.Stop()
	}
	onEach(frontends, func(f *frontend) { f.listener.stop() })
	t.stop()
	t.reporter.Wait()
	return frontends
}

// Drain leaves new clients to another process, as Leave does, and waits until the
// open connections and UDP sessions have ended or ctx ends. Close must follow: it ends what is left.
func (t *Target) Drain(ctx context.Context) {
	frontends := t.leave()
	drained := make(chan struct{})
	t.background.Go(func() { // until Close at the latest
		defer close(drained)
		for _, f := range frontends {
			f.Tasks.Wait()
		}
	})
	select {
	case <-drained:
	case <-ctx.Done():
	}
}

// onEach calls a function for each frontend, on all processors. The kernel's work to close a listening socket is most of
// the time that a stop takes, and different sockets share nothing.
func onEach(frontends []*frontend, do func(*frontend)) {
	parallel.All(len(frontends), func(i int) bool {
		do(frontends[i])
		return true
	})
}
