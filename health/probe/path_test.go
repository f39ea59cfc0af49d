package probe

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/vip"
)

func pathTo(backend string) vip.ProbePath {
	return vip.ProbePath{VIP: netip.MustParseAddr("10.96.0.1"), Backend: netip.MustParseAddr(backend), Forward: vip.ForwardDirect}
}

func newPaths() *table.Table[vip.ProbePath, vip.ProbePath] {
	return table.New(&table.Clock{}, vip.KeyOfProbePath, func(a, b vip.ProbePath) bool { return a == b })
}

// The table has the paths that targets need, each once, and only while they need them.
func TestPathsOfTargets(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		paths := newPaths()
		l := newLab(t, Options{Paths: paths, Mark: func(vip.ProbePath) (uint32, error) { return 7, nil }}, passes)
		at := func(address string, c vip.HealthCheck) Target {
			a := addr(address)
			return NewTarget(a, c).Along(pathTo(a.Addr().String()))
		}
		first, second, other := at("10.0.0.1:80", tcp), at("10.0.0.1:443", tcp), at("10.0.0.2:80", tcp)
		direct := NewTarget(addr("10.0.0.1:80"), tcp)
		for _, target := range []Target{first, second, other, direct} {
			l.Start(target, Use{Namespace: "default"})
			l.Start(target, Use{Namespace: "default"})
		}
		if first == direct || first.Path() != pathTo("10.0.0.1") || !direct.Path().IsZero() || paths.Len() != 2 {
			t.Errorf("%v and %v, %d paths", first, direct, paths.Len())
		}
		time.Sleep(10 * time.Second)
		if l.health()[vip.Healthy] != 4 || l.fake.markOf(first) != 7 || l.fake.markOf(direct) != 0 {
			t.Errorf("%v, marks %d and %d", l.health(), l.fake.markOf(first), l.fake.markOf(direct))
		}
		l.Stop(first)
		if _, _, needed := paths.Get(pathTo("10.0.0.1")); !needed {
			t.Error("a path in use is gone")
		}
		l.Stop(second)
		l.Stop(second)
		if _, _, needed := paths.Get(pathTo("10.0.0.1")); needed || paths.Len() != 1 {
			t.Error("a path without targets stays")
		}
		command := at("10.0.0.1:80", vip.HealthCheck{Type: vip.CheckExec, Command: "/bin/true"})
		expect.True(t, command.Path().IsZero(), "a command has a path")
		own := vip.ProbePath{VIP: netip.MustParseAddr("10.96.0.1"), Backend: netip.MustParseAddr("10.96.0.1"), Forward: vip.ForwardHost}
		for _, c := range []vip.HealthCheck{tcp, {Type: vip.CheckExec, Command: "/bin/true"}} {
			target := NewTarget(addr("10.96.0.1:80"), c).Along(own)
			l.Start(target, Use{Namespace: "default"})
			expect.True(t, target.Private() && target != NewTarget(addr("10.96.0.1:80"), c), "a target of this host")
		}
		expect.Equal(t, paths.Len(), 1, "paths of the dataplane with targets of this host")
	})
}

// A target whose path has no mark yet is probed as soon as it has one. One that has none for long is
// a fault of this host, which changes nothing for the target.
func TestTargetWithoutPath(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var missing atomic.Bool
		missing.Store(true)
		l := newLab(t, Options{Paths: newPaths(), Mark: func(vip.ProbePath) (uint32, error) {
			if missing.Load() {
				return 0, errors.New("no scheduler")
			}
			return 7, nil
		}}, passes)
		target := NewTarget(addr("10.0.0.1:80"), tcp).Along(pathTo("10.0.0.1"))
		l.Start(target, Use{Namespace: "default"})
		time.Sleep(pathGrace - time.Second)
		if s := l.Stats(); len(l.startsOf(target)) > 0 || len(s.Faults) > 0 || s.Running != 0 {
			t.Errorf("without a path: %+v", s)
		}
		missing.Store(false)
		time.Sleep(2 * pathPause)
		if len(l.startsOf(target)) == 0 || l.health()[vip.Healthy] != 1 {
			t.Errorf("with a path: %v", l.health())
		}
		missing.Store(true)
		time.Sleep(time.Minute)
		f := l.Stats().Faults[NoPath]
		if f.Probes < 5 || !strings.HasSuffix(f.Reason, "10.96.0.1 to 10.0.0.1 by dr: no scheduler") || l.health()[vip.Healthy] != 1 || l.Stats().Running != 0 {
			t.Errorf("%+v, %v", f, l.health())
		}
		missing.Store(false)
		before := len(l.startsOf(target))
		time.Sleep(5 * time.Second)
		expect.True(t, len(l.startsOf(target)) != before, "the target is not probed any more")
	})
}

// Each type connects to the virtual address, from the address that this host uses for the backend. A
// failure names the virtual address.
func TestProbesGoToTheVIP(t *testing.T) {
	need.Root(t) // a packet mark needs it
	vips := map[string]vip.ProbePath{
		"127.0.0.1": {VIP: netip.MustParseAddr("127.0.0.1"), Backend: netip.MustParseAddr("127.0.0.9"), Forward: vip.ForwardDirect},
		"::1":       {VIP: netip.MustParseAddr("::1"), Backend: netip.MustParseAddr("::1"), Forward: vip.ForwardTunnel},
	}
	inFamilies(t, func(t *testing.T, f family) {
		p := vips[f.host]
		echo := listen(t, f.host, func(c net.Conn) { _, _ = io.WriteString(c, "hello") })
		web := must.Get(net.Listen("tcp", net.JoinHostPort(f.host, "0")))(t)
		server := &http.Server{ErrorLog: quiet, Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})}
		served := make(chan struct{})
		go func() { defer close(served); _ = server.Serve(web) }()
		t.Cleanup(func() { server.Close(); <-served })
		along := func(at netip.AddrPort, c vip.HealthCheck) Target {
			c.Timeout = 30 * time.Second
			return NewTarget(netip.AddrPortFrom(p.Backend, at.Port()), c).Along(p)
		}
		for i, d := range probeOnce(t, Options{},
			along(echo, tcp),
			along(echo, vip.HealthCheck{Type: vip.CheckTCP, Expect: "hello"}),
			along(netip.MustParseAddrPort(web.Addr().String()), vip.HealthCheck{Type: vip.CheckHTTP}),
			along(closedPort(t, f.host), tcp),
			along(closedPort(t, f.host), vip.HealthCheck{Type: vip.CheckHTTP}),
			along(closedPort(t, f.host), vip.HealthCheck{Type: vip.CheckUDP, Send: "x"}),
		) {
			want := OK
			if i > 2 {
				want = Refused
			}
			expect.Equal(t, d.outcome, want, "probe %d: %v, %q; want %v", i, d.outcome, d.reason, want)
		}
		_, want := sockaddr(netip.AddrPortFrom(p.VIP, 0))
		if from, err := sourceFor(p.Backend); err != nil || !reflect.DeepEqual(from, want) {
			t.Errorf("the source is %+v, %v, want %+v", from, err, want)
		}
	})
}
