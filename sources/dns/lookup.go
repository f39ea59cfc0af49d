package dns

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"

	"github.com/ironvip/ironvip/internal/parallel"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

// maxTargets is the largest number of SRV records of one name.
const maxTargets = 1000

// backend is a backend as the records state it.
type backend struct {
	addr   netip.Addr
	port   uint16 // 0: that of the service
	weight int    // 0: the default
	backup bool
}

// lookup is the result of all queries for one service.
type lookup struct {
	backends []backend // sorted; nil: those of the last lookup
	ttl      uint32    // the shortest time of validity in seconds
	answered bool      // some server has answered
	failures []failure
}

// failure is why a name has no answer. Its last good one is used.
type failure struct {
	name string
	err  error
}

func (l *lookup) fail(name string, err error) {
	_, absent := errors.AsType[absence](err)
	l.answered = l.answered || absent
	l.failures = append(l.failures, failure{name, err})
}

// lookup asks for the backends of a service. A name without an answer has the last good one, and those of the last run of the
// agent stay until each name was answered once.
func (e *entry) lookup(ctx context.Context, ask *resolver, pools []spec.Pool) (l lookup) {
	l.ttl = maxTTL
	targets := []*dns.SRV{{Target: e.Host}}
	if e.SRV != "" {
		records, ttl, err := ask.records(ctx, e.SRV, dns.TypeSRV)
		if err == nil {
			targets, err = targetsOf(records)
		}
		if err != nil {
			l.fail(e.SRV, err)
			return l
		}
		l.answered, l.ttl = true, min(l.ttl, ttl)
	}
	kinds := e.kinds(pools)
	found := make([]addresses, len(targets))
	queries, inner := parallel.NewGroup(ctx)
	queries.SetLimit(maxQueries)
	for i, target := range targets {
		queries.Go(func() error {
			found[i] = ask.addresses(inner, target.Target, kinds)
			return nil
		})
	}
	if err := queries.Wait(); err != nil {
		l.fail(targets[0].Target, err)
		return l
	}
	known := map[string][]netip.Addr{}
	var all []backend
	var last uint16 // the priority of the backends that are no backups
	for i, target := range targets {
		addrs := found[i].addrs
		if err := found[i].err; err != nil {
			l.fail(target.Target, err)
			addrs = e.known[target.Target]
		} else {
			l.answered, l.ttl = true, min(l.ttl, found[i].ttl)
		}
		if len(addrs) == 0 {
			continue
		}
		if known[target.Target] = addrs; len(all) == 0 {
			last = target.Priority
		}
		for _, addr := range addrs {
			b := backend{addr: addr, port: target.Port, backup: target.Priority > last}
			if e.SRV != "" {
				b.weight = max(1, int(target.Weight)) // 0 is a small share in DNS, and no traffic here
			}
			all = append(all, b)
		}
		if len(all) > spec.MaxBackends {
			l.fail(target.Target, fmt.Errorf("the records have more than %d addresses", spec.MaxBackends))
			return l
		}
	}
	e.known = known
	if len(l.failures) == 0 {
		e.prior = nil
	}
	l.backends = distinct(append(all, e.prior...))
	return l
}

// distinct returns the backends in the order of their addresses, and the first one of each server.
func distinct(all []backend) []backend {
	server := func(a, b backend) int { return cmp.Or(a.addr.Compare(b.addr), cmp.Compare(a.port, b.port)) }
	slices.SortStableFunc(all, server)
	return slices.CompactFunc(all, func(a, b backend) bool { return server(a, b) == 0 })
}

// targetsOf returns SRV records by their priority, then by their weight.
func targetsOf(records []dns.RR) ([]*dns.SRV, error) {
	var out []*dns.SRV
	for _, record := range records {
		if srv := record.(*dns.SRV); srv.Target != "." {
			out = append(out, srv)
		}
	}
	switch {
	case len(out) == 0:
		return nil, absence(`the service is not available there (its target is ".")`)
	case len(out) > maxTargets:
		return nil, absence(fmt.Sprintf("%d SRV records are more than %d", len(out), maxTargets))
	}
	slices.SortFunc(out, func(a, b *dns.SRV) int {
		return cmp.Or(cmp.Compare(a.Priority, b.Priority), cmp.Compare(b.Weight, a.Weight), cmp.Compare(a.Target, b.Target), cmp.Compare(a.Port, b.Port))
	})
	for _, srv := range out {
		srv.Target = dns.CanonicalName(srv.Target)
	}
	return out, nil
}

// kinds returns the types of address records that the service's VIPs can be balanced to.
func (e *entry) kinds(pools []spec.Pool) (out []uint16) {
	families := e.plain.Families.List()
	for _, addr := range e.plain.VIPs {
		families = append(families, vip.FamilyOf(addr))
	}
	if len(families) == 0 {
		families = spec.PoolFamilies(&e.Service.Service, pools)
	}
	if len(families) == 0 || slices.Contains(families, vip.IPv4) {
		out = append(out, dns.TypeA)
	}
	if len(families) == 0 || slices.Contains(families, vip.IPv6) {
		out = append(out, dns.TypeAAAA)
	}
	return out
}

// addresses are those of a name, of all types of records.
type addresses struct {
	addrs []netip.Addr
	ttl   uint32
	err   error
}

// addresses asks for the addresses of a name. A type without records is no failure if another one has some.
func (r *resolver) addresses(ctx context.Context, name string, kinds []uint16) addresses {
	out := addresses{ttl: maxTTL}
	var missing []string
	for _, kind := range kinds {
		records, ttl, err := r.records(ctx, name, kind)
		if _, absent := errors.AsType[absence](err); absent {
			missing = append(missing, err.Error())
			continue
		}
		if err != nil {
			return addresses{err: err}
		}
		out.ttl = min(out.ttl, ttl)
		for _, record := range records {
			var raw []byte
			switch a := record.(type) {
			case *dns.A:
				raw = a.A.To4()
			case *dns.AAAA:
				raw = a.AAAA.To16()
			}
			if addr, ok := netip.AddrFromSlice(raw); ok {
				out.addrs = append(out.addrs, addr.Unmap())
			}
		}
	}
	if len(out.addrs) == 0 {
		out.err = absence(strings.Join(slices.Compact(missing), ", "))
	}
	return out
}
