package session

import (
	"context"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/announce/bgp/bgptest"
	"github.com/ironvip/ironvip/announce/bgp/message"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

// keeper owns a session that is handed over.
type keeper struct {
	*running
	conn net.Conn
	kept Kept
}

func (k *keeper) HandOver(c net.Conn, kept Kept) { k.conn, k.kept = c, kept }

// tcp returns both ends of a connection.
func tcp(t *testing.T) (ours, theirs net.Conn) {
	t.Helper()
	l := must.Get(net.Listen("tcp6", "[::1]:0"))(t)
	defer l.Close()
	ours = must.Get(net.Dial("tcp6", l.Addr().String()))(t)
	return ours, must.Get(l.Accept())(t)
}

// A session goes on in the next process, from the middle of a message of the router. The routes are sent again, and those that
// are gone are withdrawn when the others are complete.
func TestHandOver(t *testing.T) {
	ours, theirs := tcp(t)
	router := bgptest.NewConn(t, theirs)
	settings := Settings{BGPPeer: announce.BGPPeer{ASN: 65000, LocalASN: 65010}, RouterID: netip.MustParseAddr("10.0.0.2")}
	run := func(k *keeper, s *Session) (end func() error) {
		ctx, cancel := context.WithCancelCause(t.Context())
		ended := make(chan error, 1)
		go func() {
			_, err := s.Run(ctx)
			ended <- err
		}()
		return func() error { cancel(ErrHandOver); return <-ended }
	}
	begin := func(prefixes ...string) (*keeper, func(), *table.Table[netip.Prefix, announce.PrefixRoute]) {
		routes := announce.NewPrefixRoutes()
		ready := routes.Initializer()
		for _, p := range prefixes {
			routes.Set(announce.PrefixRoute{Prefix: netip.MustParsePrefix(p)})
		}
		return &keeper{running: &running{t: t, routes: routes, up: make(chan struct{})}}, ready, routes
	}
	k, ready, routes := begin("fd96::1/128", "fd96::2/128")
	ready()
	end := run(k, New(settings, ours, false, routes, k))
	router.Establish(bgptest.Open())
	router.Expect("+fd96::1/128 +fd96::2/128", "EOR 4", "EOR 6")
	refresh := []byte("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x17\x05\x00\x02\x00\x01")
	router.Send(append(message.AppendKeepalive(refresh), refresh[:20]...)) // a refresh, a KEEPALIVE, and a part of a refresh
	router.Expect("+fd96::1/128 +fd96::2/128")
	expect.Is(t, end(), ErrHandOver)
	must.True(t, k.conn != nil, "the session was not handed over")

	next, ready, routes := begin("fd96::2/128")
	end = run(next, Resume(settings, k.conn, k.kept, routes, next))
	router.Expect("+fd96::2/128")
	ready()
	router.Expect("-fd96::1/128", "EOR 4", "EOR 6")
	router.Send(refresh[20:])
	router.Expect("+fd96::2/128")
	expect.Is(t, end(), ErrHandOver)
	expect.Len(t, next.kept.Prefixes, 1, "the prefixes that the router has")
	next.conn.Close()
}

// A session is handed over while routes change, with messages that were not sent.
func TestHandOverInTheMiddleOfChanges(t *testing.T) {
	routes := announce.NewPrefixRoutes()
	s := New(Settings{}, nil, false, routes, nil)
	s.out = newAdjRIBOut(routes, [message.Families]bool{true, true}, [message.Families]netip.Addr{netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00::2")}, encode)
	defer s.out.feed.Close()
	routes.Set(plain("10.96.0.1/32"))
	s.unsent, _ = s.out.appendUpdates(nil)
	routes.Set(plain("10.96.0.2/32"))
	s.conn, _ = bgptest.Pipe()
	s.reading, s.readErr = make(chan struct{}), os.ErrDeadlineExceeded
	close(s.reading)
	kept, ok := s.handOver()
	must.True(t, ok, "the session was not handed over")
	expect.SameList(t, kept.Prefixes, []netip.Prefix{prefix("10.96.0.1/32")})
	expect.Equal(t, words(t, kept.Unsent), "+10.96.0.1/32")
}

// Prefixes of the earlier process are withdrawn after the restart time if this one does not learn which ones remain. Messages
// that the earlier process has not sent come first.
func TestResumedForTooLong(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ours, theirs := bgptest.Pipe()
		router := bgptest.NewConn(t, theirs)
		routes := announce.NewPrefixRoutes()
		routes.Initializer() // it is never ready
		routes.Set(plain("fd96::2/128"))
		r := &running{t: t, routes: routes, up: make(chan struct{})}
		ctx, cancel := context.WithCancel(t.Context())
		began := time.Now()
		kept := Kept{Remote: bgptest.Open(), Prefixes: []netip.Prefix{prefix("fd96::1/128"), prefix("fd96::2/128")},
			Unsent: message.AppendWithdraw(nil, message.IPv6, netip.MustParseAddr("fd00::2"), []netip.Prefix{prefix("fd96::9/128")})}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			Resume(Settings{}, ours, kept, routes, r).Run(ctx)
		}()
		router.Expect("-fd96::9/128", "+fd96::2/128")
		time.Sleep(RestartTime - time.Second)
		router.Expect("-fd96::1/128")
		expect.Equal(t, time.Since(began), RestartTime, "time until the withdrawal")
		cancel()
		<-ended
		router.Close()
	})
}
