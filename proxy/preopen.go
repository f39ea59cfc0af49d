package proxy

import (
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/ironvip/ironvip/internal/reconcile"
	"github.com/ironvip/ironvip/vip"
)

// preopened has the frontends of a batch that listen before their update is applied, by index.
type preopened []*frontend

// preopenAll opens the new frontends of a batch on all processors, because opening is mostly kernel
// work. It does nothing if the batch has removals: a new frontend may need a port or an address
// that a removal frees. A frontend that can't be opened is tried again in order; that attempt adds
// its address, or reports the error.
func (t *Target) preopenAll(batch []reconcile.Update[vip.FrontendKey, vip.Frontend]) preopened {
	if len(batch) < 2 {
		return nil
	}
	for i := range batch {
		if batch[i].New == nil {
			return nil
		}
	}
	out := make(preopened, len(batch))
	var next atomic.Int64
	var opening sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(batch)) {
		opening.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(batch); i = int(next.Add(1)) - 1 {
				out[i] = t.preopen(batch[i].New)
			}
		})
	}
	opening.Wait()
	return out
}

// preopen opens a new frontend. It returns nil if the frontend exists or can't be opened.
func (t *Target) preopen(spec *vip.Frontend) *frontend {
	if t.frontend(spec.Key) != nil || check(spec) != nil || t.isShut() {
		return nil
	}
	f := newFrontend(t, spec)
	if f.listen() != nil {
		f.close()
		return nil
	}
	return f
}

// remove returns the frontend that was opened for update i, or nil, and removes it from a.
func (a preopened) remove(i int) *frontend {
	if a == nil {
		return nil
	}
	f := a[i]
	a[i] = nil
	return f
}

// close closes the frontends that were not removed.
func (a preopened) close() {
	for _, f := range a {
		if f != nil {
			f.close()
		}
	}
}
