package bgp

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/wait"
)

// fakeRouter is the other end of the connections of a Speaker, in memory.
type fakeRouter struct {
	t     *testing.T
	conns chan net.Conn

	mu   sync.Mutex
	fail error // of the next attempts to connect
}

func (r *fakeRouter) refuse(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fail = err
}

func (r *fakeRouter) dial(ctx context.Context, _ *Peer, _ netip.Addr) (net.Conn, error) {
	r.mu.Lock()
	err := r.fail
	r.mu.Unlock()
	if err != nil {
		return nil, err
	}
	ours, theirs := net.Pipe()
	select {
	case r.conns <- theirs:
		return ours, nil
	case <-ctx.Done():
		return nil, errors.New("no answer")
	}
}

func (r *fakeRouter) nextHops(net.Conn, *Peer, bool) [families]netip.Addr {
	return [families]netip.Addr{netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00::2")}
}

// link is one connection of the router. As with TCP, neither side waits for the other one's reads.
type link struct {
	t    *testing.T
	conn net.Conn
	in   chan message
	out  chan []byte
	mute atomic.Bool // no further message is read
	shut sync.Once
}

type message struct {
	typ  messageType
	body []byte
	err  error
}

func newLink(t *testing.T, c net.Conn) *link {
	l := &link{t: t, conn: c, in: make(chan message, 1000), out: make(chan []byte, 100)}
	var wg sync.WaitGroup
	wg.Go(func() {
		r := bufio.NewReader(c)
		for !l.mute.Load() {
			typ, body, err := readMessage(r, make([]byte, maxMessage))
			l.in <- message{typ, body, err}
			if err != nil {
				return
			}
		}
	})
	wg.Go(func() {
		defer c.Close()
		for b := range l.out {
			if _, err := c.Write(b); err != nil {
				return
			}
		}
	})
	t.Cleanup(func() {
		c.Close()
		l.Close()
		wg.Wait()
	})
	return l
}

// Close closes the connection after everything has been sent.
func (l *link) Close() { l.shut.Do(func() { close(l.out) }) }

func (l *link) send(b []byte) { l.out <- b }

// read returns the next message.
func (l *link) read() message {
	l.t.Helper()
	select {
	case m := <-l.in:
		return m
	case <-time.After(time.Minute):
		l.t.Fatal("no message within a minute")
		return message{}
	}
}

var (
	routerAddr = netip.MustParseAddr("10.0.0.1")
	theirOpen  = open{asn: 65000, holdTime: 30 * time.Second, id: routerAddr, families: [families]bool{true, true}, refresh: true,
		restart: true, restartTime: 120 * time.Second}
)

func samplePeer() Peer { return Peer{Address: routerAddr, ASN: 65000, LocalASN: 65010} }

// start runs a Speaker with one peer. The returned function ends it and waits.
func start(t *testing.T, change ...func(*Config)) (*Speaker, *fakeRouter, context.CancelFunc) {
	t.Helper()
	c := Config{RouterID: netip.MustParseAddr("10.0.0.2"), Peers: []Peer{samplePeer()}}
	for _, f := range change {
		f(&c)
	}
	r := &fakeRouter{t: t, conns: make(chan net.Conn)}
	s, err := newSpeaker(c, r)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Run(ctx)
	}()
	stop := func() { cancel(); <-done }
	t.Cleanup(stop)
	return s, r, stop
}

func (r *fakeRouter) accept() *link {
	r.t.Helper()
	select {
	case c := <-r.conns:
		return newLink(r.t, c)
	case <-time.After(time.Minute):
		r.t.Fatal("no connection within a minute")
		return nil
	}
}

// next returns the next message other than a KEEPALIVE.
func (l *link) next() (messageType, []byte) {
	l.t.Helper()
	for {
		m := l.read()
		if m.err != nil {
			l.t.Fatalf("reading: %v", m.err)
		}
		if m.typ != typeKeepalive {
			return m.typ, m.body
		}
	}
}

// ends checks that the speaker closes the connection with a NOTIFICATION, or without if code is 0.
func (l *link) ends(code, subcode uint8) {
	l.t.Helper()
	for {
		m := l.read()
		switch {
		case m.err != nil && code == 0:
			return
		case m.err != nil:
			l.t.Fatalf("closed without a NOTIFICATION: %v", m.err)
		case m.typ == typeNotification:
			if m.body[0] != code || m.body[1] != subcode {
				l.t.Fatalf("notification %x, want %d/%d", m.body, code, subcode)
			}
			return
		}
	}
}

