package ipvs

import (
	"net/netip"
	"testing"
	"time"

	"github.com/ironvip/ironvip/plane/kernel/filter"
	"github.com/ironvip/ironvip/vip"
)

// The table's elements are deleted while no agent runs, so the service of a node port has no record.
// The next agent treats it as foreign: it reports the conflict, leaves the service unchanged, and
// adds no hairpin element for its backends. It keeps an element that another frontend needs. When
// the foreign service is gone, the node port is complete again.
func TestNodePortWithoutARecord(t *testing.T) {
	inWorld(t, "a node port without a record", func(w *world) {
		w.start()
		port := listener("192.0.2.1:30080", vip.TCP, "10.1.0.1:80", "10.1.0.2:80")
		port.Masquerade = vip.MasqueradeOwn
		w.put(port)
		w.put(listener("10.96.0.1:80", vip.TCP, "10.1.0.2:80"))
		w.waitIdle()
		w.checkApplied()
		w.stop()

		w.amnesia = true
		w.k.alter(func() { drifts["elements deleted"](w) })
		w.start()
		check := func(conflict bool) {
			time.Sleep(10 * testBackoff)
			w.waitIdle()
			w.checkApplied()
			if w.conflicts(port.Key) != conflict {
				row, _, _ := w.applied.Get(port.Key)
				w.errorf("want a conflict: %v; the status is %+v", conflict, row.Problem)
			}
			if s := w.k.services[port.Key]; s == nil || len(s.dests) != len(port.Backends) {
				w.errorf("the service of the node port is %+v", s)
			}
			for backend, want := range map[string]bool{"10.1.0.1": !conflict, "10.1.0.2": true} {
				e := filter.AddrElement(filter.SetHairpin, netip.MustParseAddr(backend))
				if _, has := w.k.table.elements[e]; has != want {
					w.errorf("conflict: %v, but the table has %s: %v", conflict, e, has)
				}
			}
		}
		check(true)
		w.k.alter(func() { delete(w.k.services, port.Key) }) // ipvsadm -D
		check(false)
		w.stop()
	})
}
