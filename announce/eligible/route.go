package eligible

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/vip"
)

// service is what the choice of a route depends on. A deleted service keeps its labels while it has a VIP, because the
// routes of the VIP must not change before they are withdrawn.
type service struct {
	labels map[string]string
	vips   []netip.Addr // with frontends
}

// receiveServices notes changed labels, and returns a channel that is closed when there are more changes.
func (s *Stage) receiveServices(feed *table.Feed[vip.ServiceKey, vip.Service]) <-chan struct{} {
	for {
		batch, more := feed.TryNext()
		if len(batch) == 0 {
			return more
		}
		for i := range batch {
			key, labels := batch[i].Value.Key, batch[i].Value.Labels
			of := s.services[key]
			switch {
			case batch[i].Deleted:
				s.forget(key, of)
			case of == nil && len(labels) > 0:
				s.services[key] = &service{labels: labels}
			case of != nil && !maps.Equal(of.labels, labels):
				of.labels = labels
				for _, addr := range of.vips {
					s.changed[addr] = struct{}{}
				}
			}
		}
	}
}

// join notes that a service has frontends on a VIP.
func (s *Stage) join(key vip.ServiceKey, addr netip.Addr) {
	of := s.services[key]
	if of == nil {
		of = &service{}
		s.services[key] = of
	}
	if !slices.Contains(of.vips, addr) {
		of.vips = append(of.vips, addr)
	}
}

// leave notes that a service has one frontend fewer on a VIP. Others are those that the VIP still has.
func (s *Stage) leave(key vip.ServiceKey, addr netip.Addr, others []frontend) {
	for _, f := range others {
		if f.service == key {
			return
		}
	}
	of := s.services[key]
	of.vips = slices.DeleteFunc(of.vips, func(a netip.Addr) bool { return a == addr })
	if _, _, exists := s.Services.Get(key); !exists || len(of.labels) == 0 {
		s.forget(key, of)
	}
}

// forget removes a service that has no VIP.
func (s *Stage) forget(key vip.ServiceKey, of *service) {
	if of != nil && len(of.vips) == 0 {
		delete(s.services, key)
	}
}

// route returns what the routes of a VIP carry. It costs O(frontends of the VIP x rules of its pool).
func (s *Stage) route(addr netip.Addr, pool *announce.Pool, of []frontend) (r announce.Route) {
	c := &pool.Routes
	p := announce.RoutePolicy{RouteKeys: c.RouteKeys, From: c.From}
	if i := slices.IndexFunc(c.Aggregates, func(a netip.Prefix) bool { return a.Contains(addr) }); i >= 0 {
		all := p
		all.LinkBandwidth = announce.LinkBandwidthOff // it has no backends of its own
		p.Aggregate, p.Aggregated = c.Aggregates[i], all.Text()
	}
	for i := range c.Rules {
		if rule := &c.Rules[i]; s.selects(rule, of) {
			p.RouteKeys, p.From = rule.RouteKeys.Or(p.RouteKeys), rule.From
			break
		}
	}
	if c.From != "" {
		r.Policy = p.Text()
	}
	if p.LinkBandwidth == announce.LinkBandwidthBackends || p.LinkBandwidth == "" && c.CountsBackends {
		r.Backends = usableBackends(of)
	}
	return r
}

// selects reports whether a rule selects one of the services of a VIP.
func (s *Stage) selects(rule *announce.RouteRule, of []frontend) bool {
	for _, f := range of {
		if rule.Selects(f.service, s.services[f.service].labels) {
			return true
		}
	}
	return false
}

// usableBackends returns how many backends of a VIP are usable on this host: for each of its services that of the
// frontend with the most, because the ports of a service usually have the same backends.
func usableBackends(of []frontend) (sum int) {
	most := map[vip.ServiceKey]int{}
	for _, f := range of {
		if f.problem == "" && f.usable > most[f.service] {
			sum += f.usable - most[f.service]
			most[f.service] = f.usable
		}
	}
	return sum
}
