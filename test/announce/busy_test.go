//go:build system

package announce

import (
	"path/filepath"
	"testing"
	"time"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/process"
)

// busyLoops are how many processes compete with those of ironvip for the processors.
const busyLoops = 4

// BenchmarkBusyHost keeps all processors busy while two hosts exchange heartbeats with the default times.
// Each round is a second. With -benchtime 600x it runs for ten minutes. It counts the VIPs that change their
// owner although nothing has failed: the goal is 0.
func BenchmarkBusyHost(b *testing.B) {
	l := newLab(b, 2, "")
	l.settled()
	before := l.decisions()
	for range busyLoops {
		p := process.New("/bin/sh", filepath.Join(b.TempDir(), "log"), nil, "-c", "while :; do :; done")
		must.Succeed(b, p.Start())
		b.Cleanup(p.Kill)
	}
	moves := 0
	for b.Loop() {
		time.Sleep(time.Second)
		now := l.decisions()
		for at, d := range now {
			if d.owner != before[at].owner || d.since != before[at].since {
				moves++
				b.Logf("%s: %s: owner %q since %s: %s", at.host, at.vip, d.owner, d.since, d.why)
			}
		}
		before = now
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(moves), "moves")
	b.ReportMetric(float64(l.lostHeartbeats()), "lost-heartbeats")
}

// lostHeartbeats returns how many heartbeats did not arrive, at all hosts.
func (l *lab) lostHeartbeats() (n uint64) {
	l.t.Helper()
	for _, h := range l.hosts {
		h.awaitPeers(len(l.hosts)-1, "its peers", func(p v1.AnnouncePeer) bool { n += p.Lost; return true })
	}
	return n
}
