//go:build linux && vm

package ipvs

import (
	"net/netip"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/vip"
)

// When a service is reported as applied, the kernel accepts packets for its new address, also for
// IPv6 and also while the kernel's work queues wait for the processor.
func TestAddressIsTheHostsOwnWhenApplied(t *testing.T) {
	const count = 50
	lab := netlab.New(t)
	p := newPlane(t, lab.Director)
	late := map[vip.Family]int{}
	onThreadThatEnds(func() {
		expect.Succeed(t, unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}, 0))
		for i := range count {
			for _, pool := range []netip.Prefix{pool4, pool6} {
				f := frontend(netip.AddrPortFrom(nth(pool, 100+i), 80).String(), vip.TCP)
				p.Create(t, f)
				routes, err := lab.Director.Netlink.RouteGet(f.Key.Addr.AsSlice())
				if err != nil || len(routes) != 1 || routes[0].Type != unix.RTN_LOCAL {
					late[vip.FamilyOf(f.Key.Addr)]++
				}
			}
		}
	})
	for family, n := range late {
		t.Errorf("%d of %d addresses of %s were not the host's own", n, count, family)
	}
}

// onThreadThatEnds runs f on a thread that ends with f, so that the thread's namespace is
// deleted. The first thread of a process never ends. It would keep the namespace, whose contents
// keep the modules loaded.
func onThreadThatEnds(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			onThreadThatEnds(f) // another thread, because this one stays locked
			runtime.UnlockOSThread()
			return
		}
		f()
	}()
	<-done
}
