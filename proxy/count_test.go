package proxy

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

// A connection counts as soon as its backend is chosen, before it is dialed. Clients that arrive at
// the same time therefore don't all choose the backend with the fewest connections.
func TestAConnectionCountsFromTheChoiceOn(t *testing.T) {
	busy, idle := netip.MustParseAddrPort("192.0.2.1:80"), netip.MustParseAddrPort("192.0.2.2:80")
	for _, c := range []struct {
		scheduler vip.Scheduler
		affinity  time.Duration
		want      int // of 6 clients; 3 more are on busy already
	}{
		{vip.LeastConnection, 0, 4}, // or 5: among equals, the turn decides
		{vip.WeightedLeastConnection, 0, 4},
		{vip.LeastConnection, time.Hour, 4},
	} {
		p := newTarget(t, Options{})
		f := onVIP(freeKey(t, "127.96.0.1", vip.TCP), c.scheduler, busy, idle)
		f.Affinity = c.affinity
		p.must(f)
		front := p.frontend(f.Key)
		ends := front.backends.Load().all
		ends.of(busy).state.Open.Store(3)
		var asked []*attempt
		var chosen []*endpoint
		for i := range 6 {
			a := front.attempt(netip.AddrPortFrom(testClient(i), 40000), front.backends.Load().service)
			e, why := a.take()
			must.True(t, e != nil, why)
			asked, chosen = append(asked, a), append(chosen, e)
		}
		n := 0
		for _, e := range chosen {
			if e == ends.of(idle) {
				n++
			}
		}
		if n != c.want && n != c.want+1 {
			t.Errorf("%s, affinity %s: %d of 6 went to the backend with the fewest", c.scheduler, c.affinity, n)
		}
		expect.Equal(t, p.open(f.Key, idle), n, "%s: connections counted", c.scheduler)
		for i, e := range chosen {
			e.leave()
			asked[i].end()
		}
		ends.of(busy).state.Open.Add(-3)
		wantNoneOpen(t, p, f.Key)
	}
}

// A client with affinity counts on its backend, too.
func TestARememberedClientCounts(t *testing.T) {
	p := newTarget(t, Options{})
	one := netip.MustParseAddrPort("192.0.2.1:80")
	f := onVIP(freeKey(t, "127.96.0.1", vip.TCP), vip.RoundRobin, one, netip.MustParseAddrPort("192.0.2.2:80"))
	f.Affinity = time.Hour
	p.must(f)
	front := p.frontend(f.Key)
	client := netip.MustParseAddrPort("198.51.100.1:40000")
	for want := 1; want <= 3; want++ {
		a := front.attempt(client, front.backends.Load().service)
		e, _ := a.take()
		defer a.end()
		defer e.leave()
		expect.Equal(t, p.open(f.Key, e.addr), want, "connections of one client")
	}
}

// Every connection's count is returned once, whether the connection is served, refused, unanswered,
// closed by an update, or has no backend that answers.
func TestEveryCountIsGivenBack(t *testing.T) {
	for _, protocol := range []vip.Protocol{vip.TCP, vip.UDP} {
		for _, affinity := range []time.Duration{0, time.Hour} {
			t.Run(fmt.Sprint(protocol, affinity), func(t *testing.T) {
				p := newTarget(t, Options{UDPIdle: 50 * time.Millisecond})
				var healthy, refuses, silent netip.AddrPort
				if protocol == vip.TCP {
					healthy, refuses, silent = tcpBackend(t, "127.0.0.1", named("a")), closedPort(t, "127.0.0.1"), fullBacklog(t)
				} else {
					healthy, refuses, silent = udpBackend(t, "127.0.0.1", "a"), freeKey(t, "127.0.0.1", vip.UDP).AddrPort(), netip.MustParseAddrPort("240.0.0.1:9") // no route
				}
				f := onVIP(freeKey(t, "127.96.0.1", protocol), vip.LeastConnection, healthy, refuses, silent)
				f.Affinity, f.Relay = affinity, &vip.ProxySettings{ConnectTimeout: 20 * time.Millisecond}
				hopeless := onVIP(f.Key, vip.WeightedLeastConnection, refuses, silent)
				hopeless.Affinity, hopeless.Relay = affinity, f.Relay
				ends := map[*endpoint]bool{}
				for _, spec := range []*vip.Frontend{f, hopeless, f} {
					p.must(spec)
					for _, e := range p.frontend(f.Key).backends.Load().all {
						ends[e] = true
					}
					var clients sync.WaitGroup
					for range 20 {
						clients.Go(func() {
							c, err := net.DialTimeout(protocol.String(), f.Key.AddrPort().String(), testTimeout)
							if err != nil {
								return // reset
							}
							defer c.Close()
							_ = c.SetDeadline(time.Now().Add(30 * time.Millisecond))
							_, _ = c.Write([]byte("x"))
							_, _ = c.Read(make([]byte, 10))
						})
					}
					time.Sleep(10 * time.Millisecond) // some are in progress when the next arrive
					if spec != hopeless {
						p.must(without(spec, silent))
					}
					clients.Wait()
				}
				wait.Until(t, "nothing is open", func() bool { return p.capacity.connections.Load() == 0 && p.capacity.sessions.Load() == 0 })
				wait.Until(t, "every count is back at 0", func() bool {
					for e := range ends {
						if e.state.Open.Load() != 0 || e.state.Shared.Load() != 0 {
							return false
						}
					}
					return p.frontend(f.Key).backends.Load().service.open.Load() == 0
				})
			})
		}
	}
}

func wantNoneOpen(t *testing.T, p *bench, key vip.FrontendKey) {
	t.Helper()
	expect.Empty(t, must.Get(p.Connections(context.Background(), key))(t), "connections counted")
}
