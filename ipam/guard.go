package ipam

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"go4.org/netipx"

	"github.com/ironvip/ironvip/internal/hostnet"
	"github.com/ironvip/ironvip/vip"
)

// guard is what pools must keep clear of: ranges that are in use according to the configuration or a
// source, and the host's own addresses and gateways.
type guard struct {
	used  []usedRange
	hosts map[netip.Addr]string // the use of each: "this host's own address on eth0"
	host  hostnet.Snapshot
	set   *netipx.IPSet // used and hosts
}

type usedRange struct {
	prefix netip.Prefix
	from   string // "the configuration" or "source NAME"
}

func newGuard(configured []netip.Prefix, learned map[string][]netip.Prefix, host hostnet.Snapshot) *guard {
	g := &guard{hosts: make(map[netip.Addr]string), host: host}
	var b netipx.IPSetBuilder
	add := func(p netip.Prefix, from string) {
		if p = p.Masked(); p.IsValid() {
			g.used = append(g.used, usedRange{p, from})
			b.AddPrefix(p)
		}
	}
	for _, p := range configured {
		add(p, "the configuration")
	}
	for from, prefixes := range learned {
		for _, p := range prefixes {
			add(p, "source "+from)
		}
	}
	slices.SortFunc(g.used, func(a, b usedRange) int {
		if c := a.prefix.Addr().Compare(b.prefix.Addr()); c != 0 {
			return c
		}
		if c := a.prefix.Bits() - b.prefix.Bits(); c != 0 {
			return c
		}
		return strings.Compare(a.from, b.from)
	})
	for _, a := range host.Gateways {
		g.hosts[a.Unmap().WithZone("")] = "a gateway of this host"
	}
	for _, a := range host.Addrs {
		g.hosts[a.Prefix.Addr().Unmap().WithZone("")] = "this host's own address on " + a.Link
	}
	for a := range g.hosts {
		b.Add(a)
	}
	g.set, _ = b.IPSet() // fails on invalid input only
	return g
}

// why says what an address that is held out is used for.
func (g *guard) why(a netip.Addr) (code, what string) {
	if what, ok := g.hosts[a]; ok {
		return vip.CodeAddressTaken, "it is " + what
	}
	for _, p := range g.used {
		if p.prefix.Contains(a) {
			return vip.CodeOverlap, fmt.Sprintf("it is in range %s, which %s says is in use", p.prefix, p.from)
		}
	}
	return vip.CodeOverlap, "something else has it"
}
