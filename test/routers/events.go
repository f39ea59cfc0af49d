//go:build linux

package routers

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/test/netlab"
)

// RouteEvents counts what a router's kernel reports about host routes. A route that gets other next hops
// counts as added.
type RouteEvents struct {
	Added, Deleted atomic.Int64
	LastDeleted    atomic.Int64 // Unix nanoseconds
}

// WatchRoutes counts the changes of host routes of the labs' ranges (10.0.0.0/8 and fd00::/8) in a
// router's kernel, until the end of the test.
func WatchRoutes(t testing.TB, router *netlab.Node) *RouteEvents {
	t.Helper()
	ch, done := make(chan netlink.RouteUpdate, 1024), make(chan struct{})
	t.Cleanup(func() { close(done) })
	var err error
	router.Do(func() {
		err = netlink.RouteSubscribeWithOptions(ch, done, netlink.RouteSubscribeOptions{ReceiveBufferSize: 8 << 20, ReceiveBufferForceSize: true})
	})
	if err != nil {
		t.Fatal(err)
	}
	e := &RouteEvents{}
	go func() {
		for u := range ch {
			if u.Dst == nil || u.Dst.IP[0] != 10 && u.Dst.IP[0] != 0xfd {
				continue
			}
			if ones, bits := u.Dst.Mask.Size(); ones != bits {
				continue
			}
			if u.Type == unix.RTM_DELROUTE {
				e.Deleted.Add(1)
				e.LastDeleted.Store(time.Now().UnixNano())
			} else {
				e.Added.Add(1)
			}
		}
	}()
	return e
}
