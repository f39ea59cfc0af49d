package pipeline

import (
	"fmt"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/vip"
)

// A step of the host's clock after the start neither cuts connections nor keeps them longer.
func TestDrainsTakeAsLongWhoeverSetsTheClock(t *testing.T) {
	for _, set := range []time.Duration{time.Hour, -time.Hour, 50 * 365 * 24 * time.Hour, 2 * time.Second} {
		t.Run(set.String(), func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				web := func(left time.Duration, more string) string {
					return fmt.Sprintf("192.0.2.1:80/tcp web: 10.0.0.1:80*1 10.0.0.2:80*0@%s%s", left, more)
				}
				w.put(service("web", []string{"10.0.0.1", "10.0.0.2"}))
				w.put(service("web", []string{"10.0.0.1"}))
				w.pass(20 * time.Second)
				w.setClock(set)
				w.put(service("web", []string{"10.0.0.1", "10.0.0.3"}))
				w.expect(web(40*time.Second, " 10.0.0.3:80*1"))
				w.setClock(-set)
				w.pass(idlePoll)
				w.setClock(set)
				w.pass(idlePoll) // nothing else happens
				w.expect(web(38*time.Second, " 10.0.0.3:80*1"))
				if values, _ := w.store.has(); len(values) != 1 || values["192.0.2.1:80/tcp"].Backends[0].Leaving != vip.InstantOf(time.Now().Add(38*time.Second)) {
					t.Errorf("the store has %v", values)
				}
				w.pass(37 * time.Second)
				w.expect(web(time.Second, " 10.0.0.3:80*1"))
				w.pass(time.Second)
				w.expect("192.0.2.1:80/tcp web: 10.0.0.1:80*1 10.0.0.3:80*1")
				w.expectStored()
			})
		})
	}
}

// A step of the host's clock has no effect on restored drains that wait for their frontend, either.
func TestRestoredDrainsTakeAsLongWhoeverSetsTheClock(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t, nil).run()
		w.put(service("web", []string{"10.0.0.1", "10.0.0.2"}))
		w.put(service("web", []string{"10.0.0.1"}))
		w.stop()
		again := newWorld(t, w)
		ready := again.Services.Initializer()
		again.run().put()
		again.pass(20 * time.Second)
		again.setClock(time.Hour)
		again.Services.Set(service("web", []string{"10.0.0.1"}))
		ready()
		again.put()
		again.expect("192.0.2.1:80/tcp web: 10.0.0.1:80*1 10.0.0.2:80*0@40s")
		again.pass(40 * time.Second)
		again.expect("192.0.2.1:80/tcp web: 10.0.0.1:80*1")
		again.stop()
	})
}
