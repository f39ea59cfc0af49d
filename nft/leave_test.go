package nft

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/netlink"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

// The table outlives a removal that fails half-way. A repetition removes the rest.
func TestRemovalIsRepeated(t *testing.T) {
	w := newWorld(t)
	f := frontend("10.96.0.1", 80, vip.TCP, w.servers("tcp", false, 0)...)
	w.set(f)
	c, err := w.Client.Dial("tcp", f.Key.AddrPort())
	must.Succeed(t, err)
	defer c.Close()
	must.Get(c.Ask())(t)
	w.Close()
	target := w.left().Target
	fails := netlink.Intercept(t.Context(), func(b []byte, write bool, send func([]byte) error) error {
		if h, _, _, err := netlink.NextMessage(b); err == nil && h.Type>>8 == unix.NFNL_SUBSYS_CTNETLINK && write {
			return unix.ENOBUFS
		}
		return send(b)
	})
	w.Director.Do(func() { err = target.Remove(fails) })
	if err == nil || !strings.Contains(w.run("nft list tables"), "ironvip_nft") {
		t.Errorf("the first removal: %v", err)
	}
	target = w.left().Target
	w.Director.Do(func() { err = target.Remove(t.Context()) })
	if err != nil || strings.Contains(w.run("nft list tables"), "ironvip_nft") {
		t.Errorf("the second removal: %v", err)
	}
	if a, err := c.Ask(); err == nil {
		t.Errorf("a connection outlasts its dataplane: %v", a)
	}
}
