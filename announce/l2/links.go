package l2

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/ironvip/ironvip/announce"
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
	s.wake.Set()
}

func interfaces(st link.State) (all []gate.Interface) {
	for _, l := range st.Links {
		if l.Ethernet {
			all = append(all, gate.Interface{Index: l.Index, Name: l.Name})
		}
	}
	return all
}

// takeLinks takes in a state. It returns true if the gate's tables must be written again. The caller
// holds mu.
func (s *Speaker) takeLinks(now time.Time, old, st link.State) (rebuild bool) {
	s.reportLinks(st)
	for _, at := range s.lans {
		again := false
		for _, l := range st.Links {
			if !at.has(l) {
				continue
			}
			was, known := find(old, l.Index)
			if was.Name != l.Name { // another interface has the name now
				was, known = link.Link{}, false
			}
			again = again || l.Usable() && (!was.Usable() || was.MAC != l.MAC)
			if !known {
				s.joins = slices.AppendSeq(s.joins, at.machine.Addrs())
			}
		}
		if again {
			at.machine.Reannounce(now)
		}
		s.block(now, at, st.Own)
	}
	return !slices.Equal(interfaces(old), interfaces(st)) || !slices.Equal(old.Own, st.Own)
}

// followLinks changes what the kernel has of interfaces that came and went.
func (s *Speaker) followLinks(ctx context.Context, old, st link.State) {
	if slices.Equal(old.Links, st.Links) {
		return
	}
	for _, l := range st.Links {
		if err := s.links.MakePolite(ctx, l); err != nil {
			s.log.Warn("keep virtual addresses out of the kernel's ARP requests", "err", err)
		}
	}
	for _, l := range old.Links {
		if _, there := find(st, l.Index); !there {
			s.groups.Forget(l.Index)
		}
	}
}

func find(st link.State, index int) (link.Link, bool) {
	i := slices.IndexFunc(st.Links, func(l link.Link) bool { return l.Index == index })
	if i < 0 {
		return link.Link{}, false
	}
	return st.Links[i], true
}

// reportLinks reports changes of the configured interfaces. The caller holds mu.
func (s *Speaker) reportLinks(st link.State) {
	names := announce.Interfaces(s.config.LANs)
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

// block gives up addresses of a LAN that another interface of this host got, and takes back those that it no
// longer has. The kernel answers for the former, whatever this process does. The caller holds mu.
func (s *Speaker) block(now time.Time, l *lan, own []netip.Addr) {
	for _, a := range own {
		if l.machine.Has(a) {
			l.machine.Release(a)
			s.own(now, l, a, false)
		}
	}
	for a := range l.blocked {
		if !slices.Contains(own, a) {
			delete(l.blocked, a)
			s.own(now, l, a, false)
		}
	}
}

// join joins the groups of queued addresses on the interfaces of their LANs, and leaves others, for a limited time.
// Announcements don't wait for it: a station that knows the address needs no group.
func (s *Speaker) join() {
	for begin := time.Now(); time.Since(begin) < joining; {
		s.mu.Lock()
		if len(s.joins) == 0 {
			s.joins = nil
			s.mu.Unlock()
			return
		}
		a := s.joins[0]
		s.joins = s.joins[1:]
		at, links := s.lanOf(a), s.state.Links
		s.mu.Unlock()
		for _, l := range links {
			if a.Is4() || !l.Ethernet {
				continue
			}
			if at == nil || !at.has(l) {
				s.groups.Leave(l.Index, a)
			} else if err := s.groups.Join(l.Index, a); err != nil && !s.warned[l.Index] {
				s.warned[l.Index] = true
				s.log.Warn("join the groups of IPv6 addresses", "interface", l.Name, "addr", a, "err", err)
			}
		}
	}
}
