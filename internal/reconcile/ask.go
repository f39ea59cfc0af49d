package reconcile

import "context"

// ask is a request to the loop.
type ask[K comparable, V any] struct {
	repair bool
	answer chan<- answer[K, V]
}

type answer[K comparable, V any] struct {
	diff []Difference[K, V]
	err  error
}

// Diff reads the Target now and returns its differences from the applied state. It changes nothing. It costs a read of
// the whole Target.
func (r *Reconciler[K, V]) Diff(ctx context.Context) ([]Difference[K, V], error) {
	return r.ask(ctx, false)
}

// Repair runs a resync now and returns the repaired differences.
func (r *Reconciler[K, V]) Repair(ctx context.Context) ([]Difference[K, V], error) {
	return r.ask(ctx, true)
}

func (r *Reconciler[K, V]) ask(ctx context.Context, repair bool) ([]Difference[K, V], error) {
	reply := make(chan answer[K, V], 1)
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case r.asks <- ask[K, V]{repair: repair, answer: reply}:
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case a := <-reply:
		return a.diff, a.err
	}
}

func (r *Reconciler[K, V]) serve(ctx context.Context, a ask[K, V]) {
	var out answer[K, V]
	if a.repair {
		out.diff, out.err = r.resync(ctx, true)
	} else {
		out.diff, out.err = r.compare(ctx)
	}
	a.answer <- out
}
