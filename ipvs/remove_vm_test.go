//go:build linux && vm

package ipvs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/plane/kernel/filter"
	"github.com/ironvip/ironvip/plane/kernel/usage"
	"github.com/ironvip/ironvip/plane/kernel/vips"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/vip"
)

// everything returns the kernel's state that the dataplane may change, as reported by other
// programs.
func everything(t *testing.T, node *netlab.Node) string {
	t.Helper()
	return run(t, node, "ipvsadm", "-Sn") + run(t, node, "nft", "list", "ruleset") + run(t, node, "ip", "-o", "addr") +
		run(t, node, "ip", "-4", "route", "show", "table", "all", "proto", "178") + run(t, node, "ip", "-6", "route", "show", "table", "all", "proto", "178")
}

// leftovers are what agent/offline finds and removes.
type leftovers struct {
	*Target
	usage.Left
	vips *vips.Remains
}

func findAll(t testing.TB, leased func(netip.Addr) bool) leftovers {
	v := must.Get(vips.Find(t.Context(), ""))(t)
	target := must.Get(Find(t.Context(), Options{Owns: func(a netip.Addr) bool { return v.Has(a) || leased(a) }}))(t)
	return leftovers{target, must.Get(target.Left(t.Context()))(t), v}
}

func (l leftovers) remove(ctx context.Context) error {
	return errors.Join(l.vips.RemoveAddresses(ctx), l.Remove(ctx), l.vips.Remove())
}

func found(l leftovers) string {
	var s strings.Builder
	for _, f := range l.Frontends {
		fmt.Fprintf(&s, "%s %s %d, ", f.Key, f.Scheduler, len(f.Backends))
	}
	if l.vips.Foreign != "" {
		s.WriteString("another's " + l.vips.Foreign + ", ")
	}
	return fmt.Sprintf("%saddresses %v, device %q, table %q, others %v", s.String(), l.vips.Addresses, l.vips.Device, l.Table, l.Others)
}

