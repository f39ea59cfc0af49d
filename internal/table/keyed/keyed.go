// Package keyed has a set of values that contain their own keys. It is a map that asks each value for its
// key. It is not safe for concurrent use.
package keyed

import (
	"iter"
	"maps"
)

// Set finds values by their keys. Create one with New.
type Set[K comparable, E any] struct {
	key    func(*E) K
	values map[K]*E
}

// New returns an empty set. key returns a value's key, which must not change while the value is in
// the set.
func New[K comparable, E any](key func(*E) K) *Set[K, E] {
	return &Set[K, E]{key: key, values: make(map[K]*E)}
}

// Len returns the number of values.
func (s *Set[K, E]) Len() int { return len(s.values) }

// Get returns the value with the key, or nil.
func (s *Set[K, E]) Get(k K) *E { return s.values[k] }

// All yields every value, in no particular order.
func (s *Set[K, E]) All() iter.Seq[*E] { return maps.Values(s.values) }

// Put adds a value, or replaces the one with the same key.
func (s *Set[K, E]) Put(e *E) { s.values[s.key(e)] = e }

// Delete removes the value with the key, if any.
func (s *Set[K, E]) Delete(k K) { delete(s.values, k) }
