//go:build linux && vm

package ipvs

import (
	"strings"
	"testing"

	"github.com/ironvip/ironvip/plane/kernel/filter"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/vip"
)

// layout1 is the first version of the table, as far as later versions read it: the sets, and
// rules with their version.
const layout1 = `table inet ironvip {
	set frontends4 { type ipv4_addr . inet_proto . inet_service; elements = { 10.96.0.1 . tcp . 80 }; }
	set nodeports4 { type ipv4_addr . inet_proto . inet_service; elements = { 10.77.0.1 . tcp . 30080 }; }
	set nodeports6 { type ipv6_addr . inet_proto . inet_service; elements = { fd77::1 . tcp . 30080 }; }
	set refused4 { type ipv4_addr . inet_proto . inet_service; }
	set masq_always4 { type ipv4_addr . inet_proto . inet_service; elements = { 10.77.0.1 . tcp . 30080 }; }
	set masq_always6 { type ipv6_addr . inet_proto . inet_service; elements = { fd77::1 . tcp . 30080 }; }
	set masq_auto4 { type ipv4_addr . inet_proto . inet_service; elements = { 10.96.0.1 . tcp . 80 }; }
	set vips4 { type ipv4_addr; elements = { 10.96.0.1 }; }
	set hairpin4 { type ipv4_addr . ipv4_addr; }
	set pods4 { type ipv4_addr; flags interval; }
	chain refuse { meta l4proto tcp reject with tcp reset comment "ironvip 1: tcp is reset"; }
	chain guard { ip daddr . meta l4proto . th dport @refused4 goto refuse comment "ironvip 1: no usable backend"; }
	chain input { type filter hook input priority -10; policy accept; jump guard comment "ironvip 1: guard"; }
}
`

// A table of the first version is replaced at the next start. The node ports that it records
// remain ours, and a service without a record remains foreign.
func TestTableOfTheFirstLayoutIsReplaced(t *testing.T) {
	lab := netlab.New(t)
	runWith(t, lab.Director, layout1, "nft", "-f", "-")
	runWith(t, lab.Director, `-A -t 10.96.0.1:80 -s wrr
-a -t 10.96.0.1:80 -r 10.77.1.2:80 -m -w 1
-A -t 10.77.0.1:30080 -s wrr
-a -t 10.77.0.1:30080 -r 10.77.1.2:80 -m -w 1
-A -t [fd77::1]:30080 -s wrr
-a -t [fd77::1]:30080 -r [fd77:1::2]:80 -m -w 1
-A -t 10.77.0.1:30081 -s sed
`, "ipvsadm", "-R")
	run(t, lab.Director, "ipvsadm", "--set", "3600", "0", "0")
	services := run(t, lab.Director, "ipvsadm", "-Sn")
	p := newPlane(t, lab.Director)
	node4 := frontend("10.77.0.1:30080", vip.TCP, addrs("10.77.1.2:80")...)
	node6 := frontend("[fd77::1]:30080", vip.TCP, addrs("[fd77:1::2]:80")...)
	node4.Kind, node6.Kind = vip.OnHost, vip.OnHost
	all := []*vip.Frontend{frontend("10.96.0.1:80", vip.TCP, addrs("10.77.1.2:80")...), node4, node6}
	have := p.Read(t)
	expect.Equal(t, len(have), len(all), "frontends in %v", have)
	var repair []updateOf
	for _, f := range all {
		o := have[f.Key]
		if !p.Same(&o.Value, f) || !strings.Contains(strings.Join(o.Damage, "\n"), "nftables table") {
			t.Errorf("%s is read as %+v, damage %q", f.Key, o.Value, o.Damage)
		}
		repair = append(repair, updateOf{Key: f.Key, Old: &o.Value, New: f, Repair: true})
	}
	before := p.Stats()
	p.Put(t, repair[0])
	if now := run(t, lab.Director, "nft", "list", "table", "inet", "ironvip"); strings.Contains(now, "ironvip 1") || !strings.Contains(now, filter.LayoutVersion) {
		t.Errorf("the first repair leaves\n%s", now)
	}
	p.Put(t, repair[1:]...)
	p.Wants(t, all...)
	if now := run(t, lab.Director, "ipvsadm", "-Sn"); now != services || p.Stats().WritesSent != before.WritesSent {
		t.Errorf("services were\n%s\nand are\n%s", services, now)
	}
	newPlane(t, lab.Director).Wants(t, all...)
}
