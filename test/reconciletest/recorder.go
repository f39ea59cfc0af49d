// Package reconciletest holds what every Target is tested with: a recording
// fake that refuses what a kernel would refuse, and the conformance suite that
// every dataplane for frontends passes.
package reconciletest

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"sync"
	"syscall"

	"github.com/ironvip/ironvip/pipeline/compile"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/vip"
)

// Recorder is a Target in memory. It counts, fails on request and, as a kernel
// would, refuses to create what is there, to change what isn't, and to believe
// a wrong Old. The zero value is not ready: use NewRecorder.
type Recorder[K comparable, V any] struct {
	reconcile.Quiet[K, V]

	key  func(*V) K
	same func(a, b *V) bool

	mu       sync.Mutex
	have     map[K]*V // shared with the reconciler, and so never changed
	damage   map[K][]string
	orphans  map[K]bool
	failKey  map[K]error
	failAll  error
	batches  int
	writes   int
	readings int
}

// NewRecorder returns an empty Recorder of values with these keys, which it
// compares with same.
func NewRecorder[K comparable, V any](key func(*V) K, same func(a, b *V) bool) *Recorder[K, V] {
	return &Recorder[K, V]{key: key, same: same, have: map[K]*V{}, damage: map[K][]string{}, orphans: map[K]bool{}, failKey: map[K]error{}}
}

// Plane is a Recorder of frontends that doesn't count connections, so that draining backends leave at their deadline.
type Plane struct {
	*Recorder[vip.FrontendKey, vip.Frontend]
	Statistics
}

var _ reconcile.Plane = (*Plane)(nil)

// NewPlane returns a Plane without frontends.
func NewPlane() *Plane {
	return &Plane{Recorder: NewRecorder(vip.KeyOfFrontend, func(a, b *vip.Frontend) bool { return compile.SameFrontend(*a, *b) })}
}

// Connections implements reconcile.Plane.
func (*Plane) Connections(context.Context, vip.FrontendKey) (map[netip.AddrPort]int, error) {
	return nil, errors.New("not counted")
}

// ListConnections implements reconcile.Plane.
func (*Plane) ListConnections(context.Context, func(vip.FrontendKey) bool, func(reconcile.Connection) bool) error {
	return nil
}

// Ignored implements reconcile.Plane.
func (*Plane) Ignored(*vip.Service) []vip.Problem { return nil }

// Apply implements reconcile.Target.
func (r *Recorder[K, V]) Apply(ctx context.Context, batch []reconcile.Update[K, V]) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.batches++
	if r.failAll != nil {
		return r.failAll
	}
	for i := range batch {
		u := &batch[i]
		if u.Err = r.failKey[u.Key]; u.Err != nil {
			continue
		}
		if u.Err = r.refuse(u); u.Err != nil {
			continue
		}
		r.writes++
		delete(r.damage, u.Key)
		if u.New == nil {
			delete(r.have, u.Key)
			delete(r.orphans, u.Key)
		} else {
			r.have[u.Key] = u.New
		}
	}
	return nil
}

// refuse returns what a kernel would answer to an update that is out of touch.
func (r *Recorder[K, V]) refuse(u *reconcile.Update[K, V]) error {
	if u.New != nil && r.orphans[u.Key] {
		return vip.Problem{Code: vip.CodeUnsupported, Message: fmt.Sprintf("%v is nothing to have", u.Key)}
	}
	if u.Repair {
		return nil
	}
	have, there := r.have[u.Key]
	switch {
	case u.Old == nil && u.New != nil && there:
		return fmt.Errorf("create %v: %w", u.Key, syscall.EEXIST)
	case u.Old != nil && !there:
		return fmt.Errorf("change %v: %w", u.Key, syscall.ESRCH)
	case u.Old != nil && !r.same(u.Old, have):
		return fmt.Errorf("change %v: the caller believes it to be %v, it is %v", u.Key, *u.Old, *have)
	}
	return nil
}

// Actual implements reconcile.Target.
func (r *Recorder[K, V]) Actual(ctx context.Context) iter.Seq2[reconcile.Observed[V], error] {
	return func(yield func(reconcile.Observed[V], error) bool) {
		r.mu.Lock()
		r.readings++
		have, damage, orphans, fail := maps.Clone(r.have), maps.Clone(r.damage), maps.Clone(r.orphans), r.failAll
		r.mu.Unlock()
		if fail == nil {
			fail = ctx.Err()
		}
		if fail != nil {
			yield(reconcile.Observed[V]{}, fail)
			return
		}
		for k, v := range have {
			if !yield(reconcile.Observed[V]{Value: *v, Damage: damage[k], Orphan: orphans[k]}, nil) {
				return
			}
		}
	}
}

// Same implements reconcile.Target.
func (r *Recorder[K, V]) Same(a, b *V) bool { return r.same(a, b) }

// Have returns a copy of what the Target holds.
func (r *Recorder[K, V]) Have() map[K]V {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make(map[K]V, len(r.have))
	for k, v := range r.have {
		out[k] = *v
	}
	return out
}

// Len returns how many keys the Target holds.
func (r *Recorder[K, V]) Len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.have)
}

// Put alters the Target behind the reconciler's back.
func (r *Recorder[K, V]) Put(v V) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.have[r.key(&v)] = &v
}

// PutOrphan alters the Target behind the reconciler's back by something that
// belongs to no key: it can be removed, and nothing else.
func (r *Recorder[K, V]) PutOrphan(v V) {
	r.mu.Lock()
	defer r.mu.Unlock()
	k := r.key(&v)
	r.have[k], r.orphans[k] = &v, true
}

// Remove alters the Target behind the reconciler's back.
func (r *Recorder[K, V]) Remove(k K) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.have, k)
	delete(r.orphans, k)
}

// Damage marks a part of k as missing, until the next update of k.
func (r *Recorder[K, V]) Damage(k K, what string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.damage[k] = append(r.damage[k], what)
}

// FailKey makes every update of k fail; nil ends it.
func (r *Recorder[K, V]) FailKey(k K, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		delete(r.failKey, k)
		return
	}
	r.failKey[k] = err
}

// FailAll makes Apply and Actual fail as a whole; nil ends it.
func (r *Recorder[K, V]) FailAll(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failAll = err
}

// Counts returns how many batches, successful updates and readings there were.
func (r *Recorder[K, V]) Counts() (batches, writes, readings int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.batches, r.writes, r.readings
}
