//go:build long

package nft

import (
	"fmt"
	"math"
	"math/bits"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/ironvip/ironvip/plane/kernel/usage"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/planetest"
	"github.com/ironvip/ironvip/vip"
)

var stormPods = []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd01::/64")}

// drawWish draws a frontend of any kind, at one of a few keys. Its backends are in and out of the pod ranges and
// shared between frontends.
func drawWish(t *rapid.T) *vip.Frontend {
	key := rapid.SampledFrom([]vip.FrontendKey{
		{Addr: netip.MustParseAddr("10.96.0.1"), Port: 80, Protocol: vip.TCP}, {Addr: netip.MustParseAddr("10.96.0.1"), Port: 53, Protocol: vip.UDP},
		{Addr: netip.MustParseAddr("10.96.0.2"), Port: 80, Protocol: vip.TCP}, {Addr: netip.MustParseAddr("fd96::1"), Port: 80, Protocol: vip.TCP},
		{Addr: netip.MustParseAddr("10.77.0.1"), Port: 30080, Protocol: vip.TCP},
	}).Draw(t, "key")
	f := &vip.Frontend{Key: key, Kind: vip.OnVIP}
	f.Scheduler = rapid.SampledFrom(Schedulers()).Draw(t, "scheduler")
	f.SchedulerPort = choiceOf(f) == chooseBySource && rapid.Bool().Draw(t, "port")
	f.Masquerade = rapid.SampledFrom([]vip.Masquerade{vip.MasqueradeAuto, vip.MasqueradeAlways, vip.MasqueradeNever, vip.MasqueradeOwn}).Draw(t, "masquerade")
	f.Affinity = rapid.SampledFrom([]time.Duration{0, 0, time.Minute, time.Hour}).Draw(t, "affinity")
	f.MaxRatePerSource = rapid.SampledFrom([]uint16{0, 0, math.MaxUint16}).Draw(t, "rate of a client")
	if !owns(key.Addr) {
		f.Kind = vip.OnHost
	} else {
		f.Key.Audience = rapid.SampledFrom([]vip.Audience{vip.Everyone, vip.Everyone, vip.InternalClients}).Draw(t, "audience")
		if rapid.IntRange(0, 3).Draw(t, "ranged") == 0 {
			f.Key.Port, f.Key.LastPort = rapid.SampledFrom([]uint16{80, 90}).Draw(t, "first port"), rapid.SampledFrom([]uint16{95, 100}).Draw(t, "last port")
		}
	}
	backends := []string{"10.1.0.1:80", "10.1.0.1:81", "10.1.0.2:80", "10.1.0.3:80", "10.9.0.1:80"}
	sources := []string{"10.1.0.0/24", "10.2.0.0/16", "192.0.2.7/32"}
	if key.Addr.Is6() {
		backends, sources = []string{"[fd01::1]:80", "[fd01::2]:80", "[fd09::1]:80"}, []string{"fd01::/64", "fd02::7/128"}
	}
	if f.Kind == vip.OnVIP && rapid.IntRange(0, 2).Draw(t, "restricted") == 0 {
		for _, s := range sources[:rapid.IntRange(1, len(sources)).Draw(t, "source ranges")] {
			f.SourceRanges = append(f.SourceRanges, netip.MustParsePrefix(s))
		}
	}
	f.SynProxy = key.Protocol == vip.TCP && !f.Key.Ranged() && len(f.SourceRanges) == 0 && rapid.Bool().Draw(t, "SYN proxy")
	keepPort := f.Key.Ranged() && rapid.Bool().Draw(t, "keep port")
	for _, b := range backends {
		a := netip.MustParseAddrPort(b)
		if keepPort {
			a = netip.AddrPortFrom(a.Addr(), 0)
		}
		weight := rapid.SampledFrom([]int{-1, -1, 0, 1, 1, 2, 3, 2000}).Draw(t, "weight")
		if weight >= 0 && !usage.HasBackend(f, a) {
			f.Backends = append(f.Backends, vip.Endpoint{Addr: a, Weight: uint16(weight)})
		}
	}
	slices.SortFunc(f.Backends, vip.CompareEndpoints)
	return f
}