// The leftovers of a dataplane are found and removed without a dataplane, even if parts are
// missing. The state of other programs and the sysctls remain unchanged.
func TestFindAndRemove(t *testing.T) {
	leased := func(a netip.Addr) bool { return a == netip.MustParseAddr("10.96.0.1") }
	const (
		all     = "10.96.0.1:53/udp wrr 1, 10.96.0.1:80/tcp wrr 2, 10.96.0.2:80/tcp wrr 0, [fd96::1]:80/tcp wrr 1, "
		node    = "10.77.0.1:30080/tcp wrr 1, "
		whole   = `addresses [10.96.0.1 10.96.0.2 fd96::1], device "ironvip0", `
		inPool  = "10.96.9.9:80" // and nothing says that it is ours
		foreign = "others [10.77.0.1:99/tcp " + inPool + "/tcp]"
	)
	lab := netlab.New(t)
	run(t, lab.Director, "ipvsadm", "-A", "-t", "10.77.0.1:99", "-s", "rr", "-p", "77")
	run(t, lab.Director, "ipvsadm", "-a", "-t", "10.77.0.1:99", "-r", "10.77.1.2:99", "-g", "-w", "3")
	run(t, lab.Director, "ipvsadm", "-A", "-f", "7", "-s", "wlc")
	run(t, lab.Director, "nft", "add table inet neighbour; add set inet neighbour s { type ipv4_addr; elements = { 10.96.0.1 } }")
	run(t, lab.Director, "ip", "link", "add", "kube-ipvs0", "type", "dummy")
	run(t, lab.Director, "ip", "addr", "add", "10.96.0.1/32", "dev", "kube-ipvs0") // ours, too, in another's place
	before := everything(t, lab.Director)
	for _, c := range []struct {
		name   string
		break_ []string
		want   string
		left   string // services of ours that can't be known as such any more
	}{
		{"whole", nil, node + all + whole + `table "ironvip", ` + foreign, ""},
		{"without the table", []string{"nft delete table inet ironvip"},
			all + whole + `table "", others [10.77.0.1:99/tcp 10.77.0.1:30080/tcp 10.96.9.9:80/tcp]`, "-A -t 10.77.0.1:30080"},
		{"without the device", []string{"ip link del ironvip0"}, node + all + `addresses [], device "", table "ironvip", ` + foreign, ""},
		{"without both: leases", []string{"nft delete table inet ironvip", "ip link del ironvip0"},
			`10.96.0.1:53/udp wrr 1, 10.96.0.1:80/tcp wrr 2, addresses [], device "", table "", ` +
				`others [10.77.0.1:99/tcp 10.77.0.1:30080/tcp 10.96.0.2:80/tcp 10.96.9.9:80/tcp [fd96::1]:80/tcp]`,
			"-A -t 10.77.0.1:30080\n-A -t 10.96.0.2:80\n-A -t [fd96::1]:80"},
		{"damaged", []string{"ipvsadm -D -t 10.96.0.1:80", "ipvsadm -E -u 10.96.0.1:53 -s rr -p 60", "nft flush chain inet ironvip guard",
			"ip route del local 10.96.0.2 table local dev ironvip0"},
			node + "10.96.0.1:53/udp rr 1, 10.96.0.2:80/tcp wrr 0, [fd96::1]:80/tcp wrr 1, " + `addresses [10.96.0.1 fd96::1], device "ironvip0", table "ironvip", ` + foreign, ""},
		{"another's device of that name", []string{"ip link del ironvip0", "ip link add ironvip0 type veth peer name other0",
			"ip addr add 10.96.0.1/32 dev ironvip0", "ip addr add 10.96.0.2/32 dev ironvip0"},
			node + all + `another's veth, addresses [], device "", table "ironvip", ` + foreign, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPlane(t, lab.Director, func(o *Options) {
				o.PodCIDRs = func() []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")} }
			})
			host := frontend("10.77.0.1:30080", vip.TCP, addrs("10.77.1.2:80")...)
			host.Kind = vip.OnHost
			p.Create(t, host,
				frontend("10.96.0.1:80", vip.TCP, addrs("10.77.1.2:80", "10.77.2.2:80")...),
				frontend("10.96.0.1:53", vip.UDP, addrs("10.77.1.2:53")...),
				frontend("10.96.0.2:80", vip.TCP),
				frontend("[fd96::1]:80", vip.TCP, addrs("[fd77:1::2]:80")...))
			run(t, lab.Director, "ipvsadm", "-A", "-t", inPool, "-s", "sh")
			for _, cmd := range c.break_ {
				run(t, lab.Director, strings.Fields(cmd)...)
			}
			lab.Director.Sysctl("ipv4/vs/conntrack", "0")
			p.Close()
			whole := ""
			if c.break_ == nil {
				whole = everything(t, lab.Director)
			}

			find := func(with func(r leftovers)) {
				lab.Director.Do(func() {
					r := findAll(t, leased)
					defer r.vips.Close()
					defer r.Close()
					with(r)
				})
			}
			find(func(r leftovers) { expect.Equal(t, found(r), c.want) })
			if whole != "" {
				expect.Equal(t, everything(t, lab.Director), whole, "the kernel after an inspection")
			}
			find(func(r leftovers) { expect.Succeed(t, r.remove(t.Context())) })
			find(func(r leftovers) { expect.True(t, !r.Any() && r.vips.Device == "", "something is left to find") })
			if c.name == "another's device of that name" {
				on := run(t, lab.Director, "ip", "-o", "addr", "show", "ironvip0")
				expect.Equal(t, strings.Count(on, "10.96.0."), 2, "another's device has\n%s", on)
				run(t, lab.Director, "ip", "link", "del", "ironvip0")
			}
			for l := range strings.Lines(c.left + "\n-A -t " + inPool) {
				if words := strings.Fields(l); len(words) > 2 {
					run(t, lab.Director, "ipvsadm", "-D", words[1], words[2]) // there is one to delete
				}
			}
			expect.Equal(t, everything(t, lab.Director), before, "the kernel after the removal")
			var value []byte
			lab.Director.Do(func() { value, _ = os.ReadFile("/proc/sys/net/ipv4/vs/conntrack") })
			expect.Equal(t, string(value), "0\n", "net.ipv4.vs.conntrack after the removal")
		})
	}
}

// A device of another program in the place of ours is reported, and no address is added to it or
// removed from it.
func TestAnothersDeviceInTheRoomOfOurs(t *testing.T) {
	lab := netlab.New(t)
	p := newPlane(t, lab.Director)
	f := frontend("10.96.0.1:80", vip.TCP, addrPort("10.77.1.2:80"))
	p.Create(t, f)
	run(t, lab.Director, "ip", "link", "del", "ironvip0")
	run(t, lab.Director, "ip", "link", "add", "ironvip0", "type", "veth", "peer", "name", "other0")
	run(t, lab.Director, "ip", "link", "set", "ironvip0", "up")
	run(t, lab.Director, "ip", "addr", "add", "10.96.0.2/32", "dev", "ironvip0")
	before := run(t, lab.Director, "ip", "-o", "addr", "show", "ironvip0")
	damage := ""
	for o, err := range p.Actual(t.Context()) {
		must.Succeed(t, err)
		damage += fmt.Sprint(o.Value.Key, o.Damage)
	}
	if !strings.Contains(damage, "device ironvip0 is missing or down") || strings.Contains(damage, "10.96.0.2") {
		t.Errorf("found %s", damage)
	}
	batch := []updateOf{{Key: f.Key, Old: f, New: f, Repair: true}}
	err := p.Apply(t.Context(), batch)
	expect.Contains(t, fmt.Sprint(err, batch[0].Err), "device ironvip0 is a veth, not a dummy", "repair")
	if err := p.Apply(t.Context(), []updateOf{{Key: f.Key, Old: f}}); err != nil {
		t.Logf("removal: %v", err)
	}
	expect.Equal(t, run(t, lab.Director, "ip", "-o", "addr", "show", "ironvip0"), before, "the other device")
}

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
