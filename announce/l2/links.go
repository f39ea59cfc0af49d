package l2

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/ironvip/ironvip/announce/l2/frame"
	"github.com/ironvip/ironvip/announce/l2/gate"
	"github.com/ironvip/ironvip/announce/l2/link"
)

// setLinks receives the states of the interfaces. It closes the gate of an interface without carrier
// at once; the loop does the rest.
func (s *Speaker) setLinks(st link.State) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state = st
	if s.gate != nil && !s.alive.IsZero() {
		_ = s.refreshGate() // it is tried again with the next refresh
	}
	s.notify()
}

func interfaces(st link.State) (all []gate.Interface) {
	for _, l := range st.Links {
		if l.Ethernet {
			all = append(all, gate.Interface{Index: l.Index, Name: l.Name})
		}
	}
	return all
}

// takeLinks takes in a state. It returns true if the gate's tables must be written again.
func (s *Speaker) takeLinks(ctx context.Context, now time.Time, st link.State) (rebuild bool) {
	old := s.seen
	s.seen = st
	s.reportLinks(st)
	if slices.Equal(old.Links, st.Links) && slices.Equal(old.Own, st.Own) {
		return false
	}
	again := false
	for _, l := range st.Links {
		was, known := find(old, l.Index)
		again = again || l.Usable() && (!was.Usable() || was.MAC != l.MAC)
		if !known {
			s.joinAll()
		}
		if err := s.links.MakePolite(ctx, l); err != nil {
			s.log.Warn("keep virtual addresses out of the kernel's ARP requests", "err", err)
		}
	}
	for _, l := range old.Links {
		if _, there := find(st, l.Index); !there {
			s.groups.Forget(l.Index)
			for on := range s.joined {
				if on.index == l.Index {
					delete(s.joined, on)
				}
			}
		}
	}
	if again {
		s.machine.Reannounce(now)
	}
	s.block(now, old.Own, st.Own)
	return !slices.Equal(interfaces(old), interfaces(st)) || !slices.Equal(old.Own, st.Own)
}

func find(st link.State, index int) (link.Link, bool) {
	i := slices.IndexFunc(st.Links, func(l link.Link) bool { return l.Index == index })
	if i < 0 {
		return link.Link{}, false
	}
	return st.Links[i], true
}

// reportLinks reports changes of the configured interfaces.
func (s *Speaker) reportLinks(st link.State) {
	s.mu.Lock()
	names := s.config.Interfaces
	s.mu.Unlock()
	for name := range s.reported {
		if !slices.Contains(names, name) {
			delete(s.reported, name)
		}
	}
	for _, name := range names {
		now, reason := LinkMissing, "no interface of this name"
		if i := slices.IndexFunc(st.Links, func(l link.Link) bool { return l.Name == name }); i >= 0 {
			switch l := st.Links[i]; {
			case !l.Ethernet:
				now, reason = LinkInvalid, "not an Ethernet interface, or without ARP"
			case !l.Carrier:
				now, reason = LinkDown, "no carrier, or set down"
			default:
				now, reason = LinkUp, ""
			}
		}
		if s.reported[name] != now {
			s.reported[name] = now
			s.report(Report{Interface: name, State: now, Reason: reason})
		}
	}
}

// block gives up addresses that another interface of this host got, and takes back those that it no
// longer has. The kernel answers for the former, whatever this process does.
func (s *Speaker) block(now time.Time, old, own []netip.Addr) {
	for _, a := range own {
		if s.machine.Has(a) {
			s.machine.Release(a)
			s.report(Report{Addr: a, State: Conflict, Reason: "another interface of this host has the address"})
		}
	}
	for _, a := range old {
		s.mu.Lock()
		_, wanted := s.wanted[a]
		s.mu.Unlock()
		if wanted && !slices.Contains(own, a) {
			s.own(now, a, false)
		}
	}
}

// joinAll queues the groups of all addresses for a new interface.
func (s *Speaker) joinAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.joins = nil
	for a := range s.wanted {
		if a.Is6() {
			s.joins = append(s.joins, a)
		}
	}
}

// join joins the groups of queued addresses on all interfaces, for a limited time. Announcements
// don't wait for it: a station that knows the address needs no group.
func (s *Speaker) join() {
	for begin := time.Now(); len(s.joins) > 0 && time.Since(begin) < joining; s.joins = s.joins[1:] {
		a := s.joins[0]
		if !s.machine.Has(a) {
			continue
		}
		for _, l := range s.seen.Links {
			s.joinOn(l, a)
		}
	}
}

func (s *Speaker) joinOn(l link.Link, a netip.Addr) {
	on := joinedOn{l.Index, a}
	if _, done := s.joined[on]; done || !l.Ethernet {
		return
	}
	if err := s.groups.Join(l.Index, frame.SolicitedNode(a)); err != nil {
		if !s.warned[l.Index] {
			s.warned[l.Index] = true
			s.log.Warn("join the groups of IPv6 addresses", "interface", l.Name, "addr", a, "err", err)
		}
		return
	}
	s.joined[on] = struct{}{}
}

// leave ends the membership in the groups of an address.
func (s *Speaker) leave(a netip.Addr) {
	for _, l := range s.seen.Links {
		on := joinedOn{l.Index, a}
		if _, done := s.joined[on]; done {
			s.groups.Leave(l.Index, frame.SolicitedNode(a))
			delete(s.joined, on)
		}
	}
}
