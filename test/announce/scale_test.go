//go:build system

package announce

import (
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/announce/control"
	"github.com/ironvip/ironvip/internal/mirror"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/process"
	"github.com/ironvip/ironvip/test/scope"
	"github.com/ironvip/ironvip/test/wait"
)

const manyVIPs = 10_000

// pairOfMany is two announcers with 10,000 VIPs, with the test as their agents. Each owns about half.
type pairOfMany struct {
	announcers [2]*process.Process
	here       [2]func() int // VIPs that each announces
}

// announcerProgram returns the path of the built program that the systemd unit runs. It is beside the
// binary.
func announcerProgram(t testing.TB) string {
	t.Helper()
	path := filepath.Join(filepath.Dir(need.Binary(t)), "ironvip-announcer")
	_, err := os.Stat(path)
	must.Succeed(t, err, "run `make build`")
	return path
}

func startPairOfMany(t testing.TB) *pairOfMany {
	t.Helper()
	p := &pairOfMany{}
	lan := netlab.NewLAN(t, "lb1", "lb2")
	for i, n := range lan.Nodes {
		socket := filepath.Join(t.TempDir(), "control.sock")
		announcer := process.New(announcerProgram(t), filepath.Join(t.TempDir(), "log"), n, "--socket", socket)
		announcer.Nice = -10 // as in its unit
		must.Succeed(t, announcer.Start())
		t.Cleanup(announcer.Kill)
		clock := &table.Clock{}
		eligible := table.New(clock, announce.KeyOfEligible, nil)
		for v := range manyVIPs {
			eligible.Set(announce.Eligible{Addr: netip.AddrFrom4([4]byte{10, 90, byte(v >> 8), byte(v)}), Mode: announce.L2, Services: 1})
		}
		settings := announce.Settings{Node: n.Name, Weight: 1, Device: "ironvip0", LANs: []announce.LAN{{CIDRs: []netip.Prefix{netip.MustParsePrefix("10.90.0.0/16")}, Interfaces: []string{"eth0"}}}, Listen: ":7481", Keys: [][]byte{[]byte("key")},
			Pools: []announce.Pool{{Name: "p", Mode: announce.L2, CIDRs: []netip.Prefix{netip.MustParsePrefix("10.90.0.0/16")}}},
			Peers: []netip.AddrPort{netip.AddrPortFrom(lan.Nodes[1-i].Addr4, 7481)}, Heartbeat: 100 * time.Millisecond, Missed: 3, Settle: time.Second, Hold: time.Minute}
		tables, one := control.NewTables(clock), control.NewSettings(clock)
		one.Set(settings)
		link := &mirror.Client{Path: socket, Publish: control.Publish(one, eligible), Mirror: tables.Mirror(), Log: slog.New(slog.DiscardHandler)}
		scope.Go(t, link.Run)
		p.announcers[i] = announcer
		p.here[i] = tables.Announcements.Sum(func(n *announce.Announcement) int {
			if n.Here {
				return 1
			}
			return 0
		})
	}
	wait.Until(t, "a share for each", func() bool {
		a, b := p.here[0](), p.here[1]()
		return a > manyVIPs/3 && b > manyVIPs/3 && a+b == manyVIPs
	}, func() any { return fmt.Sprint(p.here[0](), " ", p.here[1]()) })
	return p
}

// failover kills the first announcer, and returns after which time the second one has all VIPs.
func (p *pairOfMany) failover(t testing.TB) time.Duration {
	t.Helper()
	p.announcers[0].Kill()
	began := time.Now()
	wait.Until(t, "all on lb2", func() bool { return p.here[1]() == manyVIPs })
	return time.Since(began)
}

// BenchmarkTenThousandVIPs has the cost of an announcer that owns half of 10,000 VIPs: its processor time
// in a minute without changes, in which it repeats all announcements once, and the time until it has
// decided to take over the other half.
func BenchmarkTenThousandVIPs(b *testing.B) {
	var share, took float64
	for b.Loop() {
		p := startPairOfMany(b)
		pid := p.announcers[1].Pid()
		time.Sleep(10 * time.Second) // the first announcements are repeated for 3.5 s
		before, began := process.CPUTime(b, pid), time.Now()
		time.Sleep(time.Minute)
		share = max(share, 100*float64(process.CPUTime(b, pid)-before)/float64(time.Since(began)))
		took = max(took, float64(p.failover(b).Milliseconds()))
		p.announcers[1].Kill()
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(share, "%-of-a-core-worst")
	b.ReportMetric(took, "ms/takeover-worst")
}
