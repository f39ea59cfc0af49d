package server

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/dns/zone"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/freeport"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/scope"
	"github.com/ironvip/ironvip/test/wait"
)

// framed returns a message behind its length.
func framed(msg []byte) []byte {
	return append(binary.BigEndian.AppendUint16(nil, uint16(len(msg))), msg...)
}

// readReply reads a reply behind its length.
func readReply(t testing.TB, c io.Reader) *dns.Msg {
	t.Helper()
	var head [2]byte
	must.Get(io.ReadFull(c, head[:]))(t)
	b := make([]byte, binary.BigEndian.Uint16(head[:]))
	must.Get(io.ReadFull(c, b))(t)
	var m dns.Msg
	must.Succeed(t, m.Unpack(b))
	return &m
}

// inBubble runs a client with one connection to a server, on fake time.
func inBubble(t *testing.T, client func(t *testing.T, s *Server, c net.Conn)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		s := New(Options{Answerer: testZone(t)})
		mine, its := net.Pipe()
		done := make(chan struct{})
		go func() {
			all := new(connections)
			s.serveConn(its, all.limit.Admit(its), all)
			its.Close()
			close(done)
		}()
		client(t, s, mine)
		mine.Close()
		<-done
	})
}

// checkClosed waits until the server closes a connection, which must be some time after a start.
func checkClosed(t *testing.T, c net.Conn, start time.Time, after time.Duration) {
	t.Helper()
	if n, err := c.Read(make([]byte, 1)); n > 0 || !errors.Is(err, io.EOF) {
		t.Errorf("read %d bytes, %v", n, err)
	}
	expect.Equal(t, time.Since(start), after, "closed after")
}

func TestIdleConnectionIsClosed(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Server, c net.Conn) {
		start := time.Now()
		checkClosed(t, c, start, idleTime)
		expect.Equal(t, s.Counters().Dropped(Timeout), 0, "timeouts")
	})
	// The time begins again with each query.
	inBubble(t, func(t *testing.T, _ *Server, c net.Conn) {
		for range 3 {
			time.Sleep(idleTime - time.Second)
			must.Get(c.Write(framed(packed(t, question("web.vip.internal.", dns.TypeA)))))(t)
			expect.Len(t, readReply(t, c).Answer, 1, "reply")
		}
		checkClosed(t, c, time.Now(), idleTime)
	})
}

// A query has to be complete 2 s after its first byte, however its bytes arrive.
func TestSlowClient(t *testing.T) {
	query := framed(packed(t, question("web.vip.internal.", dns.TypeA)))
	for _, before := range []int{0, 1} { // queries
		inBubble(t, func(t *testing.T, s *Server, c net.Conn) {
			for range before {
				must.Get(c.Write(query))(t)
				readReply(t, c)
			}
			time.Sleep(time.Second)
			start := time.Now()
			written := make(chan struct{})
			go func() {
				defer close(written)
				for i := range query { // one byte in a second
					if _, err := c.Write(query[i : i+1]); err != nil {
						return
					}
					time.Sleep(time.Second)
				}
				t.Error("the server waits for each byte")
			}()
			checkClosed(t, c, start, messageTime)
			<-written
			expect.Equal(t, s.Counters().Dropped(Timeout), 1, "timeouts")
		})
	}
	// Slow, but complete in time: the begin of the second query is in the packet of the first.
	inBubble(t, func(t *testing.T, _ *Server, c net.Conn) {
		for _, part := range [][]byte{query[:1], query[1:2], query[2:20], append(query[20:], query[:5]...)} {
			time.Sleep(messageTime / 4)
			must.Get(c.Write(part))(t)
		}
		readReply(t, c)
		time.Sleep(messageTime - time.Second)
		must.Get(c.Write(query[5:]))(t)
		readReply(t, c)
		start := time.Now()
		must.Get(c.Write(append(query, query[:5]...)))(t)
		readReply(t, c)
		checkClosed(t, c, start, messageTime)
	})
}

// A client that asks and doesn't read its replies is disconnected.
func TestClientThatNeverReads(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Server, c net.Conn) {
		start := time.Now()
		query := framed(packed(t, question("web.vip.internal.", dns.TypeA)))
		must.Get(c.Write(query))(t)
		_, err := c.Write(query)
		expect.True(t, err != nil, "the server reads on")
		expect.Equal(t, time.Since(start), messageTime, "closed after")
		expect.Equal(t, s.Counters().Dropped(Timeout), 1, "timeouts")
	})
}

