package bfd

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/ironvip/ironvip/internal/backoff"
	"github.com/ironvip/ironvip/internal/delayqueue"
	"github.com/ironvip/ironvip/internal/parallel"
	"github.com/ironvip/ironvip/internal/wake"
)

// suspicion is how long an expired session waits for packets that the kernel has already received.
// A process that was stalled finds its timers expired and its packets unread at the same moment.
const suspicion = 3 * time.Millisecond

// Key identifies a session.
type Key struct {
	Peer netip.Addr // with a zone if it is link-local
	VRF  string     // the VRF, or another interface, to which the sockets are bound; "": none
}

// Name returns the peer, and the VRF.
func (k Key) Name() string {
	if k.VRF == "" {
		return k.Peer.String()
	}
	return k.Peer.String() + "@" + k.VRF
}

// Settings are the settings of one session. They are valid: the configuration has checked them.
type Settings struct {
	Key
	Source     netip.Addr    // this host's address; invalid: the kernel chooses
	Interval   time.Duration // of packets, in both directions
	Multiplier uint8         // missed packets until the session is down: 1 to 255
	Multihop   bool          // the peer is not directly connected: UDP port 4784 (RFC 5883)
	LeastTTL   uint8         // of the peer's packets with Multihop; others must have 255
}

// Config are the dependencies of a Speaker.
type Config struct {
	Log *slog.Logger
	// Report is called when the state of a session changes, in the order of the changes. It must
	// not block, and must not call the Speaker. May be nil.
	Report func(Status)
	// Inherited are sessions of an earlier process. The first Set of a session goes on with it until the time Until.
	Inherited []Kept
	Until     time.Time
}

// Speaker runs sessions. Create one with New and start its goroutine with Run, whose end closes its
// sockets. Its methods may be called concurrently, also before Run, and not after it.
type Speaker struct {
	Config
	net  network
	wake wake.Signal // makes the loop read the first deadline again

	mu       sync.Mutex
	sessions map[Key]*entry
	mine     map[uint32]*entry // by our discriminator
	sockets  map[socketKind]*listener
	queue    delayqueue.Queue[timerKey]
	wg       sync.WaitGroup // readers
}

// entry is a session with its sending socket.
type entry struct {
	*session
	out     sender // nil: not open
	port    uint16 // of the source, in an earlier process; 0: any
	retry   backoff.Backoff
	discard string // why a packet of the peer was discarded, "" if none was
}

// timerKey identifies a deadline. A zero session stands for the receiving sockets.
type timerKey struct {
	session uint32
	kind    timerKind
}

type timerKind uint8

const (
	timerSend timerKind = iota
	timerDetect
	timerListen // open missing sockets again
)

// listener is a receiving socket.
type listener struct {
	in    receiver // nil: not open
	err   error    // why it is not open
	retry backoff.Backoff
}

// New returns a Speaker without sessions.
func New(c Config) *Speaker { return newSpeaker(c, kernel{}) }

func newSpeaker(c Config, n network) *Speaker {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return &Speaker{Config: c, net: n, wake: wake.New(), sessions: map[Key]*entry{},
		mine: map[uint32]*entry{}, sockets: map[socketKind]*listener{}}
}

// Set adds a session or changes its settings. A change of the interval or multiplier keeps the
// session up (by a poll sequence); another change begins a new session.
func (s *Speaker) Set(c Settings) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.wake.Set()
	now := time.Now()
	if e := s.sessions[c.Key]; e != nil {
		switch {
		case e.Settings == c:
			return
		case e.Multihop == c.Multihop && e.Source == c.Source:
			e.change(c)
			s.send(now, e, false)
			return
		}
		s.remove(e)
	}
	if now.After(s.Until) {
		s.Inherited = nil
	}
	var kept Kept
	if i := slices.IndexFunc(s.Inherited, func(k Kept) bool { return k.Key == c.Key }); i >= 0 {
		kept = s.Inherited[i]
		s.Inherited = slices.Delete(s.Inherited, i, i+1)
	}
	id := cmp.Or(kept.Mine, rand.Uint32())
	for id == 0 || s.mine[id] != nil {
		id = rand.Uint32()
	}
	e := &entry{session: newSession(c, id, now), port: kept.Port, retry: newBackoff()}
	if kept.Mine == id {
		s.keep(now, e, kept)
	}
	s.sessions[c.Key], s.mine[id] = e, e
	s.listen(now, kindOf(c))
	s.send(now, e, false)
}

