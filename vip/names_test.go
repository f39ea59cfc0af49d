package vip

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
)

func TestNames(t *testing.T) {
	set := NamesOf("zone-b", "zone-a", "zone-b")
	if set != NamesOf("zone-a", "zone-b") || set == NamesOf("zone-a") || NamesOf() != "" {
		t.Errorf("%q", set)
	}
	expect.SameList(t, slices.Collect(set.All()), []string{"zone-a", "zone-b"})
	if got := set.List(); !slices.Equal(got, []string{"zone-a", "zone-b"}) || NamesOf().List() != nil {
		t.Errorf("%q", got)
	}
	for name, want := range map[string]bool{"zone-a": true, "zone-b": true, "zone": false, "": false, "b zone": false} {
		if set.Has(name) != want {
			t.Errorf("has %q: %v", name, !want)
		}
	}
	expect.AtMost(t, testing.AllocsPerRun(100, func() { set.Has("zone-b") }), 0, "allocations")
}

func TestNamesHasEach(t *testing.T) {
	var all []string
	for i := range 300 {
		all = append(all, strings.Repeat("x", 1+i%7)+strconv.Itoa(i))
	}
	for n := range all {
		set := NamesOf(all[:n]...)
		for i, name := range all {
			if set.Has(name) != (i < n) || set.Has(name+"x") || set.Has(name[1:]) {
				t.Fatalf("%d names, has %q: %v", n, name, i >= n)
			}
		}
	}
}
