//go:build linux && vm

package ipvs

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/planetest"
	"github.com/ironvip/ironvip/vip"
)

// Actual reports every change by other programs to what is ours, and one repair repairs it. The
// repaired state is there in the end, when ipvsadm, nft and ip list everything.
func TestDriftIsSeenAndRepaired(t *testing.T) {
	pods := []netip.Prefix{netip.MustParsePrefix("10.77.1.0/24"), netip.MustParsePrefix("10.77.2.0/24")}
	cases := []struct {
		name   string
		break_ []string // commands
		sees   string   // in the damage of a key; "" is a difference in value or absence
	}{
		{"service deleted", []string{"ipvsadm -D -t 10.96.0.1:80"}, "ipvs service missing"},
		{"scheduler changed", []string{"ipvsadm -E -t 10.96.0.1:80 -s sed"}, ""},
		{"one-packet flag set", []string{"ipvsadm -E -u 10.96.0.1:53 -s wrr -o"}, ""},
		{"persistence by network", []string{"ipvsadm -E -t 10.96.0.1:80 -s wrr -p 60 -M 255.255.0.0"}, "netmask"},
		{"weight changed", []string{"ipvsadm -e -t 10.96.0.1:80 -r 10.77.1.2:80 -m -w 9"}, ""},
		{"destination deleted", []string{"ipvsadm -d -t 10.96.0.1:80 -r 10.77.1.2:80"}, ""},
		{"destination added", []string{"ipvsadm -a -t 10.96.0.1:80 -r 10.77.2.2:99 -m"}, ""},
		{"forwarding changed", []string{"ipvsadm -e -t 10.96.0.1:80 -r 10.77.1.2:80 -g -w 1"}, ""},
		{"address deleted", []string{"ip route del local 10.96.0.1 table local dev ironvip0"}, "address 10.96.0.1 missing"},
		{"IPv6 address deleted", []string{"ip -6 route del local fd96::1 table local dev ironvip0"}, "address fd96::1 missing"},
		{"device down", []string{"ip link set ironvip0 down"}, "missing or down"},
		{"device deleted", []string{"ip link del ironvip0"}, "missing or down"},
		{"device speaks ARP", []string{"ip link set ironvip0 arp on"}, "speaks ARP"},
		{"table deleted", []string{"nft delete table inet ironvip"}, "nftables table"},
		{"ruleset flushed", []string{"nft flush ruleset"}, "nftables table"},
		{"rule deleted", []string{"nft flush chain inet ironvip unserved"}, "nftables table"},
		{"chain rebuilt without its hook", []string{"nft flush chain inet ironvip input", "nft delete chain inet ironvip input", "nft add chain inet ironvip input"}, "nftables table"},
		{"virtual address taken from its set", []string{"nft delete element inet ironvip vips4 { 10.96.0.1 }"}, "set vips4"},
		{"masquerade taken", []string{"nft delete element inet ironvip masq_auto4 { 10.96.0.1 . tcp . 80 }"}, ""},
		{"masquerade doubled", []string{"nft add element inet ironvip masq_always4 { 10.96.0.1 . tcp . 80 }"}, "set masq_auto4"},
		{"refusal taken", []string{"nft delete element inet ironvip refused4 { 10.96.0.2 . tcp . 80 }"}, "set refused4"},
		{"refusal added", []string{"nft add element inet ironvip refused4 { 10.96.0.1 . tcp . 80 }"}, "set refused4"},
		{"hairpin taken", []string{"nft delete element inet ironvip hairpin4 { 10.77.1.2 . 10.77.1.2 }"}, "set hairpin4"},
		{"hairpin of own taken", []string{"nft delete element inet ironvip hairpin4 { 10.77.2.2 . 10.77.2.2 }"}, "set hairpin4"},
		{"masquerade of own taken", []string{"nft delete element inet ironvip masq_own4 { 10.96.0.3 . tcp . 80 }"}, ""},
		{"source range taken", []string{"nft delete element inet ironvip sources4 { 10.96.0.3 . tcp . 80 . 192.0.2.0/24 }"}, ""},
		{"source range added", []string{"nft add element inet ironvip sources4 { 10.96.0.3 . tcp . 80 . 203.0.113.0/24 }"}, ""},
		{"source range widened", []string{"nft delete element inet ironvip sources4 { 10.96.0.3 . tcp . 80 . 192.0.2.0/24 }",
			"nft add element inet ironvip sources4 { 10.96.0.3 . tcp . 80 . 192.0.0.0/16 }"}, ""},
		{"odd source range", []string{"nft add element inet ironvip sources4 { 10.96.0.3 . tcp . 80 . 10.0.0.1-10.0.0.9 }"}, "nftables table"},
		{"source ranges flushed", []string{"nft flush set inet ironvip sources4"}, ""},
		{"restriction taken", []string{"nft delete element inet ironvip restricted4 { 10.96.0.3 . tcp . 80 }"}, "set restricted4"},
		{"restriction added", []string{"nft add element inet ironvip restricted4 { 10.96.0.1 . tcp . 80 }"}, ""},
		{"sources of an unrestricted service", []string{"nft add element inet ironvip sources4 { 10.96.0.1 . tcp . 80 . 192.0.2.0/24 }"}, "set restricted4"},
		{"service by mark deleted", []string{"ipvsadm -D -f {range}"}, "ipvs service missing"},
		{"service by mark changed", []string{"ipvsadm -E -f {range} -s sed"}, ""},
		{"destination of a service by mark deleted", []string{"ipvsadm -d -f {range} -r 10.77.1.2:0"}, ""},
		{"IPv6 service by mark deleted", []string{"ipvsadm -D -f {audience} -6"}, "ipvs service missing"},
		{"mark of a range taken", []string{"nft delete element inet ironvip ranges4 { 10.96.0.4 . tcp . 7000-7099 }"}, "nftables table"},
		{"mark of an audience taken", []string{"nft delete element inet ironvip internal6 { fd96::1 . tcp . 80 }"}, "nftables table"},
		{"range altered", []string{"nft delete element inet ironvip ranges4 { 10.96.0.4 . tcp . 7000-7099 }",
			"nft add element inet ironvip ranges4 { 10.96.0.4 . tcp . 7000-7010 : {range} }"}, ""},
		{"mark altered", []string{"nft delete element inet ironvip ranges4 { 10.96.0.4 . tcp . 7000-7099 }",
			"nft add element inet ironvip ranges4 { 10.96.0.4 . tcp . 7000-7099 : 0x02000000 }"}, "nftables table"},
		{"mark forgotten", []string{"nft delete element inet ironvip marks4 { {range} }"}, "set marks4"},
		{"masquerade of a range doubled", []string{"nft add element inet ironvip marked_masq_own4 { {range} }"}, "set marked_masq_own4"},
		{"refusal of a range added", []string{"nft add element inet ironvip marked_refused4 { {range} }"}, "set marked_refused4"},
		{"source range of a range taken", []string{"nft delete element inet ironvip marked_sources4 { {range} . 192.0.2.0/24 }"}, ""},
		{"stray mark", []string{"nft add element inet ironvip marks4 { 0x77000000 }"}, "nftables table"},
		{"stray range", []string{"nft add element inet ironvip ranges4 { 10.96.9.6 . tcp . 7-9 : 0x77000000 }"}, ""},
		{"range beside ours that overlaps it", []string{"nft delete element inet ironvip ranges4 { 10.96.0.4 . tcp . 7000-7099 }",
			"nft add element inet ironvip ranges4 { 10.96.0.4 . tcp . 6000-7099 : {range} }"}, ""},
		{"listener of a real server taken", []string{"nft delete element inet ironvip served4 { 10.96.0.5 . tcp . 80 }"}, ""},
		{"range of a real server taken", []string{"nft flush set inet ironvip served_ranges4"}, ""},
		{"address of a real server deleted", []string{"ip route del local 10.96.0.5 table local dev ironvip0"}, "address 10.96.0.5 missing"},
		{"virtual address of a real server taken from its set", []string{"nft delete element inet ironvip vips4 { 10.96.0.5 }"}, "set vips4"},
		{"service where a real server is", []string{"ipvsadm -A -t 10.96.0.5:80 -s rr"}, ""},
		{"pod ranges changed", []string{"nft flush set inet ironvip pods4"}, "pod ranges"},
		{"record of a node port lost with its service", []string{"ipvsadm -D -t 10.77.0.1:30080", "nft delete element inet ironvip nodeports4 { 10.77.0.1 . tcp . 30080 }"}, ""},
		{"stray service", []string{"ipvsadm -A -t 10.96.9.9:80 -s rr", "ipvsadm -a -t 10.96.9.9:80 -r 10.77.1.2:80 -m"}, "missing: 10.96.9.9"},
		{"stray elements", []string{"nft add element inet ironvip vips4 { 10.96.9.9 }", "nft add element inet ironvip hairpin4 { 10.77.2.9 . 10.77.2.9 }",
			"nft add element inet ironvip sources4 { 10.96.9.7 . tcp . 80 . 192.0.2.0/24 }",
			"nft add element inet ironvip frontends6 { fd96::99 . udp . 7 }"}, "should not be"},
	}
	lab := netlab.New(t)
	p := newPlane(t, lab.Director, func(o *Options) { o.PodCIDRs = func() []netip.Prefix { return pods } })
	node := frontend("10.77.0.1:30080", vip.TCP, addrs("10.77.1.2:80")...)
	node.Kind = vip.OnHost
	local := restricted(frontend("10.96.0.3:80", vip.TCP, addrs("10.77.2.2:80")...), "192.0.2.0/24", "198.51.100.0/24")
	local.Masquerade = vip.MasqueradeOwn
	byRange := restricted(ranged(frontend("10.96.0.4:7000", vip.TCP, addrs("10.77.1.2:80")...), 7099, 0), "192.0.2.0/24")
	byAudience := internal(frontend("[fd96::1]:80", vip.TCP, addrs("[fd77:2::2]:80")...))
	all := []*vip.Frontend{
		frontend("10.96.0.1:80", vip.TCP, addrs("10.77.1.2:80", "10.77.2.2:80")...),
		frontend("10.96.0.1:53", vip.UDP, addrs("10.77.1.2:53")...),
		frontend("10.96.0.2:80", vip.TCP),
		frontend("[fd96::1]:80", vip.TCP, addrs("[fd77:1::2]:80")...),
		node, local, byRange, byAudience,
		onRealServer(frontend("10.96.0.5:80", vip.TCP)), onRealServer(ranged(frontend("10.96.0.5:7000", vip.UDP), 7099, 0)),
	}
	want := map[vip.FrontendKey]*vip.Frontend{}
	var wanted []vip.Frontend
	for _, f := range all {
		want[f.Key] = f
		wanted = append(wanted, *f)
	}
	p.Create(t, all...)
	p.Wants(t, all...)
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			marks := strings.NewReplacer("{range}", fmt.Sprint(p.marks.get(byRange.Key)), "{audience}", fmt.Sprint(p.marks.get(byAudience.Key)))
			for _, cmd := range c.break_ {
				// nft wants its braces as one argument or as words, either will do.
				run(t, lab.Director, strings.Fields(marks.Replace(cmd))...)
			}

			have := p.Read(t)
			var repair []updateOf
			seen := false
			for k, f := range want {
				o, ok := have[k]
				if ok && len(o.Damage) == 0 && p.Same(&o.Value, f) {
					continue
				}
				u := updateOf{Key: k, New: f, Repair: true}
				if ok {
					u.Old = &o.Value
				}
				repair = append(repair, u)
				seen = seen || c.sees == "" || strings.Contains(strings.Join(o.Damage, "\n"), c.sees)
			}
			for k, o := range have {
				if want[k] == nil {
					repair = append(repair, updateOf{Key: k, Old: &o.Value, Repair: true})
					seen = seen || strings.Contains(strings.Join(o.Damage, "\n"), c.sees)
				}
			}
			expect.True(t, seen, "nothing is seen to be wrong with %q: %+v", c.sees, have)
			p.Put(t, repair...)
			p.Wants(t, all...)
		})
	}
	witness(t, lab.Director, wanted)
}

