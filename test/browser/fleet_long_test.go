//go:build system && long

package browser

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/wait"
)

// The page shows a host that is lost, which takes the time of its session in Consul, and keeps its last state while
// Consul is away.
func TestFleetPageWithoutConsul(t *testing.T) {
	hosts, consul, b := fleetOnConsul(t)
	two, three := hosts[1], hosts[2]
	b.agree(two, each("lb1", "lb2", "lb3"))
	two.kill()
	wait.Within(t, time.Minute+wait.Timeout, "the lost host", func() error { // after at most a minute, as documented
		if row := b.rowOf("Hosts", "lb2"); !strings.Contains(row, "lost") {
			return errors.New(row)
		}
		return nil
	})
	two.start()
	b.row("Hosts", "lb2", "present")
	b.agree(three, each("lb1", "lb2", "lb3"))

	consul.Pause()
	b.see("main", "consul not available", "The page shows the state of")
	b.row("Hosts", "lb3", "present")
	three.kill() // owners don't need Consul
	b.agree(two, each("lb1", "lb2"))
	b.show("/ui/")
	b.see("#wrong", "consul")
	b.show("/ui/fleet")
	consul.Continue()
	b.row("Hosts", "lb1", "present")
	b.until("the message is gone", "!document.querySelector('main').innerText.includes('The page shows the state of')")
	b.quiet("503 (Service Unavailable)")
}