// A message that isn't a query ends a connection, after FORMERR if a reply is possible.
func TestStrangeConnections(t *testing.T) {
	query := packed(t, question("web.vip.internal.", dns.TypeA))
	response := append([]byte{}, query...)
	response[2] |= 0x80
	for _, c := range []struct {
		what  string
		bytes []byte
		code  int // -1: closed without a reply
		stays bool
	}{
		{"a query", framed(query), dns.RcodeSuccess, true},
		{"no message", []byte{0, 0}, -1, false},
		{"a short message", []byte{0, 3, 1, 2, 3}, -1, false},
		{"a response", framed(response), -1, false},
		{"half a question", framed(query[:20]), dns.RcodeFormatError, true},
		{"a query of 60 kB", append([]byte{0xf0, 0}, query...), -1, false},
		{"a query of 4 kB", framed(append(append([]byte{}, query...), make([]byte, maxQuery-len(query))...)), dns.RcodeSuccess, true},
		{"a response of 60 kB", append([]byte{0xf0, 0}, response...), -1, false},
	} {
		inBubble(t, func(t *testing.T, _ *Server, conn net.Conn) {
			start := time.Now()
			_, err := conn.Write(c.bytes)
			must.Succeed(t, err, c.what)
			if c.code >= 0 {
				if r := readReply(t, conn); r.Rcode != c.code || r.Id != binary.BigEndian.Uint16(query) {
					t.Errorf("%s: reply %v", c.what, r)
				}
			}
			if c.stays {
				checkClosed(t, conn, start, idleTime)
			} else {
				checkClosed(t, conn, start, 0)
			}
		})
	}
}

// oneAtATime is an Answerer that counts how many connections it answers at once.
type oneAtATime struct {
	Answerer
	now, most atomic.Int32
}

func (o *oneAtATime) Answer(query []byte, tcp bool) ([]byte, zone.Outcome) {
	if now := o.now.Add(1); now > 1 {
		o.most.Store(now)
	}
	defer o.now.Add(-1)
	for range 10 {
		runtime.Gosched()
	}
	return o.Answerer.Answer(query, tcp)
}

// Many connections take one processor: the server answers one query at a time.
func TestConnectionsTakeTurns(t *testing.T) {
	const clients, queries = 8, 200
	at := netip.AddrPortFrom(loopback4, freeport.Reserve(t, nil, loopback4)[1])
	answerer := &oneAtATime{Answerer: testZone(t)}
	s := New(Options{Settings: Settings{Listen: []netip.AddrPort{at}}, Answerer: answerer, Events: event.NewLog(100, time.Now)})
	scope.Go(t, s.Run)
	s.awaitUp(t)
	query := framed(packed(t, question("web.vip.internal.", dns.TypeA)))
	var group sync.WaitGroup
	for range clients {
		c := dial(t, "tcp", at)
		group.Go(func() {
			if _, err := c.Write(bytes.Repeat(query, queries)); err != nil {
				t.Error(err)
			}
		})
		group.Go(func() {
			reply := make([]byte, len(query)+16) // an A record more
			for range queries {
				if _, err := io.ReadFull(c, reply); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	group.Wait()
	expect.AtMost(t, answerer.most.Load(), 0, "connections that are answered at the same time")
}

// A connection in its turn moves bytes as any other: large writes that wait for the reader, ends, and
// deadlines.
func TestTurnConn(t *testing.T) {
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	client := dial(t, "tcp", l.Addr().(*net.TCPAddr).AddrPort())
	accepted := must.Get(l.Accept())(t)
	defer accepted.Close()
	c := must.Get(newTurnConn(accepted.(*net.TCPConn), new(sync.Mutex)))(t)
	want := bytes.Repeat([]byte("0123456789abcdef"), 1<<19) // 8 MiB, more than the buffers
	done := make(chan error, 1)
	go func() {
		n, err := c.Write(want)
		if err == nil && n != len(want) {
			err = io.ErrShortWrite
		}
		done <- err
	}()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(client, got); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the client reads something else, %v", err)
	}
	expect.Succeed(t, <-done)
	_ = c.SetReadDeadline(time.Now().Add(-time.Second))
	if n, err := c.Read(got); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read after the deadline: %d, %v", n, err)
	}
	_ = c.SetReadDeadline(time.Time{})
	must.Get(client.Write([]byte("query")))(t)
	if n, err := c.Read(got); string(got[:n]) != "query" || err != nil {
		t.Errorf("read %q, %v", got[:n], err)
	}
	client.Close()
	if n, err := c.Read(got); n != 0 || err != io.EOF {
		t.Errorf("read at the end: %d, %v", n, err)
	}
}

// checkRefused checks that the server ends a new connection at once.
func checkRefused(t testing.TB, dial func() (net.Conn, error)) {
	t.Helper()
	c, err := dial()
	if err == nil {
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(maxWait))
		_, err = c.Read(make([]byte, 1))
	}
	if !errors.Is(err, unix.ECONNRESET) && !errors.Is(err, io.EOF) {
		t.Errorf("a connection: %v", err)
	}
}

// The number of connections is limited, and slow clients take nothing from others.
func TestConnectionLimit(t *testing.T) {
	w := newWorld(t, Options{}, loopback4)
	w.awaitUp(t)
	at := netip.AddrPortFrom(loopback4, w.port)
	began := time.Now()
	var open []net.Conn
	for range maxConnections - 1 {
		c := dial(t, "tcp", at)
		open = append(open, c)
	}
	wait.Until(t, "connections", func() bool { return w.Counters().Connections() == maxConnections-1 })
	checkWeb(t, "tcp", at)
	checkWeb(t, "udp", at)
	wait.Until(t, "the end of a connection", func() bool { return w.Counters().Connections() == maxConnections-1 })
	open = append(open, dial(t, "tcp", at))
	wait.Until(t, "all connections", func() bool { return w.Counters().Connections() == maxConnections })
	last := len(open)
	ended := make(chan int, last+1)
	c, err := net.Dial("tcp", at.String())
	if errors.Is(err, unix.ECONNRESET) {
		ended <- last
	} else {
		must.Succeed(t, err)
		open = append(open, c)
	}
	for i, c := range open {
		go func() {
			_ = c.SetDeadline(time.Now().Add(maxWait))
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
				ended <- i
			}
		}()
	}
	select {
	case first := <-ended:
		if first == last {
			wait.Until(t, "one that was dropped", func() bool { return w.Counters().Dropped(ConnectionLimit) == 1 })
		} else { // a slow machine took a second for all of them: the longest silent one gives way
			expect.Equal(t, first, 0, "the connection that ended")
			expect.AtLeast(t, time.Since(began), time.Second, "the time until it ended")
		}
	case <-time.After(maxWait):
		t.Error("a connection beyond the limit ends none")
	}
	checkWeb(t, "udp", at)
	for _, c := range open {
		c.Close()
	}
	wait.For(t, "room again", func() error {
		c, err := net.Dial("tcp", at.String())
		if err != nil {
			return err
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(maxWait))
		if _, err := c.Write(framed(packed(t, question("web.vip.internal.", dns.TypeA)))); err != nil {
			return err
		}
		_, err = io.ReadFull(c, make([]byte, 2))
		return err
	})
}

