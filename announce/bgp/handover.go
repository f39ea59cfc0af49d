package bgp

import (
	"crypto/sha256"
	"encoding/json"
	"net"
	"net/netip"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/announce/bgp/session"
)

// HandedOver is an established session between two processes.
type HandedOver struct {
	Peer     string // its name
	Router   netip.Addr
	Settings [sha256.Size]byte // of the session
	Kept     session.Kept
	Conn     net.Conn `json:"-"`
	Cookie   uint64   // of Conn, for the caller
	claimed  bool     // by a peer
}

// HandOver ends the speaker, and returns the sessions that can go on in the next process. The others end as for a restart.
func (s *Speaker) HandOver() []HandedOver {
	s.stop(session.ErrHandOver)
	s.Wait()
	return s.handedOver
}

// HandOver implements session.Owner.
func (p *peer) HandOver(c net.Conn, kept session.Kept) {
	s := p.speaker
	s.mu.Lock()
	defer s.mu.Unlock()
	now := p.status()
	kept.Since = now.Since
	s.handedOver = append(s.handedOver, HandedOver{Peer: now.Peer, Router: now.Address, Settings: s.digest(p.config), Kept: kept, Conn: c})
}

// digest is equal for settings of the same session. The caller holds s.mu.
func (s *Speaker) digest(c announce.BGPPeer) [sha256.Size]byte {
	text, err := json.Marshal([]any{s.config.RouterID, ofSession(c)})
	if err != nil {
		panic("bgp: settings: " + err.Error()) // plain values
	}
	return sha256.Sum256(text)
}

// inherit gives the peers the sessions of the earlier process. A router of a range becomes a peer. The caller holds
// s.mu.
func (s *Speaker) inherit(ranges map[string]*announce.BGPPeer) {
	for i := range s.config.Inherited {
		h := &s.config.Inherited[i]
		known := s.peers[h.Peer] != nil
		for name, c := range ranges {
			one := c.Of(h.Router)
			if one.Name() != h.Peer || !c.PeerRange.Contains(h.Router.WithZone("")) {
				continue
			}
			known = true
			if s.peers[h.Peer] == nil && s.digest(one) == h.Settings {
				p := newPeer(s, options{one, s.draining}, nil)
				p.of, p.inherited, h.claimed = name, h, true
				s.peers[h.Peer] = p
				s.start(p)
			}
		}
		if h.claimed {
			continue
		}
		s.log.Info("BGP session of the earlier process closed: the settings have changed", "peer", h.Peer)
		if known { // its next session has the routes that it keeps
			h.Conn.Close()
			continue
		}
		s.record.set(h.Peer, false)
		s.running.Go(func() { session.Cease(h.Conn, removed) })
	}
	s.config.Inherited = nil
}
