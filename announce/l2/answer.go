package l2

import (
	"fmt"

	"github.com/ironvip/ironvip/announce/l2/claim"
	"github.com/ironvip/ironvip/announce/l2/frame"
	"github.com/ironvip/ironvip/announce/l2/link"
)

// receiveARP reads ARP until Close.
func (s *Speaker) receiveARP() error {
	err := s.arp.Receive(func(index int, b []byte) {
		for _, c := range frame.ARPClaims(b) {
			s.take(index, c)
		}
	})
	return fmt.Errorf("receive ARP: %w", err)
}

// receiveND reads neighbor discovery until Close.
func (s *Speaker) receiveND() error {
	err := s.nd.Receive(func(index int, b []byte) { s.take(index, frame.NDPClaim(b)) })
	return fmt.Errorf("receive neighbor discovery: %w", err)
}

// take answers a question for an address that this host owns, and keeps for the loop what others
// claim.
func (s *Speaker) take(index int, c frame.Claim) {
	if c.Kind == frame.None {
		return
	}
	l, answer := s.observe(index, c)
	if !answer {
		return
	}
	var room [128]byte
	// The asker repeats a question without an answer. The gate drops this one if the dead-man switch
	// has closed it in the meantime.
	if err := s.socket(c.Addr).Send(l.Index, frame.AppendAnswer(room[:0], l.MAC, c)); err != nil {
		s.log.Debug("answer a question for an address", "addr", c.Addr, "interface", l.Name, "err", err)
	}
}

// observe returns the interface and true if the host is to answer.
func (s *Speaker) observe(index int, c frame.Claim) (on link.Link, answer bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := s.lanOf(c.Addr)
	if at == nil {
		return on, false
	}
	for _, l := range s.state.Links {
		if l.MAC == c.From {
			return on, false // this host's own, on a LAN with two of its interfaces
		}
		if l.Index == index && at.has(l) {
			on = l
		}
	}
	if !on.Usable() {
		return on, false
	}
	if c.Kind != frame.Question {
		if old := s.observed[c.Addr]; old.kind != frame.Holds || c.Kind == frame.Holds {
			s.observed[c.Addr] = observation{kind: c.Kind, from: claim.Rival{MAC: c.From, Link: index}}
			s.wake.Set()
		}
	}
	return on, c.Kind != frame.Holds && s.gate.Owns(c.Addr) && s.isAlive()
}