// Remove ends a session. It tells the peer that this is on purpose.
func (s *Speaker) Remove(k Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.sessions[k]; e != nil {
		s.remove(e)
	}
}

// Sessions returns the status of every session, by peer and VRF.
func (s *Speaker) Sessions() []Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]Status, 0, len(s.sessions))
	for _, e := range s.sessions {
		all = append(all, s.status(e))
	}
	slices.SortFunc(all, func(a, b Status) int { return cmp.Or(a.Peer.Compare(b.Peer), cmp.Compare(a.VRF, b.VRF)) })
	return all
}

// Run runs the sessions until the context ends. It then tells every peer that its session is down
// on purpose, so that a peer which honors that keeps its routes (RFC 5882, 3.2).
func (s *Speaker) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		timer.Reset(s.tick(time.Now()))
		select {
		case <-ctx.Done():
			s.stop()
			return ctx.Err()
		case <-timer.C:
		case <-s.wake:
		}
	}
}

func (s *Speaker) stop() {
	s.mu.Lock()
	for _, e := range s.sessions {
		s.remove(e)
	}
	for _, l := range s.sockets {
		if l.in != nil {
			l.in.Close()
		}
	}
	clear(s.sockets)
	s.mu.Unlock()
	s.wg.Wait()
}

// tick processes what is due and returns the time to the next deadline.
func (s *Speaker) tick(now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := range s.queue.Due(now) {
		s.queue.Drop(k)
		e := s.mine[k.session]
		switch {
		case k.kind == timerListen:
			s.listenAgain(now)
		case e == nil:
		case k.kind == timerSend:
			s.send(now, e, false)
		case k.kind == timerDetect:
			s.expire(now, e)
		}
	}
	if _, at, ok := s.queue.First(); ok {
		return at.Sub(now)
	}
	return time.Hour
}

// send sends a packet and sets the time of the next one. An error is not reported by itself: the
// session is down without packets, and then the error is its reason.
func (s *Speaker) send(now time.Time, e *entry, final bool) {
	if !final { // a reply doesn't move the periodic packets
		if wait, ok := e.interval(); ok {
			s.queue.Set(timerKey{e.mine, timerSend}, now.Add(wait))
		} else {
			s.queue.Drop(timerKey{e.mine, timerSend})
		}
	}
	var err error
	if e.out == nil {
		e.out, err = s.net.dial(e.Settings, e.port)
	}
	if err == nil {
		err = e.out.send(e.packet(final).append(make([]byte, 0, packetSize)))
	}
	if err == nil {
		e.retry.Reset()
		return
	}
	if e.out != nil { // its interface or address may have been replaced
		e.out.Close()
		e.out = nil
	}
	if e.state != Up {
		e.reason = fmt.Sprintf("send to %s: %v", e.Peer, err)
	}
	if !final {
		s.queue.Set(timerKey{e.mine, timerSend}, now.Add(e.retry.Next()))
	}
}

// expire processes the end of a detection time. It gives packets that are already in the socket's
// buffer a moment to be read.
func (s *Speaker) expire(now time.Time, e *entry) {
	if !e.suspect {
		e.suspect = true
		s.queue.Set(timerKey{e.mine, timerDetect}, now.Add(suspicion))
		return
	}
	if e.session.expire(now) {
		s.changed(now, e)
	}
}

// changed reports a change of state, and tells it the peer at once.
func (s *Speaker) changed(now time.Time, e *entry) {
	s.send(now, e, false)
	st := s.status(e)
	level := slog.LevelInfo
	if st.Failed && st.State == Down {
		level = slog.LevelWarn
	}
	s.Log.Log(context.Background(), level, "BFD session "+st.State.String(), "peer", st.Peer, "reason", st.Reason)
	if s.Report != nil {
		s.Report(st)
	}
}

