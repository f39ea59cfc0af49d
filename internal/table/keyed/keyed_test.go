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

// What a set takes for itself, and one more thing at any size.
func TestRoom(t *testing.T) {
	const n = 100_000
	s := newThings()
	for i := range n {
		s.Put(&thing{key: strconv.Itoa(i)})
	}
	seen, slots := map[*page[thing]]bool{}, 0
	for _, p := range s.pages {
		if !seen[p] {
			seen[p] = true
			slots += len(p.slots)
			if len(p.slots) > pageSize {
				t.Fatalf("a page of %d slots", len(p.slots))
			}
		}
	}
	if slots > 2*n || len(s.pages) > n/20 {
		t.Errorf("%d slots and a directory of %d for %d things", slots, len(s.pages), n)
	}
	some := make([]string, 100)
	for i := range some {
		some[i] = strconv.Itoa(i * 997)
	}
	if cost := testing.AllocsPerRun(10, func() {
		for _, k := range some {
			e := s.Get(k)
			s.Put(e)
			s.Delete(k)
			s.Put(e)
		}
	}); cost != 0 {
		t.Errorf("%v allocations to find, replace, remove and add", cost)
	}
}
