// Package bgptest has a router in memory, the other end of the connections of a speaker under test,
// and a reading of UPDATE messages that is independent of the product.
package bgptest

import (
	"bufio"
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ironvip/ironvip/announce/bgp/message"
)

// Addr is the address and router ID of the router.
var Addr = netip.MustParseAddr("10.0.0.1")

// Open is an OPEN of the router, with everything it can do.
func Open() message.Open {
	return message.Open{ASN: 65000, HoldTime: 30 * time.Second, RouterID: Addr, Capabilities: message.Capabilities{
		Families: [message.Families]bool{true, true}, RouteRefresh: true, ExtendedNextHop: true, GracefulRestart: true, RestartTime: 120 * time.Second}}
}

// Pipe returns both ends of a connection in memory. The speaker's has an address, as one of TCP has.
func Pipe() (ours, theirs net.Conn) {
	ours, theirs = net.Pipe()
	return speakerEnd{ours}, theirs
}

type speakerEnd struct{ net.Conn }

// LocalAddr returns an address that is the next hop of both families.
func (speakerEnd) LocalAddr() net.Addr { return &net.TCPAddr{IP: net.ParseIP("fd00::2")} }

// Notification returns an encoded NOTIFICATION.
func Notification(code, subcode uint8, data ...byte) []byte {
	return (&message.Notification{Code: code, Subcode: subcode, Data: data}).Append(nil)
}

// Router accepts connections in memory.
type Router struct {
	t     testing.TB
	conns chan net.Conn

	mu   sync.Mutex
	fail error // of the next attempts to connect
}

// NewRouter returns a router.
func NewRouter(t testing.TB) *Router { return &Router{t: t, conns: make(chan net.Conn)} }

// Refuse lets the next attempts to connect fail; nil ends that.
func (r *Router) Refuse(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fail = err
}

// Dial connects to the router. It waits for Accept.
func (r *Router) Dial(ctx context.Context) (net.Conn, error) {
	r.mu.Lock()
	err := r.fail
	r.mu.Unlock()
	if err != nil {
		return nil, err
	}
	ours, theirs := Pipe()
	select {
	case r.conns <- theirs:
		return ours, nil
	case <-ctx.Done():
		return nil, errors.New("no answer")
	}
}

// Accept returns the next connection.
func (r *Router) Accept() *Conn {
	r.t.Helper()
	select {
	case c := <-r.conns:
		return NewConn(r.t, c)
	case <-time.After(time.Minute):
		r.t.Fatal("no connection within a minute")
		return nil
	}
}

// Conn is one connection of the router. As with TCP, neither side waits for the other one's reads.
type Conn struct {
	net.Conn
	t    testing.TB
	in   chan Message
	out  chan []byte
	mute atomic.Bool
	shut sync.Once
}

// Message is a received message, or the end of the connection.
type Message struct {
	Type message.Type
	Body []byte
	Err  error
}

// NewConn returns the router's end of a connection. The test closes it at its end.
func NewConn(t testing.TB, c net.Conn) *Conn {
	l := &Conn{t: t, Conn: c, in: make(chan Message, 1000), out: make(chan []byte, 100)}
	var wg sync.WaitGroup
	read := make(chan struct{})
	wg.Go(func() {
		defer close(read)
		r := bufio.NewReader(c)
		for !l.mute.Load() {
			typ, body, err := message.Read(r)
			l.in <- Message{typ, slices.Clone(body), err}
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
		if tcp, is := c.(*net.TCPConn); is && tcp.CloseWrite() == nil {
			<-read // with something unread, the kernel would reset the connection
		}
	})
	t.Cleanup(func() {
		c.Close()
		l.Close()
		wg.Wait()
	})
	return l
}

// Mute stops the reading after the next message.
func (l *Conn) Mute() { l.mute.Store(true) }

// Close closes the connection after everything has been sent.
func (l *Conn) Close() error {
	l.shut.Do(func() { close(l.out) })
	return nil
}

// Send sends bytes.
func (l *Conn) Send(b []byte) { l.out <- b }

// Read returns the next message.
func (l *Conn) Read() Message {
	l.t.Helper()
	select {
	case m := <-l.in:
		return m
	case <-time.After(time.Minute):
		l.t.Fatal("no message within a minute")
		return Message{}
	}
}

// Next returns the next message other than a KEEPALIVE.
func (l *Conn) Next() (message.Type, []byte) {
	l.t.Helper()
	for {
		m := l.Read()
		if m.Err != nil {
			l.t.Fatalf("reading: %v", m.Err)
		}
		if m.Type != message.TypeKeepalive {
			return m.Type, m.Body
		}
	}
}

// Ends checks that the speaker closes the connection with a NOTIFICATION, or without if code is 0.
func (l *Conn) Ends(code, subcode uint8) {
	l.t.Helper()
	for {
		m := l.Read()
		switch {
		case m.Err != nil && code == 0:
			return
		case m.Err != nil:
			l.t.Fatalf("closed without a NOTIFICATION: %v", m.Err)
		case m.Type == message.TypeNotification:
			if m.Body[0] != code || m.Body[1] != subcode {
				l.t.Fatalf("notification %x, want %d/%d", m.Body, code, subcode)
			}
			return
		}
	}
}

// Establish exchanges OPEN and KEEPALIVE, and returns the speaker's OPEN.
func (l *Conn) Establish(o message.Open) message.Open {
	l.t.Helper()
	typ, body := l.Next()
	if typ != message.TypeOpen {
		l.t.Fatalf("%v instead of OPEN", typ)
	}
	theirs, err := message.ParseOpen(body)
	if err != nil {
		l.t.Fatal(err)
	}
	l.Send(o.Append(nil))
	l.Send(message.AppendKeepalive(nil))
	return theirs
}

// Expect checks the next UPDATE messages, each one as Update.String shows it.
func (l *Conn) Expect(updates ...string) {
	l.t.Helper()
	for _, want := range updates {
		if got := l.Update(); got != want {
			l.t.Fatalf("UPDATE %q, want %q", got, want)
		}
	}
}

// Update returns the next UPDATE as Update.String shows it.
func (l *Conn) Update() string {
	l.t.Helper()
	typ, body := l.Next()
	if typ != message.TypeUpdate {
		l.t.Fatalf("%v instead of UPDATE: %x", typ, body)
	}
	return decode(l.t, body).String()
}
