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

const (
	maxTargets = 1000 // SRV records of one name
	maxLookups = 8    // names of one service that are asked for at a time
)

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
	l.answered = l.answered || isAbsence(err)
	l.failures = append(l.failures, failure{name, err})
}

func isAbsence(err error) bool {
	_, is := errors.AsType[absence](err)
	return is
}

// lookup asks for the backends of a service. A name without an answer has the last good one. The backends of the last run of the
// agent stay until a name has them, or no name is without an answer of a server.
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
	found := map[string]*addresses{}
	queries, inner := parallel.NewGroup(ctx)
	queries.SetLimit(maxLookups)
	for _, target := range targets {
		if name := target.Target; found[name] == nil {
			answer := new(addresses)
			found[name] = answer
			queries.Go(func() error {
				*answer = ask.addresses(inner, name, kinds)
				return nil
			})
		}
	}
	if err := queries.Wait(); err != nil {
		l.fail(targets[0].Target, err)
		return l
	}
	known := map[string][]netip.Addr{}
	var all []backend
	last := targets[0].Priority // of the backends that are no backups: the lowest one of a target with an address
	had := slices.ContainsFunc(e.prior, func(b backend) bool { return !b.backup })
	for _, target := range targets {
		addrs, seen := known[target.Target]
		if answer := found[target.Target]; !seen {
			if addrs = answer.addrs; answer.err != nil {
				l.fail(target.Target, answer.err)
				addrs = e.known[target.Target]
			} else {
				l.answered, l.ttl = true, min(l.ttl, answer.ttl)
			}
			known[target.Target] = addrs
		}
		if len(addrs) == 0 {
			continue
		}
		if len(all) == 0 && !had {
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
	all = distinct(all)
	var prior []backend
	if slices.ContainsFunc(l.failures, func(f failure) bool { return !isAbsence(f.err) }) {
		for _, b := range e.prior {
			if _, has := slices.BinarySearchFunc(all, b, server); !has {
				prior = append(prior, b)
			}
		}
	}
	e.prior = prior
	l.backends = distinct(append(all, prior...))
	return l
}

// server compares what backends are.
func server(a, b backend) int { return cmp.Or(a.addr.Compare(b.addr), cmp.Compare(a.port, b.port)) }

// distinct returns the backends in the order of their addresses, and the first one of each server.
func distinct(all []backend) []backend {
	slices.SortStableFunc(all, server)
	return slices.CompactFunc(all, func(a, b backend) bool { return server(a, b) == 0 })
}

// targetsOf returns SRV records by their priority, then by their weight.
func targetsOf(records []dns.RR) ([]*dns.SRV, error) {
	var out []*dns.SRV
	for _, record := range records {
		if srv := record.(*dns.SRV); srv.Target != "." {
			srv.Target = dns.CanonicalName(srv.Target)
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
