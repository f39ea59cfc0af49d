// Package parallel divides independent work among the processors.
//
// Its input is a number of calls and the function to call. It starts goroutines, and waits for their
// end before it returns.
package parallel

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
)

// All calls f for 0 to n-1, on all processors, until a call returns false. It reports whether all
// calls returned true. A panic of f is one of All, with the stack of the former.
func All(n int, f func(i int) bool) bool {
	var next atomic.Int64
	var failed atomic.Bool
	work := func() {
		for i := int(next.Add(1)) - 1; i < n && !failed.Load(); i = int(next.Add(1)) - 1 {
			if !f(i) {
				failed.Store(true)
			}
		}
	}
	var panicked atomic.Value
	caught := func() {
		defer func() {
			if r := recover(); r != nil {
				failed.Store(true)
				panicked.Store(fmt.Sprintf("%v\n%s", r, debug.Stack()))
			}
		}()
		work()
	}
	var others sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), n) - 1 {
		others.Go(caught)
	}
	caught()
	others.Wait()
	if r := panicked.Load(); r != nil {
		panic(r)
	}
	return !failed.Load()
}