// establish exchanges OPEN and KEEPALIVE, and returns the speaker's OPEN.
func (l *link) establish(o open) open {
	l.t.Helper()
	typ, body := l.next()
	if typ != typeOpen {
		l.t.Fatalf("%v instead of OPEN", typ)
	}
	theirs, err := parseOpen(body)
	if err != nil {
		l.t.Fatal(err)
	}
	l.send(o.append(nil))
	l.send(appendKeepalive(nil))
	return theirs
}

// update returns the next UPDATE as "+prefix" and "-prefix", "EOR 4" or "EOR 6".
func (l *link) update() string {
	l.t.Helper()
	typ, body := l.next()
	if typ != typeUpdate {
		l.t.Fatalf("%v instead of UPDATE: %x", typ, body)
	}
	m := append(beginMessage(nil, typeUpdate), body...)
	endMessage(m)
	d := decode(l.t, m)[0]
	var words []string
	for _, p := range d.announced {
		words = append(words, "+"+p.String())
	}
	for _, p := range d.withdrawn {
		words = append(words, "-"+p.String())
	}
	slices.Sort(words)
	if c, ok := d.attributes[attrCommunities]; ok {
		words = append(words, c)
	}
	switch {
	case len(words) > 0:
		return strings.Join(words, " ")
	case d.attributes[attrUnreach] != "":
		return "EOR 6"
	}
	return "EOR 4"
}

func (l *link) expect(updates ...string) {
	l.t.Helper()
	for _, want := range updates {
		if got := l.update(); got != want {
			l.t.Fatalf("UPDATE %q, want %q", got, want)
		}
	}
}

func awaitReason(t *testing.T, s *Speaker, reason string) {
	t.Helper()
	wait.Until(t, "the reason "+reason, func() bool {
		x := s.Sessions()[0]
		return strings.Contains(x.Reason, reason) && x.State != Established
	}, func() any { return fmt.Sprintf("%+v", s.Sessions()[0]) })
}

func awaitUp(t *testing.T, s *Speaker) {
	t.Helper()
	wait.Until(t, "established", func() bool { return s.Sessions()[0].State == Established }, func() any { return s.Sessions()[0] })
}

// A session announces what there is, then each change in one message.
func TestUpdates(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, r, _ := start(t)
		s.Announce(prefix("10.96.0.1/32"), prefix("10.96.0.2/32"), prefix("fd96::1/128"))
		l := r.accept()
		l.establish(theirOpen)
		l.expect("+10.96.0.1/32 +10.96.0.2/32", "+fd96::1/128")
		s.Announce(prefix("10.96.0.3/32"))
		l.expect("+10.96.0.3/32")
		s.Ready()
		l.expect("EOR 4", "EOR 6")
		s.Announce(prefix("10.96.0.3/32")) // nothing new
		s.Withdraw(prefix("10.96.0.9/32"))
		s.Withdraw(prefix("10.96.0.3/32"))
		l.expect("-10.96.0.3/32")
		s.Withdraw(prefix("fd96::1/128"))
		l.expect("-fd96::1/128")
		s.Drain(true)
		l.expect("+10.96.0.1/32 +10.96.0.2/32 d0 ffff0000")
		s.Drain(true)
		s.Drain(false)
		l.expect("+10.96.0.1/32 +10.96.0.2/32")
		x := s.Sessions()[0]
		if x.Prefixes != [2]int{2, 0} || !x.GracefulRestart || x.HoldTime != 30*time.Second || x.Warning != "" || x.RouterID != routerAddr || x.Established != 1 {
			t.Errorf("%+v", x)
		}
		l.send([]byte(strings.Repeat("\xff", 16) + "\x00\x17\x05\x00\x01\x00\x01")) // ROUTE-REFRESH
		l.expect("+10.96.0.1/32 +10.96.0.2/32")
		l.Close()
		awaitReason(t, s, "closed the connection without a NOTIFICATION")
		l = r.accept()
		l.establish(theirOpen)
		l.expect("+10.96.0.1/32 +10.96.0.2/32", "EOR 4", "EOR 6") // no withdrawn ones
	})
}

