//go:build system || vm

package program

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/netlab"
)

// newLab creates a network of namespaces with an agent on its director. Clients and backends are on
// other nodes, with addresses of both families.
func newLab(t testing.TB) (*host, *netlab.Lab) {
	t.Helper()
	l := netlab.New(t)
	h := newHost(t)
	h.pool = "10." + strings.SplitN(h.pool, ".", 2)[1] // not a loopback address
	h.config("")
	h.inside = l.Director.Do
	return h, l
}

// reaches waits until exactly these nodes answer a node's requests to an address.
func (h *host) reaches(n *netlab.Node, network, addr string, port int, names ...string) {
	h.t.Helper()
	to := netip.AddrPortFrom(netip.MustParseAddr(addr), uint16(port))
	h.eventually(fmt.Sprintf("%s reaches %v at %s", n.Name, names, to), func() error {
		got := map[string]int{}
		for range 2 * len(names) {
			a, err := n.Ask(network, to)
			if err != nil {
				return err
			}
			got[a.Name]++
		}
		for _, name := range names {
			if got[name] == 0 {
				return fmt.Errorf("answered by %v", got)
			}
		}
		if len(got) != len(names) {
			return fmt.Errorf("answered by %v", got)
		}
		return nil
	})
}

// On the host, the agent is the userspace proxy on the loopback. In the VM, it programs the kernel.
var (
	mode = "proxy"
	// resync is the time between two readings of the dataplane, which cost an emulated processor much.
	resync = "1s"
	// poolBase differs between runs of this package, which may be concurrent.
	poolBase = fmt.Sprintf("127.%d", 96+os.Getpid()%100)
)

func init() {
	if os.Getenv("IRONVIP_VM") != "" {
		mode, resync, poolBase = "ipvs", "20s", "10.96"
	}
}

// parallel lets a test run concurrently with others: each has its own pool and state. In the VM, there is one kernel, and one
// agent at a time in it.
func parallel(t *testing.T) {
	if mode == "proxy" {
		t.Parallel()
	}
}
