package proxy

import (
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/logbuffer"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

// One backend accepts and never answers, and its clients give up. The descriptors are few. Clients
// of another service see no error, the connections of the first don't accumulate, and refusals are
// counted and logged.
func TestHungBackendDoesNotAffectOthers(t *testing.T) {
	for i, family := range families {
		closes := i == 0
		t.Run(fmt.Sprintf("%s, clients close %v", family.name, closes), func(t *testing.T) {
			log := &logbuffer.Buffer{}
			p := newTarget(t, Options{Files: 2 + 2*100, Log: slog.New(slog.NewTextHandler(log, nil))})
			sick := onVIP(freeKey(t, family.vip, vip.TCP), vip.RoundRobin, tcpBackend(t, family.backend, hung))
			sick.Service.Name = "sick"
			sick.Relay = &vip.ProxySettings{HalfCloseTimeout: 500 * time.Millisecond}
			well := onVIP(freeKey(t, family.vip, vip.TCP), vip.RoundRobin, tcpBackend(t, family.backend, named("well")))
			well.Service.Name = "well"
			p.must(sick)
			p.must(well)

			var clients sync.WaitGroup
			end := make(chan struct{})
			for range 20 { // as fast as the proxy allows
				clients.Go(func() {
					var open []net.Conn
					for {
						select {
						case <-end:
							for _, c := range open {
								c.Close()
							}
							return
						default:
						}
						c, err := net.DialTimeout("tcp", sick.Key.AddrPort().String(), testTimeout)
						if err != nil {
							time.Sleep(time.Millisecond)
							continue
						}
						fmt.Fprintln(c, "request")
						open = append(open, c)
						if closes {
							c.Close()
						} else if len(open) > 100 {
							open[0].Close()
							open = open[1:]
						}
						time.Sleep(time.Millisecond)
					}
				})
			}
			wait.Until(t, "the sick service is refused", func() bool { return p.refusedFor("reserve") > 0 })
			for range 30 {
				c := dial(t, well.Key)
				must.Equal(t, c.line(t), "well")
				c.Close()
				time.Sleep(10 * time.Millisecond)
			}
			state := p.Usage()
			close(end)
			clients.Wait()
			if !state.Reserved || state.Exhausted || state.Largest != sick.Service {
				t.Errorf("capacity: %+v", state)
			}
			expect.Empty(t, p.ServiceRefusals(well.Service), "refused clients of the other service")
			expect.Equal(t, strings.Count(log.String(), "clients refused"), 1, "logged in a minute")
			wait.Until(t, "nothing open", func() bool { return p.Stats().Connections == 0 })
		})
	}
}
