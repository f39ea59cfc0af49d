package reconcile

import "context"

// Diff reads the Target now and returns its differences from the applied state. It repairs only what the Target has
// already seen. It costs a read of the whole Target.
func (r *Reconciler[K, V]) Diff(ctx context.Context) ([]Difference[K, V], error) {
	return r.ask(ctx, func(ctx context.Context) ([]Difference[K, V], error) {
		r.checkFirst(ctx)
		return r.compare(ctx)
	})
}

// Repair runs a resync now and returns the repaired differences.
func (r *Reconciler[K, V]) Repair(ctx context.Context) ([]Difference[K, V], error) {
	return r.ask(ctx, func(ctx context.Context) ([]Difference[K, V], error) { return r.resync(ctx, true, "") })
}

// ask returns the result of f, which runs in the goroutine of the loop.
func (r *Reconciler[K, V]) ask(ctx context.Context, f func(context.Context) ([]Difference[K, V], error)) ([]Difference[K, V], error) {
	var diff []Difference[K, V]
	var err error
	done := make(chan struct{})
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case r.asks <- func(ctx context.Context) { diff, err = f(ctx); close(done) }:
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-done:
		return diff, err
	}
}