// New pod ranges take effect at the next change or, without one, at the next read.
func TestPodRangesChange(t *testing.T) {
	lab := netlab.New(t)
	now := []netip.Prefix{netip.MustParsePrefix("10.77.1.0/24")}
	p := newPlane(t, lab.Director, func(o *Options) { o.PodCIDRs = func() []netip.Prefix { return now } })
	a := frontend("10.96.0.1:80", vip.TCP, addrs("10.77.1.2:80", "10.77.2.2:80")...)
	b := frontend("10.96.0.2:80", vip.TCP, addrs("10.77.1.2:80")...)
	p.Create(t, a, b)
	has := func(when string, in ...string) {
		t.Helper()
		got := run(t, lab.Director, "nft", "list", "set", "inet", "ironvip", "pods4") + run(t, lab.Director, "nft", "list", "set", "inet", "ironvip", "hairpin4")
		for _, s := range []string{"10.77.1.0/24", "10.77.2.0/24", "10.77.1.2 . 10.77.1.2", "10.77.2.2 . 10.77.2.2"} {
			if want := slices.Contains(in, s); strings.Contains(got, s) != want {
				t.Errorf("%s: %s present is %v:\n%s", when, s, !want, got)
			}
		}
	}
	has("at first", "10.77.1.0/24", "10.77.1.2 . 10.77.1.2")
	now = []netip.Prefix{netip.MustParsePrefix("10.77.2.0/24")}
	c := with(a, func(f *vip.Frontend) { f.Backends[0].Weight = 3 })
	p.change(t, a, c)
	has("with a change", "10.77.2.0/24", "10.77.2.2 . 10.77.2.2")
	p.Wants(t, b, c)
	now = []netip.Prefix{netip.MustParsePrefix("10.77.1.0/24")}
	damaged := 0
	for _, o := range p.Read(t) {
		if len(o.Damage) > 0 {
			damaged++
			p.Put(t, updateOf{Key: o.Value.Key, Old: &o.Value, New: &o.Value, Repair: true})
		}
	}
	expect.Equal(t, damaged, 1, "damaged frontends")
	has("with a repair", "10.77.1.0/24", "10.77.1.2 . 10.77.1.2")
	p.Wants(t, b, c)
}

