package proxy

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/vip"
)

// preopened has the frontends of a batch that listen before their update is applied, by index. Nil
// means that the update opens its frontend itself.
type preopened []*frontend

// preopenAll opens the new frontends of a batch on all processors, because opening is mostly kernel
// work. It does nothing if the batch has removals: a new frontend may need a port
// that a removal frees. A frontend that can't be opened is tried again in order; that attempt reports the error.
func (t *Target) preopenAll(batch []reconcile.Update[vip.FrontendKey, vip.Frontend]) preopened {
	out := make(preopened, len(batch))
	removes := func(u reconcile.Update[vip.FrontendKey, vip.Frontend]) bool { return u.New == nil }
	if len(batch) < 2 || slices.ContainsFunc(batch, removes) {
		return out
	}
	t.entrance.begin(t.newKeys(batch))
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
	out.drop(t.entrance.flush())
	return out
}

// newKeys returns the keys of a batch without a frontend.
func (t *Target) newKeys(batch []reconcile.Update[vip.FrontendKey, vip.Frontend]) []vip.FrontendKey {
	keys := make([]vip.FrontendKey, 0, len(batch))
	for _, u := range batch {
		if u.New.Kind == vip.OnVIP && t.frontend(u.Key) == nil {
			keys = append(keys, u.Key)
		}
	}
	return keys
}

// drop closes the frontends that failed.
func (a preopened) drop(failed []vip.FrontendKey) {
	if len(failed) == 0 {
		return
	}
	keys := make(map[vip.FrontendKey]struct{}, len(failed))
	for _, key := range failed {
		keys[key] = struct{}{}
	}
	for i, f := range a {
		if f == nil {
			continue
		}
		if _, failed := keys[f.key]; failed {
			f.close()
			a[i] = nil
		}
	}
}

// preopen opens a new frontend. It returns nil if the frontend exists or can't be opened.
func (t *Target) preopen(spec *vip.Frontend) *frontend {
	if t.frontend(spec.Key) != nil || Unsupported(spec) != nil || t.isShut() {
		return nil
	}
	f := newFrontend(t, spec)
	if f.listen() != nil {
		f.close()
		return nil
	}
	return f
}

// close closes the frontends whose updates were not applied because Apply was interrupted. The next
// process may need their sockets.
func (a preopened) close() {
	for _, f := range a {
		if f != nil {
			f.listener.stop()
			f.close()
		}
	}
}
