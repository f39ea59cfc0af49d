package ipvs

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/plane/kernel/filter"
	"github.com/ironvip/ironvip/vip"
)

// rangeOf turns a frontend into one for the ports up to last.
func rangeOf(last uint16, f *vip.Frontend) *vip.Frontend {
	f.Key.LastPort = last
	return f
}

// An agent is killed at any call while a range of ports replaces another. No service remains
// without a record: the next agent finds all of them.
func TestKilledWhileARangeTakesAnothersPlace(t *testing.T) {
	for at, killed := 1, true; killed; at++ {
		inWorld(t, fmt.Sprintf("killed at call %d", at), func(w *world) {
			w.start()
			w.place(rangeOf(100, listener("10.96.0.1:80", vip.TCP, "10.1.0.1:80")))
			w.waitIdle()
			s := storm{in: at, length: 1, crash: true}
			w.k.fail(func(c call) *fault {
				if w.crashed.Load() {
					return &fault{err: errCrashed}
				}
				return s.script(w, c)
			})
			w.place(rangeOf(110, listener("10.96.0.1:90", vip.TCP, "10.1.0.2:80")))
			w.waitIdle()
			w.stop()
			killed = w.crashed.Swap(false)
			w.k.fail(nil)
			w.amnesia = true
			w.start()
			time.Sleep(10 * testBackoff)
			w.waitIdle()
			w.checkApplied()
			w.stop()
		})
	}
}

// A range of ports whose service can't be deleted keeps its elements. The range that replaces it
// reports what it waits for.
func TestRangeWaitsForOneThatCannotGo(t *testing.T) {
	inWorld(t, "a service that can't be deleted", func(w *world) {
		w.start()
		old := rangeOf(100, listener("10.96.0.1:80", vip.TCP, "10.1.0.1:80"))
		w.place(old)
		w.waitIdle()
		w.k.fail(func(c call) *fault {
			if c.kind == "ipvs message" && c.what == fmt.Sprintf("delete ipvs service %s", keyOfMark(filter.MarkAt(0), vip.IPv4)) {
				return &fault{err: unix.EPERM}
			}
			return nil
		})
		f := rangeOf(110, listener("10.96.0.1:90", vip.TCP, "10.1.0.2:80"))
		w.place(f)
		time.Sleep(5 * testBackoff)
		w.waitIdle()
		row, _, _ := w.applied.Get(f.Key)
		if row.Problem == nil || row.Problem.Code != vip.CodePortTaken {
			w.errorf("the status is %+v", row.Problem)
		}
		if w.k.services[keyOfMark(filter.MarkAt(0), vip.IPv4)] == nil || len(w.k.services) != 1+len(w.foreign) {
			w.errorf("the services are %v", w.k.services)
		}
		for e := range w.k.table.elements {
			if e.Key == f.Key {
				w.errorf("the table has %s", e)
			}
		}
		w.k.fail(nil)
		time.Sleep(10 * testBackoff)
		w.waitIdle()
		w.checkApplied()
		w.stop()
	})
}

// Without destinations, the kernel doesn't store the forwarding method of a service. The missing
// method is not reported as drift.
func TestOnePacketWithoutBackendsIsNoDrift(t *testing.T) {
	for _, way := range []vip.Forward{vip.ForwardDirect, vip.ForwardTunnel} {
		inWorld(t, way.String(), func(w *world) {
			w.resync = time.Second
			w.start()
			f := listener("10.96.0.1:53", vip.UDP)
			f.Forward, f.Masquerade, f.OnePacket = way, vip.MasqueradeNever, true
			w.put(f)
			time.Sleep(10 * time.Second)
			w.waitIdle()
			w.checkApplied()
			if n := w.r.Stats().DriftRepairs; n > 0 {
				w.errorf("%d repairs of what was right", n)
			}
			w.stop()
		})
	}
}

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
