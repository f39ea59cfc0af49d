package proxy

import (
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/ironvip/ironvip/internal/reconcile"
	"github.com/ironvip/ironvip/vip"
)

// ahead are frontends of a batch that listen before their turn, by their places.
type ahead []*frontend

// openAhead opens what is new in a batch, with all processors: it is nearly all
// the kernel's work. Where something is removed nothing is opened before its turn, for it may
// need the port or the address that another gives up; what can't be opened is
// tried again in its turn, which has the address brought up or says what is wrong.
func (t *Target) openAhead(batch []reconcile.Update[vip.FrontendKey, vip.Frontend]) ahead {
	if len(batch) < 2 {
		return nil
	}
	for i := range batch {
		if batch[i].New == nil {
			return nil
		}
	}
	out := make(ahead, len(batch))
	var next atomic.Int64
	var opening sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(batch)) {
		opening.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(batch); i = int(next.Add(1)) - 1 {
				out[i] = t.openEarly(batch[i].New)
			}
		})
	}
	opening.Wait()
	return out
}

// openEarly opens a frontend that there isn't yet, or returns nil.
func (t *Target) openEarly(spec *vip.Frontend) *frontend {
	if t.frontend(spec.Key) != nil || check(spec) != nil || t.isClosed() {
		return nil
	}
	f := newFrontend(t, spec)
	if f.listen() != nil {
		f.close()
		return nil
	}
	return f
}

// take returns what was opened of an update, whose turn it is, or nil.
func (a ahead) take(i int) *frontend {
	if a == nil {
		return nil
	}
	f := a[i]
	a[i] = nil
	return f
}

// close closes those whose turn hasn't come.
func (a ahead) close() {
	for _, f := range a {
		if f != nil {
			f.close()
		}
	}
}
