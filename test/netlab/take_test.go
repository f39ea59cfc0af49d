//go:build linux

package netlab_test

import (
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/netlab"
)

// A device moves to the node with its addresses, and back with them at the end of the test.
func TestTake(t *testing.T) {
	need.Root(t)
	lab := netlab.New(t)
	show := func(n *netlab.Node) (out string) {
		n.Do(func() {
			b, _ := exec.Command("ip", "-br", "addr", "show", "taken").Output() // empty if it isn't there
			out = strings.Join(strings.Fields(string(b)), " ")
		})
		return out
	}
	has := func(n *netlab.Node) bool {
		now := show(n)
		return strings.Contains(now, "10.9.0.1/24") && strings.Contains(now, "fd09::1/64")
	}
	veth := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: "other"}
	veth.Name = "taken"
	must.Succeed(t, lab.Director.Netlink.LinkAdd(veth))
	lab.Director.AddAddr("taken", netip.MustParsePrefix("10.9.0.1/24"))
	lab.Director.AddAddr("taken", netip.MustParsePrefix("fd09::1/64"))
	if !has(lab.Director) {
		t.Fatalf("at first: %q", show(lab.Director))
	}
	backend := lab.Backends[0]
	t.Run("taken", func(t *testing.T) {
		lab.Director.Do(func() { backend.For(t).Take("taken") })
		if !has(backend) || show(lab.Director) != "" {
			t.Errorf("the backend has %q, the director %q", show(backend), show(lab.Director))
		}
	})
	if !has(lab.Director) || show(backend) != "" {
		t.Errorf("afterwards the director has %q, the backend %q", show(lab.Director), show(backend))
	}
}
