package bgp

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ironvip/ironvip/internal/table"
)

const (
	// openTimeout bounds the wait for the router's OPEN. RFC 4271 suggests 4 minutes; routers
	// answer at once, or not at all.
	openTimeout = 30 * time.Second
	// sendTimeout bounds a write without a hold timer (RFC 9687, section 4).
	sendTimeout = 8 * time.Minute
	// goodbye bounds the delivery of a NOTIFICATION.
	goodbye = time.Second
)

// session is one connection. One goroutine writes (run), another one reads.
type session struct {
	peer      *peer
	conn      net.Conn
	reader    *bufio.Reader
	buf       [maxMessage]byte // of the reader
	restarted bool             // for the OPEN
	hold      time.Duration    // negotiated; 0: none
	remote    open
	families  [families]bool // negotiated
	upSince   time.Time      // zero: was not established

	opt       options
	nextHop   [families]netip.Addr
	enc       *encoder
	out       []byte // messages to be sent
	refreshed [families]atomic.Bool
	refresh   chan struct{} // a family is to be sent again
	reading   chan struct{} // closed at the end of the reading goroutine; nil before its start
	torn      bool          // a write ended in the middle of a message
}

func newSession(p *peer, c net.Conn, restarted bool) *session {
	return &session{peer: p, conn: c, reader: bufio.NewReaderSize(c, maxMessage), restarted: restarted, refresh: make(chan struct{}, 1)}
}

// run runs the session and closes the connection. It returns why the session ended.
func (s *session) run(ctx context.Context) error {
	release := interrupt(ctx, s.conn.SetDeadline)
	err := s.handshake()
	release()
	if err == nil && ctx.Err() == nil {
		release = interrupt(ctx, s.conn.SetWriteDeadline)
		err = s.established(ctx)
		release()
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return s.close(err)
}

// interrupt ends blocked calls at the end of the context. The returned function waits until no more
// deadline is set.
func interrupt(ctx context.Context, setDeadline func(time.Time) error) (release func()) {
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(done)
		setDeadline(time.Unix(1, 0))
	})
	return func() {
		if !stop() {
			<-done
		}
	}
}

// close ends the connection, with a NOTIFICATION if err has one, and returns err in words.
func (s *session) close(err error) error {
	var n *notification
	var closed *closedByPeer
	switch {
	case errors.As(err, &n):
	case errors.Is(err, errRestart) && !(s.peer.restart > 0 && s.remote.restart):
		n = &notification{code: codeCease, subcode: ceaseShutdown, text: "this host restarts"}
	}
	if n != nil || errors.As(err, &closed) { // a NOTIFICATION ends graceful restart
		s.peer.speaker.record.remove(s.peer.config.Name())
	}
	if n != nil && !s.torn {
		s.goodbye(n)
	}
	s.conn.Close()
	if s.reading != nil {
		<-s.reading
	}
	return err
}

// goodbye sends a NOTIFICATION and waits for the router's end of the connection: Close would reset
// a connection with unread bytes, and the NOTIFICATION could be lost.
func (s *session) goodbye(n *notification) {
	s.conn.SetWriteDeadline(time.Now().Add(goodbye))
	if _, err := s.conn.Write(n.append(nil)); err != nil {
		return
	}
	half, ok := s.conn.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil {
		return
	}
	if s.reading == nil {
		s.conn.SetReadDeadline(time.Now().Add(goodbye))
		io.Copy(io.Discard, s.conn)
		return
	}
	timer := time.NewTimer(goodbye)
	defer timer.Stop()
	select {
	case <-s.reading:
	case <-timer.C:
	}
}

// closedByPeer is the end of a session by the router's NOTIFICATION.
type closedByPeer struct{ text string }

func (c *closedByPeer) Error() string { return c.text }

