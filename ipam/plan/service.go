package plan

import (
	"fmt"
	"slices"
	"time"

	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/vip"
)

// Order returns the order in which services are planned: first those that request an address
// or a port by number, then those that prefer an address, so that no other service gets it automatically.
func Order(services []*vip.Service) []int {
	var order [3][]int
	for i, s := range services {
		byNumber := len(s.VIPs) > 0 || s.HealthPort.Number != 0 || slices.ContainsFunc(s.Ports, func(p vip.Port) bool { return p.NodePort.Number != 0 })
		switch {
		case byNumber:
			order[0] = append(order[0], i)
		case len(s.Preferred) > 0:
			order[1] = append(order[1], i)
		default:
			order[2] = append(order[2], i)
		}
	}
	return slices.Concat(order[:]...)
}

// Service plans what one service is to hold. With waits, the leader allocates what it lacks. Until frozen, it keeps
// what it holds as it is; zero: it need not.
func (p *Plan) Service(s *vip.Service, waits bool, frozen time.Time) *Answer {
	if p.state.unreadableOf.Any(s.Key) {
		return p.keepUnreadable(s)
	}
	p.waits, p.frozen = waits, frozen
	w := &Answer{Service: s}
	held, kept := p.leasesOf(s.Key)
	p.holding = resourcesOf(held)
	p.addresses(w, held, kept)
	p.nodePorts(w, held, kept)
	if p.waits && len(w.Drops) > 0 {
		w.Drops, w.Waits = nil, true
	}
	if len(w.Drops) > 0 && p.isFrozen(w) {
		w.Drops = nil
	}
	p.planDrops(w)
	return w
}

// keepUnreadable answers a service that holds a lease the store can't read. The service keeps
// what it has and gets and gives up nothing; otherwise it could have two addresses once the
// lease can be read again.
func (p *Plan) keepUnreadable(s *vip.Service) *Answer {
	w := p.Current(s)
	for r := range p.state.unreadableOf.Of(s.Key) {
		w.problem(vip.Problem{
			Code:    vip.CodeWaiting,
			Message: fmt.Sprintf("lease of %s unreadable: %s", r, p.state.unreadable[r].Stored.Reason),
			Hint:    "fix or remove that key; if a newer ironvip wrote it, upgrade this host. Until then the service keeps what it has and gets nothing else",
		})
	}
	return w
}

// Current answers a service with what it has and changes nothing. The answer includes leases that
// the store can't read now, and leases that vanished from the store and have no other holder.
func (p *Plan) Current(s *vip.Service) *Answer {
	w := &Answer{Service: s, Unplanned: true}
	held, _ := p.leasesOf(s.Key)
	for r := range p.state.unreadableOf.Of(s.Key) {
		w.unstored = append(w.unstored, p.state.unreadable[r].Known)
	}
	w.unstored = append(w.unstored, p.lost(s.Key)...)
	held = append(held, w.unstored...)
	for _, f := range []vip.Family{vip.IPv4, vip.IPv6} {
		if of := addressesOf(held, f); len(of) > 0 {
			w.addrs = append(w.addrs, of[0].Resource)
		}
	}
	var portless []ipam.Resource // node ports without a known service port
	for i := range held {
		l := &held[i]
		if l.Resource.NodePort == 0 {
			continue
		}
		if k := l.HolderOf(s.Key).Port; k != (vip.PortKey{}) {
			w.nodePort(k, l.Resource)
		} else {
			portless = append(portless, l.Resource)
		}
	}
	for _, r := range portless {
		if k, ok := w.onlyPortFor(r); ok {
			w.nodePort(k, r)
		}
	}
	return w
}

// onlyPortFor returns the service port that a node port must belong to, if there is only one.
func (w *Answer) onlyPortFor(r ipam.Resource) (vip.PortKey, bool) {
	var can []vip.PortKey
	for _, p := range wantedNodePorts(w.Service) {
		if _, has := w.ports[p.key]; has || p.key.Protocol != r.Protocol || !p.want.Auto && p.want.Number != r.NodePort {
			continue
		}
		if can = append(can, p.key); !p.want.Auto {
			return p.key, true
		}
	}
	if len(can) != 1 {
		return vip.PortKey{}, false
	}
	return can[0], true
}