// A change costs one message for each peer, however many prefixes there are.
func TestCostOfOneChange(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, r, _ := start(t)
		var ps []netip.Prefix
		for i := range 10000 {
			ps = append(ps, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), 32))
		}
		s.Announce(ps...)
		s.Ready()
		l := r.accept()
		l.establish(theirOpen)
		messages := 0
		for l.update() != "EOR 4" {
			messages++
		}
		l.expect("EOR 6")
		if messages > 20 {
			t.Errorf("%d messages for 10,000 prefixes", messages)
		}
		for i := range 5 {
			p := prefix(fmt.Sprintf("10.97.0.%d/32", i))
			s.Announce(p)
			l.expect("+" + p.String())
		}
	})
}

func TestReconfigure(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, r, _ := start(t)
		s.Announce(prefix("10.96.0.1/32"))
		l := r.accept()
		l.establish(theirOpen)
		l.expect("+10.96.0.1/32")
		c := Config{RouterID: netip.MustParseAddr("10.0.0.2"), Peers: []Peer{samplePeer()}}
		if err := s.Reconfigure(c); err != nil { // nothing new
			t.Fatal(err)
		}
		c.Peers[0].Communities = []Community{1}
		if err := s.Reconfigure(c); err != nil {
			t.Fatal(err)
		}
		l.expect("+10.96.0.1/32 d0 00000001")
		c.Peers[0].HoldTime = 9 * time.Second
		if err := s.Reconfigure(c); err != nil {
			t.Fatal(err)
		}
		l.ends(codeCease, ceaseConfigChange)
		l = r.accept()
		if o := l.establish(theirOpen); o.holdTime != 9*time.Second {
			t.Errorf("hold time %v", o.holdTime)
		}
		l.expect("+10.96.0.1/32 d0 00000001")
		c.RouterID = netip.MustParseAddr("10.0.0.3")
		if err := s.Reconfigure(c); err != nil {
			t.Fatal(err)
		}
		l.ends(codeCease, ceaseConfigChange)
		l = r.accept()
		if o := l.establish(theirOpen); o.id != c.RouterID {
			t.Errorf("router ID %v", o.id)
		}
		c.Peers = nil
		if err := s.Reconfigure(c); err != nil {
			t.Fatal(err)
		}
		l.ends(codeCease, ceaseDeconfigured)
		if all := s.Sessions(); len(all) != 0 {
			t.Errorf("%+v", all)
		}
		if err := s.Reconfigure(Config{}); err == nil {
			t.Error("settings without a router ID were accepted")
		}
	})
}