// handshake exchanges OPEN and KEEPALIVE messages.
func (s *session) handshake() error {
	p := s.peer
	ours := open{asn: p.config.LocalASN, holdTime: p.config.HoldTime, id: p.routerID, families: [families]bool{true, true}, refresh: true,
		nextHop6: true, restart: p.restart > 0, restartTime: p.restart, restarted: s.restarted}
	s.conn.SetDeadline(time.Now().Add(openTimeout))
	if _, err := s.conn.Write(ours.append(nil)); err != nil {
		return s.broken(err)
	}
	p.set(func(x *Session) { x.State = OpenSent })
	typ, body, err := s.read()
	if err != nil {
		return s.broken(err)
	}
	if typ != typeOpen {
		return &notification{code: codeFSM, subcode: fsmOpenSent, text: fmt.Sprintf("the router sent %s instead of OPEN", typ)}
	}
	if s.remote, err = parseOpen(body); err != nil {
		return err
	}
	if err := s.remote.check(&p.config, p.routerID); err != nil {
		return err
	}
	s.hold = min(p.config.HoldTime, s.remote.holdTime)
	for f := range families {
		s.families[f] = s.remote.families[f]
	}
	if _, err := s.conn.Write(appendKeepalive(nil)); err != nil {
		return s.broken(err)
	}
	p.set(func(x *Session) { x.State = OpenConfirm })
	if typ, _, err = s.read(); err != nil {
		return s.broken(err)
	}
	if typ != typeKeepalive {
		return &notification{code: codeFSM, subcode: fsmOpenConfirm, text: fmt.Sprintf("the router sent %s instead of KEEPALIVE", typ)}
	}
	s.conn.SetDeadline(time.Time{})
	return nil
}

// read reads a message. A NOTIFICATION is returned as an error.
func (s *session) read() (messageType, []byte, error) {
	typ, body, err := readMessage(s.reader, s.buf[:])
	if err == nil && typ == typeNotification {
		return 0, nil, &closedByPeer{parseNotification(body).received(&s.peer.config, s.peer.routerID.String())}
	}
	return typ, body, err
}

// errNoOpen means that the router accepted a connection and closed it.
var errNoOpen = errors.New("the router closed the connection before its OPEN: it has no neighbor with this host's address, or it waits after an earlier error")

// broken explains an error of the connection.
func (s *session) broken(err error) error {
	state := s.peer.status().State
	var n *notification
	var closed *closedByPeer
	switch {
	case errors.As(err, &n), errors.As(err, &closed):
		return err
	case errors.Is(err, os.ErrDeadlineExceeded) && state == Established:
		return &notification{code: codeHold, text: fmt.Sprintf("hold timer expired: nothing received from the router for %s", s.hold)}
	case errors.Is(err, os.ErrDeadlineExceeded):
		return &notification{code: codeHold, text: fmt.Sprintf("the router accepted the connection, but sent no OPEN or KEEPALIVE within %s", openTimeout)}
	case errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("the router closed the connection %w", err)
	case errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, io.ErrClosedPipe):
		if state == Established || state == OpenConfirm {
			return errors.New("the router closed the connection without a NOTIFICATION")
		}
		return errNoOpen
	}
	return err
}

// established runs the session after the handshake.
func (s *session) established(ctx context.Context) error {
	p := s.peer
	s.upSince = time.Now()
	s.nextHop = p.speaker.dial.nextHops(s.conn, &p.config, s.remote.nextHop6)
	restart := p.restart > 0 && s.remote.restart
	if restart {
		p.speaker.record.add(p.config.Name())
	} else {
		p.speaker.record.remove(p.config.Name())
	}
	p.set(func(x *Session) {
		x.State, x.Reason, x.Warning = Established, "", s.warning()
		x.RouterID, x.HoldTime, x.GracefulRestart = s.remote.id, s.hold, restart
		x.Established++
	})
	failed := make(chan error, 1)
	s.reading = make(chan struct{})
	go func() {
		defer close(s.reading)
		failed <- s.readAll()
	}()
	err := s.writeAll(ctx, failed)
	p.set(func(x *Session) { x.Prefixes, x.Warning = [2]int{}, "" })
	return err
}

// warning names what the router or this host lacks for a family.
func (s *session) warning() string {
	var text string
	for f := range families {
		switch {
		case !s.families[f]:
			text = join(text, fmt.Sprintf("%s prefixes are not announced: the router has not enabled %s unicast for this session", f, f))
		case !s.nextHop[f].IsValid():
			text = join(text, fmt.Sprintf("%s prefixes are not announced: the interface of the session has no %s address for the next hop", f, f))
		}
	}
	return text
}

func join(a, b string) string {
	if a == "" {
		return b
	}
	return a + "; " + b
}

// readAll reads until the session ends. Routes of the router are skipped.
func (s *session) readAll() error {
	for {
		if s.hold > 0 {
			s.conn.SetReadDeadline(time.Now().Add(s.hold))
		}
		typ, body, err := s.read()
		if err != nil {
			return s.broken(err)
		}
		switch typ {
		case typeOpen:
			return &notification{code: codeFSM, subcode: fsmEstablished, text: "the router sent a second OPEN"}
		case typeRefresh:
			// A subtype is of the enhanced form (RFC 7313), which was not negotiated.
			if f, ok := familyOf(binary.BigEndian.Uint16(body), body[3]); ok && body[2] == 0 {
				s.refreshed[f].Store(true)
				select {
				case s.refresh <- struct{}{}:
				default: // one is pending: requests are merged
				}
			}
		}
	}
}