// A change before the detection of drift is applied, too.
func TestChangeOfWhatIsNotAsBelieved(t *testing.T) {
	cases := map[string]string{
		"service gone":              "ipvsadm -D -t 10.96.0.1:80",
		"destination gone":          "ipvsadm -d -t 10.96.0.1:80 -r 10.77.1.2:80",
		"destination already there": "ipvsadm -a -t 10.96.0.1:80 -r 10.77.2.2:81 -m -w 8",
		"table gone":                "nft delete table inet ironvip",
		"device gone":               "ip link del ironvip0",
		"service there already":     "ipvsadm -A -t 10.96.0.3:80 -s sh -p 5",
	}
	for name, cmd := range cases {
		t.Run(name, func(t *testing.T) {
			lab := netlab.New(t)
			p := newPlane(t, lab.Director)
			a := frontend("10.96.0.1:80", vip.TCP, addrs("10.77.1.2:80", "10.77.2.2:80")...)
			b := frontend("10.96.0.2:80", vip.TCP, addrs("10.77.1.2:80")...)
			p.Create(t, a, b)
			run(t, lab.Director, strings.Fields(cmd)...)
			changed := with(a, func(f *vip.Frontend) {
				f.Backends[0].Weight = 5
				f.Backends = append(f.Backends, vip.Endpoint{Addr: addrs("10.77.2.2:81")[0], Weight: 1})
			})
			c := frontend("10.96.0.3:80", vip.TCP, addrs("10.77.1.2:80")...)
			p.Put(t,
				updateOf{Key: a.Key, Old: a, New: changed},
				updateOf{Key: b.Key, Old: b},
				updateOf{Key: c.Key, New: c})
			p.Wants(t, changed, c)
		})
	}
}

