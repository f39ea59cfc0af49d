// Package scope ends what a part of a test or benchmark has started before the rest goes on.
package scope

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
)

// Run calls f with a testing.TB that has cleanups of its own. They run when f ends, the last one first.
func Run(t testing.TB, f func(testing.TB)) {
	s := &scope{TB: t}
	defer s.end()
	f(s)
}

type scope struct {
	testing.TB
	cleanups []func()
}

// Cleanup implements testing.TB.
func (s *scope) Cleanup(f func()) { s.cleanups = append(s.cleanups, f) }

func (s *scope) end() {
	for _, f := range slices.Backward(s.cleanups) {
		f()
	}
}

// Go calls run in a goroutine, with a context that ends with the test or when the returned func is called, which waits
// for run. Run must return nil or the error of the context.
func Go(t testing.TB, run func(context.Context) error) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	end = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(end)
	return end
}
