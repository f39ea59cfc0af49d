package ipam

import (
	"fmt"
	"slices"

	"github.com/ironvip/ironvip/vip"
)

// unreadableLease is a resource whose lease the store can't read.
type unreadableLease struct {
	stored Lease // as the store reports it: Blocked
	known  Lease // what is known all the same: held by the services that the store names, as they last held it
}

// markUnreadable records that the store can't read the lease of r. old is the last lease that
// was known, or nil.
func (s *state) markUnreadable(r Resource, now Lease, old *Lease) {
	if former, was := s.unreadable[r]; was && old == nil {
		old = &former.known
	}
	known := Lease{Resource: r, State: Held, Holders: slices.Clone(now.Holders)}
	for i := range known.Holders {
		if old == nil || old.HeldBy(known.Holders[i].Service) < 0 {
			continue
		}
		known.Holders[i] = *old.holder(known.Holders[i].Service)
		known.Pool, known.ShareKey, known.Since = old.Pool, old.ShareKey, old.Since
	}
	s.clearUnreadable(r)
	s.unreadable[r] = unreadableLease{now, known}
	for _, h := range known.Holders {
		s.unreadableOf[h.Service] = append(s.unreadableOf[h.Service], r)
	}
}

func (s *state) clearUnreadable(r Resource) {
	for _, h := range s.unreadable[r].known.Holders {
		dropValue(s.unreadableOf, h.Service, r)
	}
	delete(s.unreadable, r)
}

func (s *state) isUnreadable(r Resource) bool {
	_, is := s.unreadable[r]
	return is
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

// current answers a service with what it has and changes nothing. That includes what the store
// can't read now, and what vanished from the store and has no other holder.
func (p *plan) current(s *vip.Service) *answer {
	w := &answer{service: s, unplanned: true}
	held, _ := p.leasesOf(s.Key)
	for _, r := range p.unreadableOf[s.Key] {
		w.unstored = append(w.unstored, p.unreadable[r].known)
	}
	for _, l := range p.vanished[s.Key] {
		if _, taken := p.lease(l.Resource); !taken && !p.isUnreadable(l.Resource) {
			w.unstored = append(w.unstored, l)
		}
	}
	held = append(held, w.unstored...)
	for _, f := range []vip.Family{vip.IPv4, vip.IPv6} {
		if of := addressesOf(held, f); len(of) > 0 {
			w.addrs = append(w.addrs, of[0].Resource)
		}
	}
	var portless []Resource // node ports whose service port isn't known
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

// unreadableProblem says that nobody can have a resource.
func unreadableProblem(r Resource, reason string) vip.Problem {
	p := vip.Problem{
		Code: vip.CodeAddressTaken, Message: fmt.Sprintf("lease of %s unreadable: %s", r, reason),
		Hint: "fix or remove that key, or request another",
	}
	if r.NodePort != 0 {
		p.Code = vip.CodePortTaken
	}
	return p
}
