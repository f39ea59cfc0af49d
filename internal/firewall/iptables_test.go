//go:build linux

package firewall_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/internal/firewall"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/netlab"
)

// The same rules in the form of iptables, whose conditions are modules of xtables.
func TestFindIptables(t *testing.T) {
	need.Program(t, "iptables-nft")
	netlab.NewLAN(t, "host").Nodes[0].Do(func() {
		run := func(args string) {
			t.Helper()
			if out, err := exec.Command("iptables-nft", strings.Fields(args)...).CombinedOutput(); err != nil {
				t.Fatalf("iptables-nft %s: %v: %s", args, err, out)
			}
		}
		of := ipvs
		count := func(what string, want int) {
			t.Helper()
			got, err := firewall.Find(firewall.Query{Pools: pools, Paths: of})
			if err != nil || len(got) != want {
				t.Errorf("%s: %+v, %v; want %d", what, got, err, want)
			}
		}
		run("-P INPUT DROP")
		run("-P FORWARD DROP")
		run("-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT")
		run("-A INPUT -p tcp --dport 22 -m comment --comment ssh -j ACCEPT")
		count("policies", 2)
		run("-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT")
		count("answers pass", 1)
		run("-A INPUT -d 192.0.2.0/24 -j ACCEPT")
		count("all pass", 0)
		run("-I INPUT -j REJECT")
		count("all are rejected", 1)
		of = nft
		count("connections that nft forwards", 1)
		run("-I FORWARD -m state --state NEW -j DROP")
		count("a drop of the older module", 1)
		run("-P FORWARD ACCEPT")
		count("a drop of the older module alone", 1)
		run("-D FORWARD 1")
		run("-P FORWARD DROP")
		run("-A FORWARD -m conntrack --ctstate DNAT -j ACCEPT")
		count("they pass", 0)
	})
}
