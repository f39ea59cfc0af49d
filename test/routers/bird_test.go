//go:build system

package routers_test

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/announce/bfd"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/routers"
	"github.com/ironvip/ironvip/test/wait"
)

// birdPeer is a BIRD configuration for a peer, with lines for the protocol.
func birdPeer(us netip.Addr, lines string) string {
	return fmt.Sprintf(`router id 10.0.0.1;
protocol kernel k4 { graceful restart; ipv4 { export all; }; }
protocol kernel k6 { graceful restart; ipv6 { export all; }; }
protocol bfd { }
protocol bgp vips {
  local as 65000;
  neighbor %s as 4200065010;
  ipv4 { import all; export none; extended next hop; };
  ipv6 { import all; export none; };
  graceful restart on;
  error wait time 1, 2;
  %s
}
`, us, lines)
}

func TestBird(t *testing.T) {
	inLabs(t, func(t *testing.T, l lab, v6 bool) {
		bird := routers.StartBird(t, l.router, birdPeer(l.us(v6), `password "secret"; ttl security on;`))
		c := l.settings(v6)
		p := &c.Peers[0]
		p.Password, p.TTLSecurity = "secret", true
		p.MED, p.Communities = new(uint32(77)), []string{"65010:100"}
		s := routers.StartSpeaker(t, l.Director, c)
		x := s.AwaitUp()
		l.awaitKernelRoute(t, vip4, true)
		l.awaitKernelRoute(t, vip6, true)
		if !x.GracefulRestart || x.RouterID.String() != "10.0.0.1" || x.Lacks != [2]string{} {
			t.Errorf("%+v", x)
		}
		for _, vip := range []netip.Prefix{vip4, vip6} {
			all := bird.Ask("show", "route", vip.String(), "all")
			for _, want := range []string{"BGP.as_path: 4200065010", "BGP.med: 77", "BGP.community: (65010,100)", "BGP.origin: IGP"} {
				expect.Contains(t, all, want)
			}
		}

		s.Do("drain")
		wait.Until(t, "the community GRACEFUL_SHUTDOWN on both routes", func() bool {
			return bird.Count("where (65535, 0) ~ bgp_community") == 2
		}, func() any { return bird.Ask("show", "route", "all") })

		s.Do("withdraw", vip4)
		l.awaitKernelRoute(t, vip4, false)
		expect.True(t, l.kernelRoute(vip6) != "", "the other route was withdrawn, too")
		s.Do("shutdown")
		l.awaitKernelRoute(t, vip6, false)
		expect.Contains(t, bird.LogEnd(1<<20), "Administrative shutdown", "the router saw another end of the session")
	})
}

// Attributes of iBGP, and BFD, over two hops.
func TestBirdInternalMultihop(t *testing.T) {
	inLabs(t, func(t *testing.T, l lab, v6 bool) {
		us, router := l.Client.Addr4, l.router.Addr4
		if v6 {
			us, router = l.Client.Addr6, l.router.Addr6
		}
		bird := routers.StartBird(t, l.router, strings.Replace(birdPeer(us,
			fmt.Sprintf("source address %s; multihop 2; ttl security on; bfd { interval 100 ms; multiplier 3; };", router)), "4200065010", "65000", 1))
		c := l.settings(v6)
		p := &c.Peers[0]
		p.LocalASN, p.Multihop, p.TTLSecurity, p.LocalPref = 65000, 2, true, new(uint32(300))
		c.BFD = []bfd.Settings{{Key: bfd.Key{Peer: p.Peer}, Interval: 100 * ms, Multiplier: 3, Multihop: true}}
		s := routers.StartSpeaker(t, l.Client, c)
		s.AwaitUp()
		s.AwaitBFD(bfd.Up)
		wait.Until(t, "both routes", func() bool { return bird.Count() == 2 }, func() any { return bird.Ask("show", "route", "all") })
		all := bird.Ask("show", "route", "all")
		expect.Equal(t, strings.Count(all, "BGP.local_pref: 300"), 2, all)
	})
}

// Unnumbered: BIRD sends router advertisements by its protocol radv, and accepts any link-local
// neighbor of the interface.
// Slow: BIRD sends its first router advertisements seconds after its start.
func TestBirdUnnumbered(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	routers.StartBird(t, l.router, `router id 10.0.0.1;
protocol kernel k4 { ipv4 { export all; }; }
protocol kernel k6 { ipv6 { export all; }; }
protocol radv { interface "eth0" { default lifetime 0; }; }
protocol bgp vips {
  local as 65000;
  neighbor range fe80::/10 as 4200065010;
  interface "eth0";
  ipv4 { import all; export none; extended next hop; };
  ipv6 { import all; export none; };
}
`)
	c := l.settings(false)
	c.Peers[0].Peer, c.Peers[0].Interface = netip.Addr{}, "backend1"
	s := routers.StartSpeaker(t, l.Director, c)
	s.AwaitUp()
	l.awaitKernelRoute(t, vip4, true)
	l.awaitKernelRoute(t, vip6, true)
	expect.Contains(t, l.kernelRoute(vip4), "fe80::", "the next hop is not link-local")
}

// restartable is a speaker of 1,000 prefixes whose restarts are graceful.
func restartable(t *testing.T, l lab, c routers.Settings) (*routers.Speaker, *routers.RouteEvents) {
	t.Helper()
	c.Prefixes = append(c.Prefixes, vips(1000)...)
	c.NotReady = true
	events := routers.WatchRoutes(t, l.router)
	s := routers.StartSpeaker(t, l.Director, c)
	s.AwaitUp()
	s.Do("ready")
	wait.Until(t, "1,002 routes in the router's kernel", func() bool { return events.Added.Load() >= 1002 }, func() any { return events.Added.Load() })
	return s, events
}

