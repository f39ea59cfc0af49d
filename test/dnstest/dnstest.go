// Package dnstest has what tests of DNS share: the tables that package dns reads, with short ways to fill
// them, the short form of a reply, and the run of what answers.
package dnstest

import (
	"net/netip"
	"strings"

	"github.com/miekg/dns"

	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/vip"
)

// Tables are what package dns reads. They are empty and incomplete after NewTables.
type Tables struct {
	Clock       *table.Clock
	Services    *table.Table[vip.ServiceKey, vip.Service]
	Allocations *table.Table[vip.ServiceKey, vip.Allocation]
	Leases      *table.Table[ipam.Resource, *ipam.Lease]
	Listed      func() // marks Services as complete
	Granted     func() // marks Allocations as complete
}

// NewTables returns tables of their own clock.
func NewTables() *Tables {
	clock := &table.Clock{}
	t := &Tables{Clock: clock,
		Services:    table.New(clock, vip.KeyOfService, nil),
		Allocations: table.New(clock, vip.KeyOfAllocation, nil),
		Leases:      table.New(clock, func(l **ipam.Lease) ipam.Resource { return (*l).Resource }, nil),
	}
	t.Listed, t.Granted = t.Services.Initializer(), t.Allocations.Initializer()
	return t
}

// Key parses "web" or "shop/web".
func Key(s string) vip.ServiceKey {
	k, err := vip.ParseServiceKey(s)
	if err != nil {
		panic(err)
	}
	return k
}

// Service adds or changes a service with the port http.
func (t *Tables) Service(name string, hostnames ...string) {
	t.Services.Set(vip.Service{Key: Key(name), Hostnames: vip.HostnamesOf(hostnames...), Ports: []vip.Port{{Name: "http", Protocol: vip.TCP, Port: 80}}})
}

// Allocate grants addresses to a service. Since is the age of its lease; 0 is none.
func (t *Tables) Allocate(name string, since int, vips ...string) {
	a := vip.Allocation{Asked: &vip.Service{Key: Key(name)}, Since: vip.Instant(since)}
	for _, v := range vips {
		a.VIPs = append(a.VIPs, netip.MustParseAddr(v))
	}
	t.Allocations.Set(a)
}

// Lease adds or changes a lease of services.
func (t *Tables) Lease(addr string, since int, state ipam.LeaseState, holders ...string) {
	l := &ipam.Lease{Resource: ipam.Resource{Addr: netip.MustParseAddr(addr)}, State: state, Since: vip.Instant(since)}
	for _, h := range holders {
		l.Holders = append(l.Holders, ipam.Holder{Service: Key(h)})
	}
	t.Leases.Set(l)
}

// Short returns the code of a reply and the data of the records in its answer: "NOERROR 192.0.2.10".
func Short(reply *dns.Msg) string {
	words := []string{dns.RcodeToString[reply.Rcode]}
	for _, r := range reply.Answer {
		words = append(words, strings.TrimPrefix(r.String(), r.Header().String()))
	}
	return strings.Join(words, " ")
}