// What a router does in a handshake, what the speaker answers, and the reason for operators.
func TestHandshakes(t *testing.T) {
	with := func(change func(*open)) []byte {
		o := theirOpen
		change(&o)
		return o.append(nil)
	}
	note := func(code, sub uint8) []byte { return (&notification{code: code, subcode: sub}).append(nil) }
	for _, c := range []struct {
		name      string
		send      [][]byte
		then      func(*link)
		code, sub uint8 // of the answer; 0: closed without one
		reason    string
	}{
		{"wrong ASN", [][]byte{with(func(o *open) { o.asn = 65001 })}, nil, codeOpen, openBadAS, "ASN wrong: the router has ASN 65001, the configuration has 65000"},
		{"wrong ASN for the router", [][]byte{note(codeOpen, openBadAS)}, nil, 0, 0, "ASN wrong: the router expects another ASN than 65010"},
		{"router ID for the router", [][]byte{note(codeOpen, openBadID)}, nil, 0, 0, "router ID wrong: the router rejects 10.0.0.2"},
		{"router ID", [][]byte{with(func(o *open) { o.id = netip.IPv4Unspecified() })}, nil, codeOpen, openBadID, "router ID wrong"},
		{"hold time", [][]byte{with(func(o *open) { o.holdTime = time.Second })}, nil, codeOpen, openHoldTime, "unacceptable hold time"},
		{"rejected", [][]byte{note(codeCease, ceaseRejected)}, nil, 0, 0, "connection rejected by the router"},
		{"max prefixes", [][]byte{with(func(*open) {}), appendKeepalive(nil), note(codeCease, ceaseMaxPrefixes)}, nil, 0, 0, "maximum prefixes exceeded"},
		{"closed before OPEN", nil, func(l *link) { l.Close() }, 0, 0, "before its OPEN: it has no neighbor with this host's address"},
		{"silent", nil, nil, codeHold, 0, "sent no OPEN or KEEPALIVE within 30s"},
		{"silent after OPEN", [][]byte{with(func(*open) {})}, nil, codeHold, 0, "sent no OPEN or KEEPALIVE within 30s"},
		{"KEEPALIVE instead of OPEN", [][]byte{appendKeepalive(nil)}, nil, codeFSM, fsmOpenSent, "KEEPALIVE instead of OPEN"},
		{"two OPEN", [][]byte{with(func(*open) {}), with(func(*open) {})}, nil, codeFSM, fsmOpenConfirm, "OPEN instead of KEEPALIVE"},
		{"OPEN later", [][]byte{with(func(*open) {}), appendKeepalive(nil), with(func(*open) {})}, nil, codeFSM, fsmEstablished, "second OPEN"},
		{"garbage", [][]byte{[]byte("HTTP/1.1 400 Bad Request\r\n")}, nil, codeHeader, headerNotSynchronized, "connection not synchronized"},
		{"hold timer", [][]byte{with(func(*open) {}), appendKeepalive(nil)}, nil, codeHold, 0, "hold timer expired: nothing received from the router for 30s"},
		{"reset in an UPDATE", [][]byte{with(func(*open) {}), appendKeepalive(nil), append(beginMessage(nil, typeUpdate)[:16], 1, 0, 2, 9)},
			func(l *link) { l.Close() }, 0, 0, "closed the connection in the middle of an UPDATE"},
		{"oversized UPDATE", [][]byte{with(func(*open) {}), appendKeepalive(nil), append(beginMessage(nil, typeUpdate)[:16], 0xff, 0xff, 2)},
			nil, codeHeader, headerBadLength, "bad message length"},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				s, r, _ := start(t)
				l := r.accept()
				l.next()
				for _, b := range c.send {
					l.send(b)
				}
				if c.then != nil {
					c.then(l)
				}
				l.ends(c.code, c.sub)
				l.Close()
				awaitReason(t, s, c.reason)
				r.accept() // it tries again
			})
		})
	}
}

func TestKeepalives(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		_, r, _ := start(t)
		l := r.accept()
		l.establish(theirOpen)
		began, n := time.Now(), 0
		for time.Since(began) < 10*time.Minute {
			if m := l.read(); m.typ != typeKeepalive {
				t.Fatalf("%+v", m)
			}
			n++
			if n%2 == 0 {
				l.send(appendKeepalive(nil)) // within 20 s
			}
		}
		// A third of 30 s with 75 to 100 % of it, and the one of the handshake.
		if n < 60 || n > 82 {
			t.Errorf("%d keepalives in 10 minutes", n)
		}
		l.Close()
	})
}

// A router that reads nothing does not block the speaker for ever, or another peer at all.
func TestRouterThatReadsNothing(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, r, _ := start(t)
		l := r.accept()
		l.establish(theirOpen)
		awaitUp(t, s)
		l.mute.Store(true)
		s.Announce(prefix("10.96.0.1/32"))
		l.expect("+10.96.0.1/32")
		var sending sync.WaitGroup
		defer sending.Wait()
		sending.Go(func() { // the router goes on sending
			for range 3 {
				time.Sleep(9 * time.Second)
				l.send(appendKeepalive(nil))
			}
		})
		s.Announce(prefix("10.96.0.2/32"))
		awaitReason(t, s, "send hold timer expired: the router has read nothing for 30s")
		l.Close()
	})
}

// The pauses between attempts grow, also for a router that accepts each session and ends it.
func TestRetries(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		_, r, _ := start(t)
		began := time.Now()
		for range 10 {
			l := r.accept()
			l.establish(theirOpen)
			l.send((&notification{code: codeCease, subcode: ceaseMaxPrefixes}).append(nil))
			l.Close()
		}
		if took := time.Since(began); took < 15*time.Second || took > 50*time.Second {
			t.Errorf("10 attempts took %v", took)
		}
		l := r.accept()
		l.establish(theirOpen)
		time.Sleep(stable)
		began = time.Now()
		l.Close()
		r.accept()
		if took := time.Since(began); took > minRetry {
			t.Errorf("a stable session is retried after %v", took)
		}
	})
}