// A restart of the announcing process, by kill -9 or by a stop, deletes no route in the router. The
// prefixes that are not announced again go with the end of the new initial routes.
func TestRestartWithBird(t *testing.T) {
	inLabs(t, func(t *testing.T, l lab, v6 bool) {
		bird := routers.StartBird(t, l.router, birdPeer(l.us(v6), ""))
		s, events := restartable(t, l, l.settings(v6))
		for _, end := range []func(){s.Kill, func() { s.Stop() }} {
			end()
			wait.Until(t, "BIRD waits for the restart", func() bool {
				return strings.Contains(bird.Ask("show", "protocols", "all", "vips"), "Neighbor graceful restart active")
			}, func() any { return bird.Ask("show", "protocols", "all", "vips") })
			s.StartAgain()
			s.AwaitUp()
			s.Do("ready")
			wait.Until(t, "the end of the restart", func() bool {
				return !strings.Contains(bird.Ask("show", "protocols", "all", "vips"), "graceful restart active")
			})
			expect.AtMost(t, events.Deleted.Load(), 0, "deleted routes")
		}
		expect.Equal(t, bird.Count(), 1002, "routes after the restarts")
		s.Kill()
		s.StartAgain()
		s.AwaitUp()
		s.Do("withdraw", vip4) // before it is ready
		s.Do("ready")
		l.awaitKernelRoute(t, vip4, false)
		wait.Until(t, "one route fewer", func() bool { return bird.Count() == 1001 })
		wait.Until(t, "the report of the deletion", func() bool { return events.Deleted.Load() > 0 })
		expect.Equal(t, events.Deleted.Load(), 1, "deleted routes")
	})
}

// A router that restarts waits for this host's routes: the R bit is not set, although this process
// has been restarted before.
func TestRestartOfBird(t *testing.T) {
	inLabs(t, func(t *testing.T, l lab, v6 bool) {
		bird := routers.StartBird(t, l.router, birdPeer(l.us(v6), ""), "-R")
		s, events := restartable(t, l, l.settings(v6))
		s.Kill()
		bird.Kill() // both are away
		s.StartAgain()
		s.AwaitReason("connection refused")
		bird.StartAgain()
		s.AwaitUp()
		// With the R bit, BIRD would end its recovery now, before it has the routes.
		wait.Until(t, "all routes", func() bool { return bird.Count() == 1002 })
		expect.AtMost(t, events.Deleted.Load(), 0, "deleted routes")
		s.Do("ready")
		wait.Until(t, "the end of the recovery", func() bool {
			return strings.Contains(bird.LogEnd(1<<20), "Graceful restart done")
		}, func() any { return bird.Ask("show", "protocols", "all", "vips") })
		wait.Until(t, "all routes", func() bool { return bird.Count() == 1002 })
		expect.AtMost(t, events.Deleted.Load(), 0, "deleted routes")
	})
}

// BenchmarkBird measures until BIRD's table has 10,000 prefixes announced at once, then one more,
// and then none of the 10,000. The memory is that of the speaker's process, with its test harness.
func BenchmarkBird(b *testing.B) {
	for _, v6 := range []bool{false, true} {
		b.Run(map[bool]string{false: "ipv4", true: "ipv6"}[v6], func(b *testing.B) {
			l := newLab(b)
			bird := routers.StartBird(b, l.router, fmt.Sprintf(`router id 10.0.0.1;
protocol bgp vips { local as 65000; neighbor %s as 4200065010; ipv4 { import all; export none; }; ipv6 { import all; export none; }; }
`, l.us(v6)))
			c := l.settings(v6)
			c.Prefixes = nil
			s := routers.StartSpeaker(b, l.Director, c)
			s.AwaitUp()
			all, one := vips(10000), netip.MustParsePrefix("10.98.0.1/32")
			if v6 {
				for i := range all {
					a := all[i].Addr().As4()
					all[i] = netip.PrefixFrom(netip.AddrFrom16([16]byte{0: 0xfd, 14: a[2], 15: a[3]}), 128)
				}
				one = netip.MustParsePrefix("fd98::1/128")
			}
			var many, more, gone time.Duration
			until := func(n int) func() time.Duration {
				began := time.Now()
				return func() time.Duration {
					for bird.Count() != n {
						time.Sleep(time.Millisecond)
					}
					return time.Since(began)
				}
			}
			for b.Loop() {
				took := until(len(all))
				s.Do("announce", all...)
				many += took()
				took = until(len(all) + 1)
				s.Do("announce", one)
				more += took()
				took = until(1)
				s.Do("withdraw", all...)
				gone += took()
				took = until(0)
				s.Do("withdraw", one)
				took()
			}
			s.Do("announce", all...)
			until(len(all))()
			status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.Pid()))
			for line := range strings.Lines(string(status)) {
				var kB float64
				if n, _ := fmt.Sscanf(line, "VmRSS: %f kB", &kB); n == 1 {
					b.ReportMetric(kB/1024, "MB")
				}
			}
			for name, d := range map[string]time.Duration{"ms/announce-10000": many, "ms/announce-one-more": more, "ms/withdraw-10000": gone} {
				b.ReportMetric(float64(d.Microseconds())/1000/float64(b.N), name)
			}
		})
	}
}
