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
	Settings [sha256.Size]byte // of the session, without the password, which the connection has
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
	c = ofSession(c)
	c.Password = ""
	text, err := json.Marshal([]any{s.config.RouterID, c})
	if err != nil {
		panic("bgp: settings: " + err.Error()) // plain values
	}
	return sha256.Sum256(text)
}

// inherit gives the peers the sessions of the earlier process. A router of a range becomes a peer. The caller holds s.mu, or is
// the only one to know s.
func (s *Speaker) inherit(ranges map[string]*announce.BGPPeer) {
	for i := range s.config.Inherited {
		h := &s.config.Inherited[i]
		for name, c := range ranges {
			one := c.Of(h.Router)
			if s.peers[h.Peer] == nil && one.Name() == h.Peer && c.PeerRange.Contains(h.Router.WithZone("")) && s.digest(one) == h.Settings {
				p := newPeer(s, options{one, s.draining}, nil)
				p.of, p.inherited, h.claimed = name, h, true
				s.peers[h.Peer] = p
				s.start(p)
			}
		}
		if !h.claimed {
			s.log.Info("BGP session of the earlier process closed: the settings have changed", "peer", h.Peer)
			h.Conn.Close()
		}
	}
	s.config.Inherited = nil
}