// Foreign state is identical, to the byte, after everything that we do.
func TestForeignThingsStay(t *testing.T) {
	lab := netlab.New(t)
	runWith(t, lab.Director, `-A -t 10.50.0.1:80 -s sed -p 60
-a -t 10.50.0.1:80 -r 10.77.1.2:80 -m -w 3
-A -u [fd50::1]:53 -s rr
-a -u [fd50::1]:53 -r [fd77:1::2]:53 -m -w 1
-A -t 10.77.0.1:30081 -s rr
-A -f 9 -s rr
`, "ipvsadm", "-R")
	for _, cmd := range []string{
		"ip link add other0 type dummy", "ip link set other0 up", "ip addr add 10.96.0.1/32 dev other0", "ip addr add 10.50.0.1/32 dev lo",
		"nft add table inet other", "nft add chain inet other input { type filter hook input priority 0 ; }",
		"nft add rule inet other input tcp dport 9999 drop", "nft add table ip ironvip", "nft add set inet other vips4 { type ipv4_addr ; }",
	} {
		run(t, lab.Director, strings.Fields(cmd)...)
	}
	snapshot := func() string {
		var b strings.Builder
		for _, cmd := range []string{"nft list table inet other", "nft list table ip ironvip", "ip -o addr show dev other0", "ip -o addr show dev lo", "ip -o addr show dev client"} {
			b.WriteString(run(t, lab.Director, strings.Fields(cmd)...))
		}
		for line := range strings.Lines(run(t, lab.Director, "ipvsadm", "-Sn")) {
			if !strings.Contains(line, " 10.96.") && !strings.Contains(line, ":30080 ") {
				b.WriteString(line)
			}
		}
		return b.String()
	}
	before := snapshot()

	p := newPlane(t, lab.Director)
	p.Wants(t)
	all := many(20, 3)
	node := frontend("10.77.0.1:30080", vip.TCP, addrs("10.77.1.2:80")...)
	node.Kind = vip.OnHost
	all = append(all, node)
	p.Create(t, all...)
	p.Wants(t, all...)
	for _, f := range all {
		p.change(t, f, with(f, func(f *vip.Frontend) { f.Scheduler = vip.LeastConnection }))
		p.Put(t, updateOf{Key: f.Key, Old: f, New: f, Repair: true})
	}
	expect.Equal(t, snapshot(), before, "foreign things")

	// A node port that a foreign service has is a clash, and stays one.
	clash := frontend("10.77.0.1:30081", vip.TCP, addrs("10.77.1.2:80")...)
	clash.Kind = vip.OnHost
	for range 2 {
		batch := []updateOf{{Key: clash.Key, New: clash}}
		must.Succeed(t, p.Apply(t.Context(), batch))
		problem, ok := errors.AsType[vip.Problem](batch[0].Err)
		if !ok || problem.Code != vip.CodePortTaken || !strings.Contains(problem.Message, "foreign ipvs service on 10.77.0.1:30081/tcp") {
			t.Errorf("a clash gives %v", batch[0].Err)
		}
	}
	out := run(t, lab.Director, "nft", "list", "table", "inet", "ironvip")
	expect.False(t, strings.Contains(out, "30081"), "the clash left something behind:\n%s", out)
	p.Wants(t, all...)
	// Taking back what never was is no harm to it either.
	p.Put(t, updateOf{Key: clash.Key, Old: clash, Repair: true})

	for _, f := range all {
		p.remove(t, f)
	}
	p.Wants(t)
	expect.Equal(t, snapshot(), before, "foreign things")
	// When the foreign service goes, the port is free for ours.
	run(t, lab.Director, "ipvsadm", "-D", "-t", "10.77.0.1:30081")
	p.Create(t, clash)
	p.Wants(t, clash)
}

