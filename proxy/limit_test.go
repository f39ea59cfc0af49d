package proxy

import (
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
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

// fillUp makes each service take what it gets, in turn, and returns how many descriptors each has.
func fillUp(c *capacity, greedy ...*service) (held []int64) {
	for refused := 0; refused < len(greedy); {
		refused = 0
		for _, s := range greedy {
			if c.take(s, connectionFiles) != admitted {
				refused++
			}
		}
	}
	for _, s := range greedy {
		held = append(held, s.files.Load())
	}
	return held
}

func TestReserve(t *testing.T) {
	const total = 2000
	for _, x := range []struct {
		greedy   int
		others   int64 // services that are idle so far
		wantLeft int64
	}{
		{1, 0, 0}, // alone
		{1, 1, total / 4},
		{2, 0, total / 7}, // each leaves room for the other one
		{2, 1, total / 7},
		{10, 1, total / 31},
	} {
		var c capacity
		c.most.Store(total)
		c.tenants.Store(int64(x.greedy) + x.others)
		greedy := make([]*service, x.greedy)
		for i := range greedy {
			greedy[i] = &service{}
		}
		held := fillUp(&c, greedy...)
		left := total - c.used.Load()
		expect.Between(t, left, x.wantLeft-2, x.wantLeft+2*int64(x.greedy), "left by %d greedy services of %d", x.greedy, c.tenants.Load())
		expect.AtMost(t, slices.Max(held)-slices.Min(held), 2, "they hold %v", held)
		// A service that arrives now is served, until it holds three times what is left.
		if x.others > 0 {
			late := fillUp(&c, &service{})[0]
			if want := left * 3 / 4; late < want-4 || late > want {
				t.Errorf("beside %d greedy services, another one gets %d of %d", x.greedy, late, left)
			}
		}
	}
}

// Refused clients change nothing, and taking costs no memory.
func TestCapacityIsGivenBack(t *testing.T) {
	var c capacity
	c.most.Store(100)
	c.tenants.Store(2)
	a, b := &service{}, &service{}
	fillUp(&c, a, b)
	for _, s := range []*service{a, b} {
		for range s.files.Load() / connectionFiles {
			c.give(s, connectionFiles)
		}
	}
	if c.used.Load() != 0 || a.files.Load() != 0 || b.files.Load() != 0 {
		t.Errorf("%d used, %d and %d held after all is given back", c.used.Load(), a.files.Load(), b.files.Load())
	}
	if n := testing.AllocsPerRun(100, func() {
		if c.take(a, connectionFiles) == admitted {
			c.give(a, connectionFiles)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

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
			wait.Until(t, "the sick service is refused", func() bool { return p.refused.count(overReserve) > 0 })
			for range 30 {
				c := dial(t, well.Key)
				must.Equal(t, c.line(t), "well")
				c.Close()
				time.Sleep(10 * time.Millisecond)
			}
			state := p.Capacity()
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

// The reference has every reason that metrics have.
func TestReasonsAreDocumented(t *testing.T) {
	page := must.Get(os.ReadFile("../docs/proxy.md"))(t)
	for why := range reasons {
		if why.String() == "" || reasonTexts[why].meaning == "" {
			t.Errorf("reason %d has no text", why)
		}
		expect.True(t, strings.Contains(string(page), "`"+why.String()+"`"), "docs/proxy.md has no `%s`", why.String())
	}
}
