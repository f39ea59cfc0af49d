//go:build system

package announce

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/wait"
)

// smallFrame is longer than ARP over Ethernet and shorter than a heartbeat, in bytes.
const smallFrame = 60

// The queue of an interface has no room for heartbeats (ENOBUFS). The other host takes the VIPs over, and
// this host says why. When the queue has room again, the VIPs return.
func TestQueueHasNoRoom(t *testing.T) {
	tc := need.Program(t, "tc")
	l := newLab(t, 2, "")
	a := l.hosts[0]
	owners := l.settled()
	queue := func(args ...string) {
		t.Helper()
		var out []byte
		var err error
		a.Do(func() { out, err = exec.Command(tc, append([]string{"qdisc"}, args...)...).CombinedOutput() })
		if err != nil {
			t.Fatalf("tc %v: %v\n%s", args, err, out)
		}
	}
	queue("add", "dev", "eth0", "root", "bfifo", "limit", strconv.Itoa(smallFrame))
	l.hosts[1].awaitAll()
	wait.For(t, "the reason in the status", func() error {
		if out, _ := a.run("status"); !strings.Contains(out, "ENOBUFS") {
			return errors.New(out)
		}
		return nil
	})
	queue("del", "dev", "eth0", "root")
	l.awaitOwners("the former owners", func(o map[netip.Addr]string) bool { return fmt.Sprint(o) == fmt.Sprint(owners) })
	wait.For(t, "the end of the problem", func() error {
		if out, _ := a.run("status"); strings.Contains(out, "ENOBUFS") {
			return errors.New(out)
		}
		return nil
	})
}
