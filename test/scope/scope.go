// Package scope ends what a part of a test or benchmark has started before the rest goes on.
package scope

import (
	"slices"
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
