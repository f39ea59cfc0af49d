package proxy

import (
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/ironvip/ironvip/proxy/balance"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

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
				ends := map[*balance.Endpoint]bool{}
				for _, spec := range []*vip.Frontend{f, hopeless, f} {
					p.must(spec)
					for _, e := range p.frontend(f.Key).Endpoints() {
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
				wait.Until(t, "nothing is open", func() bool { return p.Usage().Connections == 0 && p.Usage().Sessions == 0 })
				wait.Until(t, "every count is back at 0", func() bool {
					for e := range ends {
						if e.State.Open.Load() != 0 || e.State.Shared.Load() != 0 {
							return false
						}
					}
					return true
				})
				p.must(limited(f, 1, 0, 0))
				expect.False(t, p.Full(f.Service), "a client counts in its service")
			})
		}
	}
}
