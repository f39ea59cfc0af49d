package l2

import (
	"net/netip"
	"slices"
	"time"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/announce/l2/claim"
	"github.com/ironvip/ironvip/announce/l2/link"
)

// lan is a LAN, and what the caller owns there.
type lan struct {
	announce.LAN
	machine *claim.Machine
	blocked map[netip.Addr]struct{} // what the caller owns and another interface of this host has
}

// has reports whether an interface is one of the LAN.
func (l *lan) has(on link.Link) bool { return slices.Contains(l.Interfaces, on.Name) }

// usable reports whether frames can be sent.
func (l *lan) usable(st link.State) bool {
	return slices.ContainsFunc(st.Links, func(on link.Link) bool { return on.Usable() && l.has(on) })
}

// owned returns the addresses that the caller owns.
func (l *lan) owned() (all []netip.Addr) {
	all = slices.Collect(l.machine.Addrs())
	for a := range l.blocked {
		all = append(all, a)
	}
	return all
}

// owns reports whether the caller owns an address.
func (l *lan) owns(a netip.Addr) bool {
	_, blocked := l.blocked[a]
	return blocked || l.machine.Has(a)
}

// setLANs takes other LANs. One with the same interfaces goes on, and its addresses are not announced again. The others move to
// where they are announced now, or are released. The caller holds mu.
func (s *Speaker) setLANs(now time.Time, lans []announce.LAN) {
	former := s.lans
	s.lans = nil
	for _, as := range lans {
		i := slices.IndexFunc(former, func(l *lan) bool { return slices.Equal(l.Interfaces, as.Interfaces) })
		if i >= 0 {
			former[i].Pools, former[i].CIDRs = as.Pools, as.CIDRs
			s.lans = append(s.lans, former[i])
			continue
		}
		l := &lan{LAN: as, blocked: map[netip.Addr]struct{}{}}
		l.machine = claim.New(output{s, l})
		l.machine.SetUsable(now, !s.alive.IsZero() && l.usable(s.state))
		s.lans = append(s.lans, l)
	}
	for _, l := range former {
		for _, a := range l.owned() {
			if to := s.lanFor(a); to != l {
				contested := l.machine.Contested(a)
				s.release(l, a)
				if to != nil {
					s.own(now, to, a, contested)
				}
			}
		}
	}
}

// lanFor returns the LAN at which an address is announced; nil: none.
func (s *Speaker) lanFor(a netip.Addr) *lan {
	return s.first(func(l *lan) bool { return l.Has(a) })
}

// lanOf returns the LAN whose machine has an address; nil: none. The caller holds mu.
func (s *Speaker) lanOf(a netip.Addr) *lan {
	return s.first(func(l *lan) bool { return l.machine.Has(a) })
}

func (s *Speaker) first(is func(*lan) bool) *lan {
	if i := slices.IndexFunc(s.lans, is); i >= 0 {
		return s.lans[i]
	}
	return nil
}
