//go:build system

package routers_test

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/routers"
)

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