// meaning returns what the nft program lists of the table, in the terms of frontends instead of numbers, sorted: two tables
// with the same meaning treat packets in the same way. Chains that no service uses are left out, and clients.
func meaning(t *testing.T, node *netlab.Node) (all []string) {
	t.Helper()
	sets := planetest.Sets(t, node, DefaultTable)
	swapped := func(text string) uint32 { // nft takes words in concatenations for numbers in host order
		text, _, _ = strings.Cut(text, "-")
		n := must.Get(strconv.ParseUint(text, 10, 32))(t)
		return bits.ReverseBytes32(uint32(n))
	}
	number := func(text string) uint32 { return bits.ReverseBytes32(swapped(text)) }
	classes, services, members := map[setID]map[uint32]string{}, map[uint32]string{}, map[uint32]string{}
	hashes, used := map[uint32]bool{}, map[string]bool{}
	for name, elements := range sets {
		switch id := setsByName[name]; {
		case id.kind == kindClasses && id != setID{}:
			classes[id] = map[uint32]string{}
			for _, e := range elements {
				classes[id][number(e.Key)>>shiftClass] = e.Value
			}
		case id.kind == kindMembers:
			for _, e := range elements {
				m, rest, _ := strings.Cut(e.Key, " ")
				members[swapped(m)] = rest + " " + e.Value
			}
		}
	}
	add := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	for name, elements := range sets {
		if id, own := setsByName[name]; own && id.kind == kindServices {
			for _, e := range elements {
				both := number(e.Value)
				chain := classes[setID{kindClasses, 0, id.origin, 0}][both>>shiftClass]
				services[both&maskNumber] = name + " " + e.Key
				c, _ := classOf(chain, id.origin)
				hashes[both&maskNumber], used[chain] = c.choice.hashes(), true
				add("%s %s: %s", name, e.Key, chain)
			}
		}
	}
	service := func(text string) string { return services[swapped(text)] }
	for name, elements := range sets {
		id, own := setsByName[name]
		for _, e := range elements {
			first, rest, _ := strings.Cut(e.Key, " ")
			switch {
			case !own:
				add("%s %s: %s", name, e.Key, e.Value)
			case id.kind == kindSlots || id.kind == kindChoices:
				slot, value := "any", e.Value
				if hashes[swapped(first)] {
					slot = rest
				}
				if id.kind == kindChoices {
					_, value, _ = strings.Cut(members[number(e.Value)], " ")
				}
				add("slot %s of %s: %s", slot, service(first), value)
			case id.kind == kindMembers:
				of, _, _ := strings.Cut(rest, " ")
				add("member of %s: %s", service(of), e.Value)
			case id.kind == kindWeights || id.kind == kindSources:
				add("%s of %s: %s %s", name, service(first), rest, e.Value)
			}
		}
	}
	var chain []string
	text := node.For(t).Run("nft", "list", "table", "inet", DefaultTable)
	for line := range strings.Lines(text) {
		name, begins := strings.CutPrefix(line, "\tchain ")
		if begins || len(chain) > 0 {
			chain = append(chain, line)
		}
		if begins {
			name, _, _ = strings.Cut(name, " ")
			if isClassChain(name) && !used[name] {
				chain = nil
			}
		}
		if line == "\t}\n" && len(chain) > 0 {
			add("%s", strings.Join(chain, ""))
			chain = nil
		}
	}
	slices.Sort(all)
	return all
}