// writeAll sends the prefixes, their changes and keepalives until the session ends.
func (s *session) writeAll(ctx context.Context, failed <-chan error) error {
	routes := s.peer.speaker.routes
	feed := routes.Watch()
	defer feed.Close()
	ended := false // End-of-RIB was sent
	s.encode()
	keepalive := time.NewTimer(s.keepalive())
	defer keepalive.Stop()
	for {
		// Read before the feed: everything announced before Ready is then in the feed.
		ready := routes.Ready()
		isReady := table.IsClosed(ready)
		if isReady {
			ready = nil
		}
		batch, changed := feed.TryNext()
		s.changes(batch)
		if len(batch) > 0 {
			changed = closedChannel // there may be more
		} else {
			if isReady && !ended {
				ended = true
				s.endOfRIB()
			}
			s.countPrefixes()
		}
		if err := s.flush(ctx); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case err := <-failed:
			return err
		case <-keepalive.C:
			s.out = appendKeepalive(s.out)
			keepalive.Reset(s.keepalive())
		case <-changed:
		case <-ready:
		case <-s.peer.wake:
			if s.encode() {
				s.again(ip4)
				s.again(ip6)
			}
		case <-s.refresh:
			for f := range families {
				if s.refreshed[f].Swap(false) {
					s.again(f)
				}
			}
		}
	}
}

var closedChannel = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// sends reports whether prefixes of the family are announced to this router.
func (s *session) sends(f family) bool { return s.families[f] && s.nextHop[f].IsValid() }

// encode prepares the attributes of the routes, and reports whether they differ from before.
func (s *session) encode() bool {
	o := s.peer.options()
	if s.enc != nil && o.draining == s.opt.draining && o.same(&s.opt.Attributes) {
		return false
	}
	s.opt = o
	s.enc = newEncoder(&s.peer.config, &o.Attributes, s.remote.as4, o.draining, s.nextHop)
	return true
}

// changes appends the messages for changed prefixes.
func (s *session) changes(batch []table.Change[netip.Prefix]) {
	var here, gone [families][]netip.Prefix
	for _, c := range batch {
		f := familyOfPrefix(c.Value)
		switch {
		case !s.sends(f):
		case c.Deleted:
			gone[f] = append(gone[f], c.Value)
		default:
			here[f] = append(here[f], c.Value)
		}
	}
	for f := range families {
		s.out = s.enc.withdraw(s.out, f, gone[f])
		s.out = s.enc.announce(s.out, f, here[f])
	}
}

// again appends the messages for all prefixes of a family.
func (s *session) again(f family) {
	if !s.sends(f) {
		return
	}
	var all []netip.Prefix
	for p := range s.peer.speaker.routes.All() {
		if familyOfPrefix(p) == f {
			all = append(all, p)
		}
	}
	s.out = s.enc.announce(s.out, f, all)
}

func (s *session) endOfRIB() {
	for f := range families {
		if s.families[f] {
			s.out = appendEndOfRIB(s.out, f)
		}
	}
}

func (s *session) countPrefixes() {
	var n [2]int
	for f := range families {
		if s.sends(f) {
			n[f] = s.peer.speaker.count[f]()
		}
	}
	s.peer.set(func(x *Session) { x.Prefixes = n })
}

// keepalive returns the time to the next KEEPALIVE: a third of the hold time, with jitter (RFC
// 4271, 4.4 and 10).
func (s *session) keepalive() time.Duration {
	if s.hold == 0 {
		return time.Hour // anything: no KEEPALIVE is needed
	}
	d := s.hold / 3
	return d*3/4 + rand.N(d/4)
}

// flush sends the appended messages.
func (s *session) flush(ctx context.Context) error {
	if len(s.out) == 0 {
		return nil
	}
	limit := s.hold
	if limit == 0 {
		limit = sendTimeout
	}
	s.conn.SetWriteDeadline(time.Now().Add(limit))
	if ctx.Err() != nil { // otherwise its end sets another deadline
		return context.Cause(ctx)
	}
	_, err := s.conn.Write(s.out)
	s.out = s.out[:0]
	if cap(s.out) > 1<<16 { // of an announcement of everything
		s.out = nil
	}
	if err == nil {
		return nil
	}
	s.torn = true
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("send hold timer expired: the router has read nothing for %s", limit)
	}
	return s.broken(err)
}
