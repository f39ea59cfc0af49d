//go:build linux && vm

package probepath

import (
	"testing"

	"github.com/ironvip/ironvip/vip"
)

// A table that another program flushes is seen at once, own changes are not.
func TestFlushedTableIsSeen(t *testing.T) {
	w := newTown(t, "10.96.0.1:80", vip.TCP, vip.ForwardDirect)
	look := func(when string, want bool) {
		t.Helper()
		w.Director.Do(func() {
			if s, err := w.paths.Check(t.Context()); err != nil || s.Unknown != want {
				t.Errorf("%s: %+v, %v", when, s, err)
			}
		})
	}
	p := w.path(w.Backends[0])
	w.put([]updateOf{{Key: p, New: &p}})
	look("own changes", false)
	select {
	case <-w.paths.Changed():
		t.Error("woken by own changes")
	default:
	}
	w.run(w.Director, "nft", "flush", "ruleset")
	<-w.paths.Changed()
	look("a flushed ruleset", true)
	w.put([]updateOf{{Key: p, Old: &p, New: &p, Repair: true}})
	look("the repair", false)
}