func (s *Speaker) remove(e *entry) {
	delete(s.sessions, e.Key)
	delete(s.mine, e.mine)
	s.queue.Drop(timerKey{e.mine, timerSend})
	s.queue.Drop(timerKey{e.mine, timerDetect})
	if e.out != nil {
		e.set(time.Now(), AdminDown, "")
		e.diag, e.poll = DiagAdminDown, false
		b := e.packet(false).append(nil)
		for range 2 { // one may be lost
			e.out.send(b)
		}
		e.out.Close()
	}
}

func (s *Speaker) status(e *entry) Status {
	st := e.session.status()
	if l := s.sockets[kindOf(e.Settings)]; l != nil && l.err != nil && st.State != Up {
		st.Reason = l.err.Error()
	} else if e.discard != "" && st.State != Up {
		st.Reason = e.discard
	}
	return st
}

// listen opens a receiving socket if it is missing.
func (s *Speaker) listen(now time.Time, kind socketKind) {
	l := s.sockets[kind]
	if l == nil {
		l = &listener{retry: newBackoff()}
		s.sockets[kind] = l
	}
	if l.in != nil {
		return
	}
	if l.in, l.err = s.net.listen(kind); l.err != nil {
		l.in = nil
		s.queue.Hasten(timerKey{0, timerListen}, now.Add(l.retry.Next()))
		return
	}
	l.retry.Reset()
	in := l.in
	s.wg.Go(func() { s.read(kind, in) })
}

func (s *Speaker) listenAgain(now time.Time) {
	for kind := range s.sockets {
		s.listen(now, kind)
	}
}

// read receives packets until the socket is closed.
func (s *Speaker) read(kind socketKind, in receiver) {
	b := make([]byte, 256) // longer ones are cut, which parse detects
	for {
		err := parallel.Recovered(func() error {
			n, from, err := in.receive(b)
			if err == nil {
				s.receive(time.Now(), kind, from, b[:n])
			}
			return err
		})
		if err != nil {
			s.mu.Lock()
			defer s.mu.Unlock()
			in.Close()
			if l := s.sockets[kind]; l != nil && l.in == in { // not closed by stop
				l.in, l.err = nil, err
				s.queue.Hasten(timerKey{0, timerListen}, time.Now().Add(l.retry.Next()))
				s.wake.Set()
			}
			return
		}
	}
}

// receive processes a packet. A packet that doesn't pass every check changes nothing.
func (s *Speaker) receive(now time.Time, kind socketKind, from origin, b []byte) {
	p, err := parse(b)
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.sessions[Key{from.addr, kind.vrf}]
	if e == nil || kindOf(e.Settings) != kind {
		return
	}
	switch {
	case err != nil:
		e.discard = fmt.Sprintf("packets of %s discarded: %v", e.Peer, err)
		return
	case !e.Multihop && from.ttl != 255: // RFC 5881, section 5
		e.discard = fmt.Sprintf("packets of %s discarded: TTL %d, want 255: the peer is not directly connected", e.Peer, from.ttl)
		return
	case e.Multihop && from.ttl < int(e.LeastTTL): // RFC 5082
		e.discard = fmt.Sprintf("packets of %s discarded: TTL %d, want at least %d: they come from farther away", e.Peer, from.ttl, e.LeastTTL)
		return
	case p.yours != 0 && p.yours != e.mine: // of an earlier session; the peer begins anew soon
		return
	}
	e.discard = ""
	before := e.poll
	reply, changed := e.session.receive(now, p)
	if detect := e.detect(); detect > 0 {
		s.queue.Set(timerKey{e.mine, timerDetect}, now.Add(detect))
	}
	if reply {
		s.send(now, e, true)
	}
	if changed {
		s.changed(now, e)
	} else if before != e.poll {
		s.send(now, e, false) // at the new interval
	}
	s.wake.Set()
}

func newBackoff() backoff.Backoff {
	return backoff.Backoff{Lo: 100 * time.Millisecond, Hi: 2 * time.Second}
}
