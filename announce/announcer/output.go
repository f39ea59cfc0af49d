package announcer

import (
	"iter"
	"net/netip"
	"slices"
	"sync"

	"github.com/ironvip/ironvip/announce"
)

// output carries the announcements of one mode out. All calls come from the announcer's goroutine.
// None may block: results come through mailbox.post.
type output interface {
	// configure starts, changes or stops the output. It is called with each change of the settings.
	configure(s *announce.Settings) error
	// set announces a VIP, or withdraws it. Probe says that no host has announced the VIP before.
	set(addr netip.Addr, here, probe bool)
	// act is called at the end of each step. Beat is set when this host is known to be well: an
	// output that would be wrong on a host that is cut off stops without it.
	act(beat bool)
	// complete is called once, when everything that was to be announced after the start is set.
	complete()
	// drain asks routers to avoid this host, or ends that.
	drain(on bool)
	// close ends the output and returns when nothing of it runs. Leave says that the host goes
	// down; otherwise the next process continues.
	close(leave bool)
}

// mailbox passes calls from other goroutines to the announcer's. It never blocks them.
type mailbox struct {
	mu    sync.Mutex
	calls []func()
	some  chan struct{}
}

func newMailbox() *mailbox { return &mailbox{some: make(chan struct{}, 1)} }

func (m *mailbox) post(call func()) {
	m.mu.Lock()
	m.calls = append(m.calls, call)
	m.mu.Unlock()
	select {
	case m.some <- struct{}{}:
	default:
	}
}

// run makes the calls that were posted.
func (m *mailbox) run() {
	m.mu.Lock()
	calls := m.calls
	m.calls = nil
	m.mu.Unlock()
	for _, call := range calls {
		call()
	}
}

// carried is a VIP that an output announces. Outputs have no copy of this set.
type carried struct {
	mode  announce.Mode
	probe bool
}

// carry passes a changed announcement to the outputs.
func (a *Announcer) carry(n announce.Announcement, gone bool) {
	here := n.Here && !gone
	former, was := a.carried[n.Addr]
	if was && (!here || former.mode != n.Mode) {
		delete(a.carried, n.Addr)
		a.stats.Transitions++
		if o := a.outputs[former.mode]; o != nil {
			o.set(n.Addr, false, false)
		}
		was = false
	}
	if here && !was {
		c := carried{n.Mode, n.New && a.born[n.Addr]}
		delete(a.born, n.Addr)
		a.carried[n.Addr] = c
		a.stats.Transitions++
		if o := a.outputs[n.Mode]; o != nil {
			o.set(n.Addr, true, c.probe)
		}
	}
}

// carries reports whether the output of a mode is to announce a VIP.
func (a *Announcer) carries(addr netip.Addr, mode announce.Mode) bool {
	c, ok := a.carried[addr]
	return ok && c.mode == mode
}

// vips yields the VIPs that the output of a mode is to announce, also for one that starts again.
func (a *Announcer) vips(mode announce.Mode) iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		for addr, c := range a.carried {
			if c.mode == mode && !yield(addr) {
				return
			}
		}
	}
}

// announces reports whether the output of a mode is to announce any VIP.
func (a *Announcer) announces(mode announce.Mode) bool {
	for range a.vips(mode) {
		return true
	}
	return false
}

// routeChanges collects the host routes to announce and to withdraw until the end of a step.
type routeChanges struct {
	add, remove []netip.Prefix
}

func (r *routeChanges) set(addr netip.Addr, here bool) {
	route := netip.PrefixFrom(addr, addr.BitLen())
	if here {
		r.add = append(r.add, route)
	} else {
		r.remove = append(r.remove, route)
	}
}

// flush passes the changes on, withdrawals first: a VIP that was withdrawn and announced again in
// one step stays announced. carried reports whether a VIP is to be announced now.
func (r *routeChanges) flush(s routeSpeaker, carried func(netip.Addr) bool) {
	if len(r.remove) > 0 {
		s.Withdraw(r.remove...)
	}
	add := slices.DeleteFunc(r.add, func(p netip.Prefix) bool { return !carried(p.Addr()) })
	if len(add) > 0 {
		s.Announce(add...)
	}
	r.drop()
}

// drop forgets the changes.
func (r *routeChanges) drop() {
	r.add, r.remove = reuse(r.add), reuse(r.remove)
}

// reuse returns an empty list with the memory of a short one.
func reuse[T any](list []T) []T {
	if cap(list) > 256 {
		return nil
	}
	return list[:0]
}

// routeSpeaker announces prefixes: bgp.Speaker and routes.Speaker.
type routeSpeaker interface {
	Announce(...netip.Prefix)
	Withdraw(...netip.Prefix)
}
