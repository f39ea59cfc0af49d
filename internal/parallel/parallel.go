// Package parallel runs goroutines whose panics are errors of the part that they belong to.
//
// All divides independent work among the processors and waits for its end. A Group runs the
// goroutines of a source, a stage or a server until its owner waits for them.
package parallel

import (
	"context"
	"runtime"
	"sync/atomic"
)

// All calls f for 0 to n-1, on all processors, until a call returns false. It reports whether all
// calls returned true. A panic of f is one of All, a *PanicError, when the other calls have ended.
func All(n int, f func(i int) bool) bool {
	var next atomic.Int64
	var failed atomic.Bool
	work := func() error {
		for i := int(next.Add(1)) - 1; i < n && !failed.Load(); i = int(next.Add(1)) - 1 {
			if !f(i) {
				failed.Store(true)
			}
		}
		return nil
	}
	group, _ := NewGroup(context.Background())
	for range min(runtime.GOMAXPROCS(0), n) - 1 {
		group.Go(work)
	}
	caught := Recovered(work)
	if err := group.Wait(); caught == nil {
		caught = err
	}
	if caught != nil {
		panic(caught)
	}
	return !failed.Load()
}