// A new agent adopts 50 services without a write, and changes one with one message. An agent that
// ends leaves everything as it is.
func TestAdopt(t *testing.T) {
	lab := netlab.New(t)
	pods := func(o *Options) {
		o.PodCIDRs = func() []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix("172.16.0.0/16")} }
	}
	p := newPlane(t, lab.Director, pods)
	all := many(50, 3)
	for i, f := range all {
		f.Masquerade = []vip.Masquerade{vip.MasqueradeAuto, vip.MasqueradeAlways, vip.MasqueradeNever}[i%3]
	}
	all = append(all,
		restricted(ranged(frontend("10.96.99.4:7000", vip.TCP, addrs("10.77.1.2:80")...), 7099, 0), "192.0.2.0/24"),
		internal(frontend("10.96.0.1:80", vip.TCP, addrs("10.77.2.2:80")...)),
		internal(ranged(frontend("[fd96::1]:1", vip.UDP, addrs("[fd77:2::2]:80")...), 65535, 0)),
		onRealServer(frontend("10.96.99.5:80", vip.TCP)), onRealServer(ranged(frontend("[fd96::5]:7000", vip.UDP), 7099, 0)))
	for _, port := range []string{"30080", "30090"} {
		f := frontend("10.77.0.1:"+port, vip.TCP, addrs("10.77.1.2:80")...)
		f.Kind = vip.OnHost
		all = append(all, f)
	}
	p.Create(t, all...)
	p.Close() // and with it the table that holds connections
	before := everything(t, lab.Director)

	q := newPlane(t, lab.Director, pods)
	l := planetest.NewLoop(t, q, -1, all...)
	<-l.Synced()
	must.Equal(t, q.writes(), 0, "writes of an adoption")
	must.Empty(t, must.Get(l.Diff(t.Context()))(t))
	l.Stop()
	q.Close()
	expect.Equal(t, everything(t, lab.Director), before, "the kernel after an adoption")
}
