//go:build linux && vm

package firewall_test

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/internal/firewall"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/netlab"
)

// The tables of iptables-legacy that drop packets are found, in both families, and no others.
func TestFindLegacy(t *testing.T) {
	need.Module(t, "iptable_filter")
	need.Module(t, "ip6table_filter")
	netlab.NewLAN(t, "host").Nodes[0].Do(func() {
		for _, step := range []struct{ command, want string }{
			{"", "[]"},
			{"iptables-legacy -P INPUT ACCEPT", "[]"},
			{"iptables-legacy -P FORWARD DROP", "[{iptables-legacy 1}]"},
			{"ip6tables-legacy -P INPUT DROP", "[{iptables-legacy 1} {ip6tables-legacy 1}]"},
			{"iptables-legacy -P INPUT DROP", "[{iptables-legacy 2} {ip6tables-legacy 1}]"},
			{"ip6tables-legacy -P INPUT ACCEPT", "[{iptables-legacy 2}]"},
		} {
			if words := strings.Fields(step.command); len(words) > 0 {
				if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
					t.Fatalf("%s: %v: %s", step.command, err, out)
				}
			}
			found, err := firewall.FindLegacy()
			if err != nil || fmt.Sprint(found) != step.want {
				t.Errorf("after %q: %v, %v; want %s", step.command, found, err, step.want)
			}
		}
	})
}
