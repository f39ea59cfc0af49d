package reconcile_test

import (
	"cmp"
	"context"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/reconciletest"
)

// grouped counts in how many calls of Apply keys with the same first letter come.
type grouped struct {
	*reconciletest.Recorder[string, pair]
	calls   int
	largest int
	of      map[byte]map[int]bool // calls by first letter
}

func (g *grouped) Apply(ctx context.Context, batch []reconcile.Update[string, pair]) error {
	g.calls++
	g.largest = max(g.largest, len(batch))
	for _, u := range batch {
		if g.of[u.Key[0]] == nil {
			g.of[u.Key[0]] = map[int]bool{}
		}
		g.of[u.Key[0]][g.calls] = true
	}
	return g.Recorder.Apply(ctx, batch)
}

// With Together, nothing is applied before the desired table is complete. Then keys that belong together come in one call,
// although they were set at different times, and calls stay bounded otherwise. Later changes come as they are.
func TestKeysThatBelongTogetherComeAtOnce(t *testing.T) {
	run(t, func(x *rig) {
		g := &grouped{Recorder: reconciletest.NewRecorder(pairKey, samePair), of: map[byte]map[int]bool{}}
		x.start(func(o *reconcile.Options[string, pair]) {
			o.Target = g
			o.Together = func(a, b string) int { return cmp.Compare(a[0], b[0]) }
		})
		const letters, each = 5, 300
		for i := range each {
			for c := range letters {
				x.desired.Set(pair{fmt.Sprintf("%c%d", 'a'+c, i), "1"})
			}
			synctest.Wait()
		}
		must.AtMost(t, g.calls, 0, "calls before the table is complete")
		x.ready()
		synctest.Wait()
		if len(g.of) != letters || g.largest > 2*each+each {
			t.Errorf("%d letters, %d keys in the largest call", len(g.of), g.largest)
		}
		for c, calls := range g.of {
			expect.Equal(t, len(calls), 1, "calls with the keys of %c", c)
		}
		expect.True(t, x.r.Stats().Synced, "not synced")
		before := g.calls
		x.desired.Set(pair{"a1", "2"})
		synctest.Wait()
		x.desired.Set(pair{"a2", "2"})
		synctest.Wait()
		expect.Equal(t, g.calls, before+2, "calls after two later changes")
	})
}
