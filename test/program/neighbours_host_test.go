//go:build system

package program

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/planetest"
)

// An agent with nftables leaves the tables, addresses and routes of others as they are, also those of Docker, kube-proxy and
// firewalld.
//
// Slow: other programs list the kernel after every step.
func TestNeighboursOfNFT(t *testing.T) {
	parallel(t)
	need.Root(t)
	need.Program(t, "nft")
	h, lab := newLab(t)
	h.edit("ironvip.toml", `mode = "proxy"`, `mode = "nft"`)
	planetest.MoveIn(t, lab.Director, "bridge")
	var ports []netip.AddrPort
	for _, b := range lab.Backends {
		ports = append(ports, b.Serve("tcp", netip.AddrPortFrom(b.Addr4, 0)))
	}
	n := &neighborhood{
		host:    h,
		state:   func() map[string]string { return planetest.State(t, lab.Director) },
		foreign: func(all map[string]string) map[string]string { return planetest.Foreign(all, noLine) },
		backend: [2]string{"backend1", "backend2"},
		service: func(name string, n ...int) string {
			var all []string
			for _, i := range n {
				all = append(all, fmt.Sprintf("{ address = %q, port = %d }", ports[i].Addr(), ports[i].Port()))
			}
			return fmt.Sprintf("[[service]]\nname = %q\nports = [ { port = 8080 } ]\nbackends = [ %s ]\n", name, strings.Join(all, ", "))
		},
		reaches: func(vip string, names ...string) { h.reaches(lab.Client, "tcp", vip, 8080, names...) },
	}
	n.before = n.state()
	web := n.live(func() {})
	h.start()
	now := h.vip("web")
	expect.Equal(t, now, web, "address of web after clean and start")
	n.reaches(web, "backend2")
	n.check("a start after clean")
	h.stop()
	n.cleaned("clean")
}

// noLine recognizes none.
func noLine(string, string) bool { return false }