// A query of a connection that was accepted before the end is answered, and then the connection ends.
func TestQueryUnderWayAtTheEnd(t *testing.T) {
	w := newWorld(t, Options{}, loopback4)
	w.awaitUp(t)
	w.stop = time.Hour // the test doesn't depend on the speed of the machine
	at := netip.AddrPortFrom(loopback4, w.port)
	c := dial(t, "tcp", at)
	wait.Until(t, "the connection", func() bool { return w.Counters().Connections() == 1 })
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.end()
	}()
	wait.Until(t, "the end of the listener", func() bool {
		c, err := net.Dial("tcp", at.String())
		if err == nil {
			c.Close()
		}
		return err != nil
	})
	expect.Equal(t, len(must.Get(askFrom(c, question("web.vip.internal.", dns.TypeA)))(t).Answer), 1)
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("after the answer: %v", err)
	}
	<-ended
}

// A client that says nothing doesn't delay the end for long.
func TestSilentConnectionAtTheEnd(t *testing.T) {
	w := newWorld(t, Options{}, loopback4)
	w.awaitUp(t)
	c := dial(t, "tcp", netip.AddrPortFrom(loopback4, w.port))
	wait.Until(t, "the connection", func() bool { return w.Counters().Connections() == 1 })
	w.end()
	_, err := c.Read(make([]byte, 1))
	expect.Is(t, err, io.EOF)
}

// Whatever a client sends, and in whatever parts, the connection ends, and each reply has its length before it.
func FuzzTCP(f *testing.F) {
	query := func(name string) []byte {
		m := new(dns.Msg)
		m.SetQuestion(name, dns.TypeA)
		b := must.Get(m.Pack())(f)
		return append(binary.BigEndian.AppendUint16(nil, uint16(len(b))), b...)
	}
	web := query("web.vip.internal.")
	for _, seed := range [][]byte{nil, web, append(slices.Clone(web), web...), web[:5], {0, 0}, {0xff, 0xff, 1}, append([]byte{0xff, 0xff}, make([]byte, 5000)...)} {
		f.Add(seed, uint16(3))
	}
	s := New(Options{Answerer: testZone(f)})
	f.Fuzz(func(t *testing.T, stream []byte, part uint16) {
		mine, its := net.Pipe()
		done := make(chan struct{})
		go func() {
			defer close(done)
			defer its.Close()
			all := new(connections)
			s.serveConn(its, all.limit.Admit(its), all)
		}()
		go func() {
			for at := 0; at < len(stream); at += int(part) + 1 {
				if _, err := mine.Write(stream[at:min(len(stream), at+int(part)+1)]); err != nil {
					break
				}
			}
			mine.SetReadDeadline(time.Now().Add(5 * time.Millisecond)) // the server waits for more
		}()
		for {
			var size [2]byte
			if _, err := io.ReadFull(mine, size[:]); err != nil {
				break
			}
			if _, err := io.ReadFull(mine, make([]byte, binary.BigEndian.Uint16(size[:]))); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("a reply that ends early: %v", err)
				break
			}
		}
		mine.Close()
		<-done
	})
}
