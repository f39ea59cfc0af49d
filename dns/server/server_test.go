package server

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/dns/zone"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/sockets"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/inherit"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/scope"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

func TestServes(t *testing.T) {
	w := newWorld(t, Options{}, loopback4, loopback6)
	w.awaitUp(t)
	for _, a := range []netip.Addr{loopback4, loopback6} {
		at := netip.AddrPortFrom(a, w.port)
		for _, network := range []string{"udp", "tcp"} {
			checkWeb(t, network, at)
			if r := ask(t, network, at, question("none.vip.internal.", dns.TypeA)); r.Rcode != dns.RcodeNameError {
				t.Errorf("%s: reply %v", network, r)
			}
		}
		// An answer that is too long by UDP, with and without EDNS.
		shared := question("2.0.64.10.in-addr.arpa.", dns.TypePTR)
		if r := ask(t, "udp", at, shared); !r.Truncated || len(r.Answer) == 4 {
			t.Errorf("reply by UDP: %v", r)
		}
		if r := ask(t, "tcp", at, shared); r.Truncated || len(r.Answer) != 4 {
			t.Errorf("reply by TCP: %v", r)
		}
		shared.SetEdns0(4096, false)
		if r := ask(t, "udp", at, shared); !r.Truncated && len(r.Answer) != 4 || r.IsEdns0() == nil {
			t.Errorf("reply with EDNS: %v", r)
		}
	}
	c := w.Counters()
	for _, transport := range Transports {
		if c.count(transport, "A", "NOERROR") != 2 || c.count(transport, "A", "NXDOMAIN") != 2 || c.count(transport, "PTR", "NOERROR") == 0 {
			t.Errorf("%s: counts %v", transport, slices.Collect(c.Queries()))
		}
	}
	// A query is counted after its reply.
	wait.Until(t, "durations", func() bool { return w.took.Load() == 14 })
	expect.Empty(t, w.Problems(), "problems")
	w.end()
	_, err := net.Dial("tcp", netip.AddrPortFrom(loopback4, w.port).String())
	expect.Is(t, err, unix.ECONNREFUSED, "after the end")
}

// No message stops the server, and none that isn't a query gets a reply.
func TestStrangeMessages(t *testing.T) {
	w := newWorld(t, Options{}, loopback4)
	w.awaitUp(t)
	at := netip.AddrPortFrom(loopback4, w.port)
	query := packed(t, question("web.vip.internal.", dns.TypeA))
	response := slices.Clone(query)
	response[2] |= 0x80
	long := append(slices.Clone(query), make([]byte, 5000)...)
	u := dial(t, "udp", at)
	for _, c := range []struct {
		what string
		msg  []byte
		code int // -1: no reply
	}{
		{"an empty datagram", nil, -1},
		{"one byte", query[:1], -1},
		{"a response", response, -1},
		{"a long response", append(slices.Clone(response), make([]byte, 5000)...), -1},
		{"half a question", query[:20], dns.RcodeFormatError},
		{"a datagram of 5 kB", long, dns.RcodeSuccess},
		{"a query with bytes behind it", long[:1000], dns.RcodeSuccess},
	} {
		must.Get(u.Write(c.msg))(t)
		b := make([]byte, 4096)
		if c.code >= 0 {
			n, err := u.Read(b)
			var r dns.Msg
			if err != nil || r.Unpack(b[:n]) != nil || r.Rcode != c.code {
				t.Errorf("%s: reply %x, %v", c.what, b[:n], err)
			}
			continue
		}
		// The server answers in order, so the next reply is that of another query.
		next := packed(t, question("none.vip.internal.", dns.TypeA))
		must.Get(u.Write(next))(t)
		if n, err := u.Read(b); err != nil || b[0] != next[0] || b[1] != next[1] {
			t.Errorf("%s: reply %x, %v", c.what, b[:n], err)
		}
	}
	expect.Equal(t, w.Counters().Dropped(Malformed), 4, "dropped")
	expect.Equal(t, w.Counters().count(UDP, "other", "FORMERR"), 1, "answered with FORMERR")
}

// A port that another program has is reported, and served when it becomes free.
func TestTakenPort(t *testing.T) {
	for _, network := range []string{"udp", "tcp"} {
		w := newWorld(t, Options{}) // only reserves a port
		at := netip.AddrPortFrom(loopback4, w.port)
		var other interface{ Close() error }
		var err error
		if network == "udp" {
			other, err = net.ListenPacket("udp", at.String())
		} else {
			other, err = net.Listen("tcp", at.String())
		}
		must.Succeed(t, err)
		w.Reconfigure(Settings{Listen: []netip.AddrPort{at}})
		wait.Until(t, "a problem", func() bool { return len(w.Problems()) == 1 })
		if p := w.Problems()[0]; p.Code != vip.CodePortTaken || p.Place != at.String() || p.Hint == "" {
			t.Errorf("problem %+v", p)
		}
		if l := w.Listeners(); len(l) != 1 || l[0].Up || l[0].Addr != at || !errors.Is(l[0].Err, unix.EADDRINUSE) {
			t.Errorf("listeners %+v", l)
		}
		other.Close()
		w.awaitUp(t)
		checkWeb(t, "udp", at)
		checkWeb(t, "tcp", at)
		events, _ := w.Events.Since(0)
		if len(events) != 2 || events[0].Kind != "dns_listener_failed" || events[1].Kind != "dns_listener_open" || events[0].Object != at.String()+"/"+network {
			t.Errorf("events %+v", events)
		}
	}
	w := newWorld(t, Options{}, netip.MustParseAddr("192.0.2.1"), loopback4)
	wait.Until(t, "a problem", func() bool { return len(w.Problems()) == 1 })
	if p := w.Problems()[0]; p.Code != vip.CodeDataplane || p.Hint == "" {
		t.Errorf("problem %+v", p)
	}
	wait.Until(t, "the other listener", func() bool { return w.Listeners()[0].Up })
	checkWeb(t, "udp", netip.AddrPortFrom(loopback4, w.port))
}

