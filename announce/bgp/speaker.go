package bgp

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/announce/bgp/message"
	"github.com/ironvip/ironvip/announce/bgp/session"
	"github.com/ironvip/ironvip/announce/bgp/transport"
)

// Speaker announces prefixes to peers, from New to the end of its context. Its methods may be called
// concurrently.
type Speaker struct {
	routes session.LocRIB
	record *record
	dial   dialer
	log    *slog.Logger
	notify func(Session) // may be nil

	mu         sync.Mutex
	config     Config
	draining   bool
	peers      map[string]*peer // by name
	handedOver []HandedOver
	refused    refusals
	listeners  map[transport.Endpoint]*listener
	ctx        context.Context
	stop       context.CancelCauseFunc
	running    sync.WaitGroup // peers
}

// New returns a Speaker that announces the routes of a table. A peer that kept routes of an earlier run
// removes those that are not in the table when it is ready.
//
// At the end of the context, the sessions are closed as for a restart of this process: peers with graceful
// restart keep the routes for the restart time. To end for good, call Shutdown first.
func New(ctx context.Context, c Config, routes session.LocRIB) *Speaker {
	return newSpeaker(ctx, c, routes, transport.Dial)
}

func newSpeaker(ctx context.Context, c Config, routes session.LocRIB, d dialer) *Speaker {
	log := cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	s := &Speaker{routes: routes, dial: d, peers: map[string]*peer{}, listeners: map[transport.Endpoint]*listener{}, config: c, log: log, notify: c.Report, record: openRecord(c.Record, log)}
	s.ctx, s.stop = context.WithCancelCause(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.apply()
	return s
}

// Drain adds the community GRACEFUL_SHUTDOWN to all routes, or removes it (RFC 8326). Routers then
// prefer other hosts, and still forward what arrives meanwhile.
func (s *Speaker) Drain(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draining = on
	for _, p := range s.peers {
		p.setOptions(options{p.options().BGPPeer, on})
	}
}

// PathDown ends the session with a peer at once, because BFD reports that the path has failed. The
// reason is shown to operators. The speaker tries to connect again, with its usual pauses: BFD may
// have ended for good on the router.
func (s *Speaker) PathDown(peer, reason string) {
	s.mu.Lock()
	p := s.peers[peer]
	s.mu.Unlock()
	if p != nil {
		p.endSession(&message.Notification{Code: message.CodeCease, Subcode: message.CeaseBFD, Text: reason})
	}
}

// Sessions returns the state of every peer, by name.
func (s *Speaker) Sessions() []Session {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]Session, 0, len(s.peers))
	for _, name := range slices.Sorted(maps.Keys(s.peers)) {
		now := s.peers[name].status()
		if s.peers[name].of == "" || now.State != session.Active { // else it may be anything in the range
			all = append(all, now)
		}
	}
	return all
}

// Reconfigure replaces the settings. Sessions of peers with the same settings go on, also if only
// those of the routes differ. Log, Report and Record are those of New.
func (s *Speaker) Reconfigure(c Config) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.RouterID != s.config.RouterID { // it is in the OPEN
		for name, p := range s.peers {
			p.cancel(&message.Notification{Code: message.CodeCease, Subcode: message.CeaseConfigChange, Text: "configuration changed"})
			delete(s.peers, name)
		}
	}
	s.config = c
	s.apply()
}

// apply starts, changes and ends peers according to the settings. The caller holds s.mu.
func (s *Speaker) apply() {
	wanted := map[string]bool{}
	ranges := map[string]*announce.BGPPeer{}
	for i, c := range s.config.Peers {
		if c.PeerRange.IsValid() {
			ranges[c.Name()] = &s.config.Peers[i]
			continue
		}
		name, o := c.Name(), options{c, s.draining}
		wanted[name] = true
		p := s.peers[name]
		if p != nil && p.of == "" && sameSession(p.config, c) {
			p.setOptions(o)
			continue
		}
		var previous *peer
		if p != nil {
			previous = p
			p.cancel(&message.Notification{Code: message.CodeCease, Subcode: message.CeaseConfigChange, Text: "configuration changed"})
		}
		p = newPeer(s, o, previous)
		for i := range s.config.Inherited {
			if h := &s.config.Inherited[i]; h.Peer == name && h.Settings == s.digest(c) {
				p.inherited, h.claimed = h, true
			}
		}
		s.peers[name] = p
		s.start(p)
	}
	for name, p := range s.peers {
		if c := ranges[p.of]; c != nil && !wanted[name] && sameSession(p.config, c.Of(p.config.Peer)) {
			p.setOptions(options{c.Of(p.config.Peer), s.draining})
		} else if !wanted[name] {
			p.cancel(&message.Notification{Code: message.CodeCease, Subcode: message.CeaseDeconfigured, Text: removed})
			delete(s.peers, name)
		}
	}
	s.inherit(ranges)
	s.listen()
}

const removed = "the peer was removed from the configuration"

func (s *Speaker) start(p *peer) {
	ctx, cancel := context.WithCancelCause(s.ctx)
	p.cancel = cancel
	s.running.Go(func() {
		defer cancel(nil)
		defer close(p.done)
		if p.previous != nil { // one connection for each peer
			<-p.previous.done
			p.previous = nil
		}
		p.run(ctx)
	})
}

// Wait waits until the speaker and all of its sessions have ended.
func (s *Speaker) Wait() {
	<-s.ctx.Done()
	s.running.Wait()
}

// Shutdown ends every session for good: peers remove the routes at once. Wait returns when that is
// done. Before it, Drain and a pause let traffic move without loss.
func (s *Speaker) Shutdown() {
	s.stop(&message.Notification{Code: message.CodeCease, Subcode: message.CeaseShutdown, Text: "this host has shut the session down"})
}

// report passes a state on.
func (s *Speaker) report(p *peer, now Session) {
	level := slog.LevelDebug
	p.mu.Lock()
	switch {
	case now.State == session.Established:
		level, p.reported = slog.LevelInfo, ""
	case (now.State == session.Idle || now.State == session.Active) && now.Reason != p.reported:
		level, p.reported = slog.LevelWarn, now.Reason
	}
	p.mu.Unlock()
	s.log.Log(context.Background(), level, "BGP session "+now.State.String(), "peer", now.Peer, "reason", now.Reason)
	s.tell(now)
}

func (s *Speaker) tell(now Session) {
	if s.notify != nil {
		s.notify(now)
	}
}

// connectTimeout bounds one attempt to connect. Neighbor resolution fails within about 3 s, so a
// longer silence of a router on the link isn't a missing host.
const connectTimeout = 5 * time.Second
