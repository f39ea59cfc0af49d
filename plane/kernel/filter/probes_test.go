package filter

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"go4.org/netipx"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/netlab"
)

// The kernel takes the table of probes, and gives back what was put into it. The table of frontends
// is beside it.
func TestTableOfProbes(t *testing.T) {
	netlab.New(t).Director.Do(func() {
		for _, f := range TryNFTables(t.Context()) {
			if !f.OK {
				need.Lack(t, need.ReasonModule, f.Name)
			}
		}
		var written atomic.Uint64
		table := NewProbes("ironvip_probes", &written)
		want := map[Element]struct{}{}
		add := func(virtual, backend string, mark uint32) Change {
			c := Change{}
			for _, e := range ProbeElements(netip.MustParseAddr(virtual), netip.MustParseAddr(backend), mark) {
				c[e], want[e] = true, struct{}{}
			}
			return c
		}
		wants := func(when string) {
			t.Helper()
			r, err := table.Read(t.Context())
			if err != nil || !r.Intact || !maps.Equal(r.Others, want) || len(r.Sets) > 0 {
				t.Errorf("%s: %v, intact %v, %v and %v, want %v", when, err, r.Intact, r.Others, r.Sets, want)
			}
		}
		if err := table.Apply(t.Context(), add("10.96.0.1", "10.77.1.2", ProbeMarkAt(0))); err == nil {
			t.Error("a missing table was changed")
		}
		must.Succeed(t, table.Rebuild(t.Context(), &netipx.IPSet{}, add("10.96.0.1", "10.77.1.2", ProbeMarkAt(0))))
		wants("after the first")
		before := written.Load()
		change := add("fd96::1", "fd77:1::2", ProbeMarkAt(ProbeMarkCount-1))
		must.Succeed(t, table.Apply(t.Context(), change))
		wants("after the second")
		expect.Equal(t, written.Load()-before, 2, "messages of a path")
		for e := range maps.Clone(want) {
			if _, second := change[e]; second {
				change[e] = false
				delete(want, e)
			}
		}
		must.Succeed(t, table.Apply(t.Context(), change))
		wants("after its removal")
		expect.Succeed(t, table.Remove(t.Context()))
		if there, err := table.Exists(t.Context()); there || err != nil {
			t.Errorf("it is still there: %v, %v", there, err)
		}
	})
	names := func(l *Layout) string { return strings.Join(slices.Sorted(maps.Keys(l.sets)), " ") }
	if got, want := names(newProbeLayout("x")), "answers4 answers6 restored4 restored6"; got != want {
		t.Errorf("the table has sets %q, want %q", got, want)
	}
}
