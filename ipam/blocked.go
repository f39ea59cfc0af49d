package ipam

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ironvip/ironvip/vip"
)

// fencedRetry is how soon a service is asked for again that a store holds back.
const fencedRetry = 5 * time.Second

// blockage is a resource that the store can't read.
type blockage struct {
	told  Lease // as the store has it
	lease Lease // what is known of it all the same: held by those whom the store names, as they last held it
}

// block notes that the store can't read what is under the resource, of which old
// is the last that was known, or nil. The caller holds mu.
func (a *Allocator) block(r Resource, now Lease, old *Lease) {
	former, was := a.blocked[r]
	if !was || former.told.Reason != now.Reason {
		a.log.Warn("something is in the way of a lease; it is not given out", "resource", r, "reason", now.Reason, "holders", len(now.Holders))
	}
	if old == nil && was {
		old = &former.lease
	}
	known := Lease{Resource: r, State: Held, Holders: slices.Clone(now.Holders)}
	for i := range known.Holders {
		if old == nil || old.State != Held || old.HeldBy(known.Holders[i].Service) < 0 {
			continue
		}
		known.Holders[i] = *old.holder(known.Holders[i].Service)
		known.Pool, known.ShareKey, known.Since = old.Pool, old.ShareKey, old.Since
	}
	a.unblock(r)
	a.blocked[r] = blockage{now, known}
	for _, h := range known.Holders {
		a.stuck[h.Service] = append(a.stuck[h.Service], r)
	}
}

// unblock forgets that a resource was blocked. The caller holds mu.
func (a *Allocator) unblock(r Resource) {
	for _, h := range a.blocked[r].lease.Holders {
		dropValue(a.stuck, h.Service, r)
	}
	delete(a.blocked, r)
}

func (a *Allocator) isBlocked(r Resource) bool {
	_, is := a.blocked[r]
	return is
}

// stick answers for a service that holds something the store can't read: it goes
// on with what it has, and gets and gives up nothing, lest it has two of anything
// once that can be read.
func (d *draft) stick(s *vip.Service) *answer {
	w := d.holdingOf(s)
	for _, r := range d.a.stuck[s.Key] {
		w.problem(vip.Problem{
			Code:    vip.CodeWaiting,
			Message: fmt.Sprintf("the service holds %s, whose lease can't be read: %s", r, d.a.blocked[r].told.Reason),
			Hint:    "put that key right, or remove it; if a newer ironvip wrote it, bring this host up to the same release. Until then the service keeps what it has, and nothing else is given to it",
		})
	}
	return w
}

// holdingOf answers with what a service has and nothing more: also what the store
// can't read now, and what vanished from it and is nobody else's.
func (d *draft) holdingOf(s *vip.Service) *answer {
	w := &answer{service: s, stays: true}
	held, _ := d.of(s.Key)
	for _, r := range d.a.stuck[s.Key] {
		w.kept = append(w.kept, d.a.blocked[r].lease)
	}
	for _, l := range d.a.missing[s.Key] {
		if _, taken := d.lease(l.Resource); !taken && !d.a.isBlocked(l.Resource) {
			w.kept = append(w.kept, l)
		}
	}
	held = append(held, w.kept...)
	for _, f := range []vip.Family{vip.IPv4, vip.IPv6} {
		if of := addressesOf(held, f); len(of) > 0 {
			w.addrs = append(w.addrs, of[0].Resource)
		}
	}
	var unnamed []Resource // what of the service has these isn't known
	for i := range held {
		l := &held[i]
		if l.Resource.NodePort == 0 {
			continue
		}
		if k := l.holder(s.Key).Port; k != (vip.PortKey{}) {
			w.nodePort(k, l.Resource)
		} else {
			unnamed = append(unnamed, l.Resource)
		}
	}
	for _, r := range unnamed {
		if k, ok := w.guess(r); ok {
			w.nodePort(k, r)
		}
	}
	return w
}

// guess finds the one port of the service that a node port can stand for.
func (w *answer) guess(r Resource) (vip.PortKey, bool) {
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

// blockedProblem says that a resource is not to be had whoever asks.
func blockedProblem(r Resource, reason string) vip.Problem {
	p := vip.Problem{
		Code: vip.CodeAddressTaken, Message: fmt.Sprintf("%s is not given out: %s", r, reason),
		Hint: "correct or remove what is there, or request another",
	}
	if r.NodePort != 0 {
		p.Code = vip.CodePortTaken
	}
	return p
}

// refusal says why the store wrote nothing for a service, and whether that is for
// this service alone, to be asked for again soon.
func refusal(err error) (p vip.Problem, soon bool) {
	var fenced *FencedError
	switch {
	case errors.As(err, &fenced):
		return vip.Problem{Code: vip.CodeWaiting, Message: fenced.Error(), Hint: fenced.Hint}, true
	case isConflict(err):
		return vip.Problem{Code: vip.CodeWaiting, Message: fmt.Sprintf("other nodes change it at the same time: %v", err), Hint: "wait: it is tried again in some seconds"}, true
	}
	return storeProblem(err), false
}

func isFenced(err error) bool {
	fenced := (*FencedError)(nil)
	return errors.As(err, &fenced)
}