// A connection that is reset in the middle of an UPDATE of this host loses nothing: everything is
// announced again.
func TestResetInTheMiddleOfAnUpdate(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, r, _ := start(t)
		l := r.accept()
		l.establish(theirOpen)
		awaitUp(t, s)
		l.mute.Store(true)
		s.Announce(prefix("10.96.0.1/32"))
		l.expect("+10.96.0.1/32")
		s.Announce(prefix("10.96.0.2/32"), prefix("10.96.0.3/32"))
		b := make([]byte, headerSize+4)
		if _, err := io.ReadFull(l.conn, b); err != nil {
			t.Fatal(err)
		}
		l.Close()
		awaitReason(t, s, "closed the connection without a NOTIFICATION")
		s.Withdraw(prefix("10.96.0.3/32"))
		l = r.accept()
		l.establish(theirOpen)
		l.expect("+10.96.0.1/32 +10.96.0.2/32")
	})
}

// A router that ends a session refuses connections for a while. The reason is still shown.
func TestReasonRemains(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, r, _ := start(t)
		l := r.accept()
		l.establish(theirOpen)
		l.send((&notification{code: codeCease, subcode: ceaseMaxPrefixes}).append(nil))
		l.Close()
		r.accept().Close()
		awaitReason(t, s, "accepts (since then: the router closed the connection before its OPEN")
		l = r.accept()
		l.establish(theirOpen)
		awaitUp(t, s)
		l.Close()
		awaitReason(t, s, "closed the connection without a NOTIFICATION")
		r.accept().Close()
		awaitReason(t, s, "before its OPEN")
		if x := s.Sessions()[0]; strings.Contains(x.Reason, "prefixes") {
			t.Errorf("old reason %q", x.Reason)
		}
	})
}

func TestPathDown(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, r, _ := start(t)
		s.PathDown("10.0.0.1", "too early")
		s.PathDown("10.0.0.9", "unknown")
		l := r.accept()
		l.establish(theirOpen)
		awaitUp(t, s)
		began := time.Now()
		go s.PathDown("10.0.0.1", "BFD: no packet from 10.0.0.1 for 150ms")
		l.ends(codeCease, ceaseBFD)
		if time.Since(began) > 0 {
			t.Errorf("ended after %v", time.Since(began))
		}
		l.Close()
		awaitReason(t, s, "BFD: no packet from 10.0.0.1 for 150ms")
		r.accept().establish(theirOpen)
		awaitUp(t, s)
	})
}

// The R bit is set in the first session after a restart only, and only if the router keeps routes
// of the earlier run.
func TestRestartBit(t *testing.T) {
	for _, c := range []struct {
		name   string
		record string // before
		before func(r *fakeRouter)
		after  time.Duration
		want   bool
	}{
		{"first run", "", nil, 0, false},
		{"restart", `{"peers":["10.0.0.1"]}`, nil, 0, true},
		{"other peer", `{"peers":["10.0.0.7"]}`, nil, 0, false},
		{"broken record", `{"peers":`, nil, 0, false},
		{"too late", `{"peers":["10.0.0.1"]}`, nil, 121 * time.Second, false},
		{"the router restarts, too", `{"peers":["10.0.0.1"]}`, func(r *fakeRouter) { r.refuse(errRefused) }, 2 * time.Second, false},
		{"unreachable for a while", `{"peers":["10.0.0.1"]}`, func(r *fakeRouter) { r.refuse(errors.New("unreachable")) }, 2 * time.Second, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "record")
				if c.record != "" {
					if err := os.WriteFile(path, []byte(c.record), 0o600); err != nil {
						t.Fatal(err)
					}
				}
				s, err := newSpeaker(Config{RouterID: netip.MustParseAddr("10.0.0.2"), Peers: []Peer{samplePeer()}, Record: path}, nil)
				if err != nil {
					t.Fatal(err)
				}
				r := &fakeRouter{t: t, conns: make(chan net.Conn)}
				if c.before != nil {
					c.before(r)
				}
				s.dial = r
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan struct{})
				go func() { defer close(done); s.Run(ctx) }()
				defer func() { cancel(); <-done }()
				time.Sleep(c.after)
				r.refuse(nil)
				l := r.accept()
				if o := l.establish(theirOpen); o.restarted != c.want || !o.restart {
					t.Errorf("restarted %t, want %t", o.restarted, c.want)
				}
				awaitUp(t, s)
				l.Close()
				l = r.accept()
				if o := l.establish(theirOpen); o.restarted {
					t.Error("restarted in the second session")
				}
				awaitUp(t, s)
				l.Close()
			})
		})
	}
}