// Frontends change, other programs change our objects, and agents are killed at any write. After each event, the table is
// what a new agent would make on a new host, the state of other programs is the same to the byte, and connections of other
// services go on.
func TestStormOnKernel(t *testing.T) {
	need.Root(t)
	need.Program(t, "nft")
	open := func(t *testing.T, node *netlab.Node) *planeIn {
		return newPlane(t, node, func(o *Options) { o.PodCIDRs = func() []netip.Prefix { return stormPods } })
	}
	var fresh *netlab.Node
	var held []*netlab.Conn
	var stays []*vip.Frontend
	var before map[string]string
	foreign := func(t *testing.T, node *netlab.Node) map[string]string {
		return planetest.Foreign(planetest.State(t, node), func(_, line string) bool { return false })
	}
	check := func(t *testing.T, lab *netlab.Lab, want []vip.Frontend) {
		t.Helper()
		planetest.SameState(t, "it", foreign(t, lab.Director), before)
		for i, f := range stays {
			expect.Equal(t, must.Get(held[i].Ask())(t).Name, "backend1", "an open connection of %s", f.Key)
			expect.Equal(t, must.Get(lab.Client.Ask("tcp", f.Key.AddrPort()))(t).Name, "backend1", "a new connection of %s", f.Key)
		}
		p := open(t, fresh)
		defer p.Close()
		all := make([]*vip.Frontend, 0, len(want))
		for i := range want {
			all = append(all, &want[i])
		}
		p.Create(t, all...)
		expect.NoDiff(t, cmp.Diff(meaning(t, fresh), meaning(t, lab.Director)), "the table (-new +actual)")
		fresh.For(t).Run("nft", "delete", "table", "inet", DefaultTable)
		fresh.For(t).Run("ip", "link", "del", DefaultDevice)
		open(t, lab.Director).Wants(t, all...)
	}
	storms := planetest.Storms{
		Count: 3,
		Open: func(t *testing.T, node *netlab.Node) (reconcile.Plane, *planetest.Plane) {
			p := open(t, node)
			return p, p.Plane
		},
		Draw: drawWish,
		Hands: map[string]bool{
			"nft flush ruleset": true, "nft delete table inet ironvip_nft": true, "nft flush table inet ironvip_nft": false,
			"nft flush map inet ironvip_nft services4_" + originOf(vip.FrontendKey{Addr: netip.MustParseAddr("10.96.0.1"), Port: 80, Protocol: vip.TCP}).String(): true,
			"nft flush map inet ironvip_nft services4_ranges": true, "nft flush map inet ironvip_nft members4": true, "nft flush map inet ironvip_nft weights4": true,
			"nft flush set inet ironvip_nft allowed4": true, "nft flush map inet ironvip_nft shards": false, "nft flush set inet ironvip_nft vips4": false,
			"nft flush set inet ironvip_nft pods4": false, "nft flush set inet ironvip_nft hairpin4": false, "nft flush chain inet ironvip_nft arriving": false,
			"nft insert rule inet ironvip_nft arriving accept": false, "nft add element inet ironvip_nft vips4 { 10.96.9.9 }": false,
			"nft add element inet ironvip_nft members4 { 1 . 1 : 10.1.0.1 . 80 }": false,
			"ip link del ironvip0": false, "ip link set ironvip0 down": false, "ip route flush table local dev ironvip0": false, "ip -6 route flush table local proto 178": false, "ip addr flush dev ironvip0": false,
		},
		Begin: func(t *testing.T, lab *netlab.Lab) []*vip.Frontend {
			fresh = lab.AddClient("fresh")
			planetest.MoveIn(t, lab.Director, "bridge")
			w := &world{Lab: lab, t: t}
			stays, held = nil, nil
			for _, addr := range []string{"10.96.1.1", "fd96::1:1"} {
				f := frontend(addr, 80, vip.TCP, w.servers("tcp", addr != "10.96.1.1", 0)[0])
				stays = append(stays, &f)
			}
			p := open(t, lab.Director)
			p.Create(t, stays...)
			p.Close()
			for _, f := range stays {
				c := must.Get(lab.Client.Dial("tcp", f.Key.AddrPort()))(t)
				t.Cleanup(func() { c.Close() })
				held = append(held, c)
			}
			before = foreign(t, lab.Director)
			return stays
		},
		Restore: func(t *testing.T, lab *netlab.Lab, hand string) {
			if hand == "nft flush ruleset" {
				planetest.AddNeighborRules(t, lab.Director)
			}
		},
		Check: check,
		End:   check,
	}
	storms.Run(t)
}
