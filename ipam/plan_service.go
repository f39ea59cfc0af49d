package ipam

import (
	"fmt"
	"time"

	"github.com/ironvip/ironvip/vip"
)

// request is a service to plan for.
type request struct {
	service *vip.Service
	waits   bool
	frozen  time.Time
}

// service plans what one service is to hold.
func (p *plan) service(q request) *answer {
	s := q.service
	if len(p.unreadableOf[s.Key]) > 0 {
		return p.keepUnreadable(s)
	}
	p.waits, p.frozen = q.waits, q.frozen
	w := &answer{service: s}
	held, kept := p.leasesOf(s.Key)
	p.holding = resourcesOf(held)
	p.addresses(w, held, kept)
	p.nodePorts(w, held, kept)
	if p.waits && len(w.drops) > 0 {
		w.drops, w.waits = nil, true
	}
	if len(w.drops) > 0 && p.isFrozen(w) {
		w.drops = nil
	}
	return w
}

// keepUnreadable answers a service that holds a lease the store can't read. The service keeps
// what it has and gets and gives up nothing; otherwise it could have two addresses once the
// lease can be read again.
func (p *plan) keepUnreadable(s *vip.Service) *answer {
	w := p.current(s)
	for _, r := range p.unreadableOf[s.Key] {
		w.problem(vip.Problem{
			Code:    vip.CodeWaiting,
			Message: fmt.Sprintf("lease of %s unreadable: %s", r, p.unreadable[r].stored.Reason),
			Hint:    "fix or remove that key; if a newer ironvip wrote it, upgrade this host. Until then the service keeps what it has and gets nothing else",
		})
	}
	return w
}

// current answers a service with what it has and changes nothing. The answer includes leases that
// the store can't read now, and leases that vanished from the store and have no other holder.
func (p *plan) current(s *vip.Service) *answer {
	w := &answer{service: s, unplanned: true}
	held, _ := p.leasesOf(s.Key)
	for _, r := range p.unreadableOf[s.Key] {
		w.unstored = append(w.unstored, p.unreadable[r].known)
	}
	w.unstored = append(w.unstored, p.lost(s.Key)...)
	held = append(held, w.unstored...)
	for _, f := range []vip.Family{vip.IPv4, vip.IPv6} {
		if of := addressesOf(held, f); len(of) > 0 {
			w.addrs = append(w.addrs, of[0].Resource)
		}
	}
	var portless []Resource // node ports without a known service port
	for i := range held {
		l := &held[i]
		if l.Resource.NodePort == 0 {
			continue
		}
		if k := l.holder(s.Key).Port; k != (vip.PortKey{}) {
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
func (w *answer) onlyPortFor(r Resource) (vip.PortKey, bool) {
	var can []vip.PortKey
	for _, p := range wantedNodePorts(w.service) {
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