// Addresses come and go while others stay: no query to those is lost.
func TestReconfigure(t *testing.T) {
	w := newWorld(t, Options{}, loopback4)
	w.awaitUp(t)
	kept, moved := netip.AddrPortFrom(loopback4, w.port), netip.AddrPortFrom(netip.MustParseAddr("127.0.0.2"), w.port)
	var stop atomic.Bool
	done := make(chan int)
	go func() {
		n := 0
		defer func() { done <- n }()
		for ; !stop.Load() && !t.Failed(); n++ {
			checkWeb(t, "udp", kept)
		}
	}()
	for range 10 {
		w.Reconfigure(Settings{Listen: []netip.AddrPort{kept, moved}, RateLimit: 5})
		w.awaitUp(t)
		checkWeb(t, "tcp", moved)
		w.Reconfigure(Settings{Listen: []netip.AddrPort{kept}})
		wait.For(t, "the port is free", func() error {
			l, err := net.Listen("tcp", moved.String())
			if err == nil {
				l.Close()
			}
			return err
		})
	}
	stop.Store(true)
	expect.AtLeast(t, <-done, 10, "queries")
	w.Reconfigure(Settings{})
	wait.Until(t, "the end of all", func() bool {
		_, err := net.Dial("tcp", kept.String())
		return errors.Is(err, unix.ECONNREFUSED)
	})
	expect.Equal(t, len(w.Listeners()), 0, "listeners remain")
}

// succeeded returns a server at both loopback addresses, and its sockets for the next process.
func succeeded(t *testing.T) (*world, *sockets.Set) {
	t.Helper()
	var set sockets.Set
	w := newWorld(t, Options{Sockets: &set}, loopback4, loopback6)
	w.awaitUp(t)
	next := inherit.From(t, &set)
	return w, next
}

// The next process has the sockets before the former one ends: no query is refused.
func TestTakeover(t *testing.T) {
	w, next := succeeded(t)
	at := netip.AddrPortFrom(loopback4, w.port)
	waiting := dial(t, "tcp", at)
	w.end()
	if _, err := waiting.Read(make([]byte, 1)); err == nil {
		t.Error("a connection of the former process is open")
	}
	u := dial(t, "udp", at) // while no process reads
	query := packed(t, question("web.vip.internal.", dns.TypeA))
	must.Get(u.Write(query))(t)
	s := New(Options{Settings: Settings{Listen: []netip.AddrPort{at, netip.AddrPortFrom(loopback6, w.port)}}, Answerer: testZone(t), Sockets: next})
	scope.Go(t, s.Run)
	b := make([]byte, zone.MaxUDP)
	if n, err := u.Read(b); err != nil || b[0] != query[0] || b[1] != query[1] {
		t.Errorf("reply %x, %v", b[:n], err)
	}
	s.awaitUp(t)
	checkWeb(t, "tcp", at)
	expect.Equal(t, next.Unclaimed(), 0, "sockets are unclaimed")
}

// When the server says that it has tried to listen, each address is up or has an error, and the sockets
// of the former process that it wants are its own.
func TestTried(t *testing.T) {
	w, next := succeeded(t)
	w.end()
	kept, absent := netip.AddrPortFrom(loopback4, w.port), netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), w.port)
	s := New(Options{Settings: Settings{Listen: []netip.AddrPort{kept, absent}}, Answerer: testZone(t), Events: event.NewLog(10, time.Now), Sockets: next})
	expect.False(t, table.IsClosed(s.Tried()), "tried before Run")
	scope.Go(t, s.Run)
	<-s.Tried()
	for _, l := range s.Listeners() {
		if l.Up != (l.Addr == kept) || (l.Err != nil) != (l.Addr == absent) {
			t.Errorf("listener %+v", l)
		}
	}
	if n := next.Unclaimed(); n != len(Transports) { // of the address that is no longer wanted
		t.Errorf("%d sockets are unclaimed", n)
	}
	next.RemoveUnclaimed()
	for _, network := range []string{"udp", "tcp"} {
		checkWeb(t, network, kept)
	}
}

// Without an address, there is nothing to try. A later one changes nothing.
func TestTriedWithoutAddresses(t *testing.T) {
	w := newWorld(t, Options{})
	<-w.Tried()
	w.Reconfigure(Settings{Listen: []netip.AddrPort{netip.AddrPortFrom(loopback4, w.port)}})
	w.awaitUp(t)
	w.Reconfigure(Settings{})
	wait.Until(t, "the end", func() bool { return len(w.Listeners()) == 0 })
}
