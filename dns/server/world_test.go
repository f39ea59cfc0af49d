package server

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"go.uber.org/goleak"

	"github.com/ironvip/ironvip/dns/zone"
	"github.com/ironvip/ironvip/internal/connlimit"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/sockets"
	"github.com/ironvip/ironvip/test/freeport"
	"github.com/ironvip/ironvip/test/inherit"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/scope"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	loopback4 = netip.MustParseAddr("127.0.0.1")
	loopback6 = netip.MustParseAddr("::1")
)

// maxWait bounds a read of a reply. No test needs it.
const maxWait = time.Minute

// testZone has the service web and an address that many services share.
func testZone(t testing.TB) *zone.Zone {
	z, err := zone.New(zone.Settings{Domain: "vip.internal", TTL: 30 * time.Second, NegativeTTL: time.Second, ShortNames: true, Reverse: true,
		Pools: []netip.Prefix{netip.MustParsePrefix("10.64.0.0/16")}})
	must.Succeed(t, err)
	z.SetSynced()
	changes := []zone.Change{{Service: zone.Service{Key: vip.ServiceKey{Namespace: "default", Name: "web"}, Since: 1, VIPs: []netip.Addr{netip.MustParseAddr("10.64.0.1")}}}}
	for i := range 5 {
		long := strings.Repeat("x", 60) + fmt.Sprint(i)
		changes = append(changes, zone.Change{Service: zone.Service{Key: vip.ServiceKey{Namespace: long, Name: long}, Since: 1,
			VIPs: []netip.Addr{netip.MustParseAddr("10.64.0.2")}}})
	}
	z.Apply(1, changes)
	return z
}

// world is a running Server.
type world struct {
	testing.TB
	*Server
	port uint16       // free at every address
	took atomic.Int64 // queries whose time was measured
	end  func()
}

func newWorld(t testing.TB, o Options, listen ...netip.Addr) *world {
	w := &world{TB: t, port: freeport.Reserve(t, nil, loopback4)[1]}
	for _, a := range listen {
		o.Listen = append(o.Listen, netip.AddrPortFrom(a, w.port))
	}
	w.start(o)
	return w
}

func (w *world) start(o Options) {
	o.Took = func(time.Duration) { w.took.Add(1) }
	o.Answerer, o.Events = testZone(w), event.NewLog(100, time.Now)
	w.Server = New(o)
	w.idle, w.message = time.Hour, time.Hour         // no test depends on the speed of the machine
	w.clientOf = func(c net.Conn) connlimit.Client { // the clients of a test are one user
		if c.RemoteAddr().(*net.TCPAddr).IP.IsLoopback() {
			return connlimit.Client{}
		}
		return connlimit.ClientOf(c)
	}
	w.end = scope.Go(w, w.Run)
}

// awaitUp waits until every address is served.
func (s *Server) awaitUp(t testing.TB) {
	t.Helper()
	wait.For(t, "listeners", func() error {
		all := s.Listeners()
		if len(all) == 0 {
			return errors.New("none")
		}
		for _, l := range all {
			if !l.Up {
				return fmt.Errorf("%s: %v", l.Addr, l.Err)
			}
		}
		return nil
	})
}

func question(name string, qtype uint16) *dns.Msg {
	m := new(dns.Msg)
	m.SetQuestion(name, qtype)
	return m
}

func packed(t testing.TB, m *dns.Msg) []byte {
	return must.Get(m.Pack())(t)
}

// ask exchanges a message with the server at an address.
func ask(t testing.TB, network string, at netip.AddrPort, m *dns.Msg) *dns.Msg {
	t.Helper()
	c := &dns.Client{Net: network, Timeout: maxWait}
	r, _, err := c.Exchange(m, at.String())
	must.Succeed(t, err, "%s %s", network, at)
	return r
}

// checkWeb asks for web.
func checkWeb(t testing.TB, network string, at netip.AddrPort) {
	t.Helper()
	r := ask(t, network, at, question("wEb.vip.internal.", dns.TypeA))
	if len(r.Answer) != 1 || r.Answer[0].(*dns.A).A.String() != "10.64.0.1" || r.Question[0].Name != "wEb.vip.internal." {
		t.Errorf("%s %s: reply %v", network, at, r)
	}
}

// dial connects to the server.
func dial(t testing.TB, network string, at netip.AddrPort) net.Conn {
	t.Helper()
	c := must.Get(net.Dial(network, at.String()))(t)
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(maxWait))
	return c
}

// count returns the number of answered queries of a code.
func (c *Counters) count(transport Transport, qtype, code string) (n uint64) {
	for q := range c.Queries() {
		if q.Transport == transport && q.Type == qtype && q.Code == code {
			n += q.Count
		}
	}
	return n
}

// inside opens the sockets of a server inside a place, for a server that runs outside.
func inside(t testing.TB, in freeport.Place, listen ...netip.AddrPort) *sockets.Set {
	var next *sockets.Set
	in.Do(func() {
		var first sockets.Set
		for _, at := range listen {
			udp := must.Get(first.ListenUDP(t.Context(), at))(t)
			defer udp.Close()
			tcp := must.Get(first.ListenTCP(t.Context(), at))(t)
			defer tcp.Close()
		}
		next = inherit.From(t, &first)
	})
	return next
}