// The ends of a run, and what they leave for the next one.
func TestEnds(t *testing.T) {
	without := theirOpen
	without.restart = false
	for _, c := range []struct {
		name      string
		theirs    open
		end       func(s *Speaker, stop func())
		code, sub uint8
		record    bool
	}{
		{"restart", theirOpen, func(_ *Speaker, stop func()) { stop() }, 0, 0, true},
		{"restart without graceful restart", without, func(_ *Speaker, stop func()) { stop() }, codeCease, ceaseShutdown, false},
		{"shutdown", theirOpen, func(s *Speaker, stop func()) { s.Shutdown(); stop() }, codeCease, ceaseShutdown, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "record")
				s, r, stop := start(t, func(x *Config) { x.Record = path })
				l := r.accept()
				l.establish(c.theirs)
				awaitUp(t, s)
				go c.end(s, stop)
				l.ends(c.code, c.sub)
				l.Close()
				stop()
				b, _ := os.ReadFile(path)
				if has := strings.Contains(string(b), "10.0.0.1"); has != c.record {
					t.Errorf("record %q", b)
				}
			})
		})
	}
}

func TestFamiliesThatTheRouterLacks(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, r, _ := start(t)
		s.Announce(prefix("10.96.0.1/32"), prefix("fd96::1/128"))
		s.Ready()
		l := r.accept()
		only4 := theirOpen
		only4.families[ip6] = false
		l.establish(only4)
		l.expect("+10.96.0.1/32", "EOR 4")
		x := s.Sessions()[0]
		if !strings.Contains(x.Warning, "IPv6 prefixes are not announced") || x.Prefixes != [2]int{1, 0} {
			t.Errorf("%+v", x)
		}
		s.Announce(prefix("fd96::2/128"))
		s.Announce(prefix("10.96.0.2/32"))
		l.expect("+10.96.0.2/32")
		l.Close()
	})
}

func TestValidate(t *testing.T) {
	for _, c := range []struct {
		set  func(*Config)
		want string
	}{
		{func(*Config) {}, ""},
		{func(c *Config) { c.RouterID = netip.Addr{} }, "router ID"},
		{func(c *Config) { c.RouterID = netip.MustParseAddr("fd00::1") }, "router ID"},
		{func(c *Config) { c.RestartTime = 5000 * time.Second }, "restart time"},
		{func(c *Config) { c.Peers = append(c.Peers, c.Peers[0]) }, "10.0.0.1 is defined more than once"},
		{func(c *Config) { c.Peers[0].Address = netip.Addr{} }, "either an address or an interface"},
		{func(c *Config) { c.Peers[0].Interface = "eth1" }, "either an address or an interface"},
		{func(c *Config) { c.Peers[0].Address = netip.MustParseAddr("fe80::1") }, "needs a zone"},
		{func(c *Config) { c.Peers[0].ASN = 0 }, "asn"},
		{func(c *Config) { c.Peers[0].LocalASN = asTrans }, "23456"},
		{func(c *Config) { c.Peers[0].Password = strings.Repeat("x", 81) }, "password"},
		{func(c *Config) { c.Peers[0].HoldTime = time.Second }, "hold time"},
		{func(c *Config) { c.Peers[0].HoldTime = 3500 * time.Millisecond }, "hold time"},
		{func(c *Config) { c.Peers[0].LocalPref = 1 }, "local preference"},
		{func(c *Config) { c.Peers[0].Source = netip.MustParseAddr("fd00::1") }, "source address"},
		{func(c *Config) { c.Peers[0] = Peer{Interface: "eth1", ASN: 1, LocalASN: 2, Multihop: 2} }, "multihop"},
		{func(c *Config) { c.Peers[0].NextHop6 = routerAddr }, "next hop"},
	} {
		x := Config{RouterID: netip.MustParseAddr("10.0.0.2"), Peers: []Peer{samplePeer()}}
		c.set(&x)
		err := x.Validate()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
}
