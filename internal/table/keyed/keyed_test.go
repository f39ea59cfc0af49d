package keyed

import (
	"maps"
	"strconv"
	"testing"

	"pgregory.net/rapid"
)

type thing struct {
	key   string
	value int
}

func newThings() *Set[string, thing] { return New(func(t *thing) string { return t.key }) }

// Whatever is done to a set, it has what a map would have.
func TestSetIsAMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, oracle := newThings(), map[string]*thing{}
		keys := rapid.SampledFrom([]int{3, 20, 3_000}).Draw(t, "keys")
		for range rapid.IntRange(1, 50).Draw(t, "rounds") {
			first, n := rapid.IntRange(0, keys-1).Draw(t, "first"), rapid.IntRange(1, keys).Draw(t, "number")
			remove := rapid.Bool().Draw(t, "remove")
			for i := first; i < min(first+n, keys); i++ {
				if k := strconv.Itoa(i); remove {
					s.Delete(k)
					delete(oracle, k)
				} else {
					oracle[k] = &thing{k, n}
					s.Put(oracle[k])
				}
			}
			if s.Len() != len(oracle) {
				t.Fatalf("%d things of %d", s.Len(), len(oracle))
			}
			for i := range keys {
				if k := strconv.Itoa(i); s.Get(k) != oracle[k] {
					t.Fatalf("%s is %v, should be %v", k, s.Get(k), oracle[k])
				}
			}
			seen := map[string]*thing{}
			for one := range s.All() {
				if seen[one.key] != nil {
					t.Fatalf("%s comes twice", one.key)
				}
				seen[one.key] = one
			}
			if !maps.Equal(seen, oracle) {
				t.Fatalf("all are %d, should be %d, or others", len(seen), len(oracle))
			}
		}
	})
}
