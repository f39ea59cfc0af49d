package share

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

// After any joins and leaves, the probers of each group are the hosts with the highest weights, and
// only the groups with other probers are reported.
func TestAssignmentIsARendezvous(t *testing.T) {
	for _, count := range []int{1, 3, 5} {
		r := rand.New(rand.NewPCG(uint64(count), 0))
		a, present := newAssignment(count), map[string]bool{}
		for range 120 {
			name := fmt.Sprint("host", r.IntN(40))
			var before [groups][]string
			for g := range groups {
				before[g] = a.probers(g)
			}
			var changed []int
			if present[name] && r.IntN(2) == 0 {
				changed = a.remove(name)
				delete(present, name)
			} else {
				changed = a.add(name)
				present[name] = true
			}
			for g := range groups {
				want := slices.SortedFunc(maps.Keys(present), func(a, b string) int { return compareSeats(seat{a, weight(g, a)}, seat{b, weight(g, b)}) })
				want = want[:min(len(want), count)]
				must.SameList(t, a.probers(g), want, "group %d", g)
				if differs := !slices.Equal(before[g], want); differs != slices.Contains(changed, g) {
					t.Fatalf("group %d has changed: %v, reported: %v", g, differs, !differs)
				}
				for i, name := range want {
					must.Equal(t, a.rank(g, name), i, "group %d: rank of %s", g, name)
				}
			}
		}
	}
}

// A host that leaves moves only the groups that it has probed. The groups are divided evenly.
func TestAssignmentMovesLittle(t *testing.T) {
	const hosts = 100
	a := newAssignment(3)
	for i := range hosts {
		a.add(fmt.Sprint("host", i))
	}
	seats := map[string]int{}
	for g := range groups {
		for _, node := range a.probers(g) {
			seats[node]++
		}
	}
	most := slices.Max(slices.Collect(maps.Values(seats)))
	if len(seats) < 2*groups || most > 5 {
		t.Errorf("%d hosts probe, one of them %d groups", len(seats), most)
	}
	moved := 0
	for i := range hosts {
		name := fmt.Sprint("host", i)
		lost := a.remove(name)
		expect.Equal(t, len(lost), seats[name], "%s leaves and changes %d groups; it has probed %d", name, len(lost), seats[name])
		moved += len(lost)
		expect.SameList(t, a.add(name), lost, "%s comes back to other groups", name)
	}
	expect.Equal(t, moved, 3*groups, "%d seats moved, want each once: %d", moved, 3*groups)
}

// Targets are divided evenly among the groups, also those of neighboring addresses.
func TestGroupsAreEven(t *testing.T) {
	var n [groups]int
	const targets = 64 * groups
	for i := range targets {
		n[groupOf(fmt.Sprintf("10.0.%d.%d:80/tcp-0123456789abcdef", i/250, i%250))]++
	}
	for g, n := range n {
		expect.Between(t, n, 32, 128, "targets of group %d, of %d", g, targets)
	}
}

// The assignment is part of what hosts of a fleet share: another release must not compute another
// one.
func TestAssignmentIsStable(t *testing.T) {
	a := newAssignment(3)
	for i := range 20 {
		a.add(fmt.Sprint("host", i))
	}
	const key = "10.0.0.1:80/tcp-e9cbf5f8b9e7c4a1"
	got := fmt.Sprint(groupOf(key), a.probers(groupOf(key)))
	expect.Equal(t, got, "8 [host1 host17 host15]")
}
