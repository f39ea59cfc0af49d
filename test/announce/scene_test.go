//go:build system || vm

package announce

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/process"
)

// scene is a network in which hosts serve a VIP of each family, until something happens to one of them.
type scene struct {
	client *netlab.Node
	vips   []netip.Addr // one of each family
	query  []byte       // to port 53 instead of connections
	happen func()       // returns when the network has another way to the VIPs, or none is needed
	undo   func()       // returns when everything is as before
	// count has more results, by their name. They are sums over all rounds.
	count map[string]func() int
}

const (
	lead  = 300 * time.Millisecond // of undisturbed requests before the event
	trail = 500 * time.Millisecond // and after it
)

// measure runs the scene with perSecond requests, of both families together. The values are the median
// and the worst round, for each family: lost requests, and the time in ms from the start of the first
// lost request until all are answered again.
func (s *scene) measure(b *testing.B) {
	lost, outage := make([][]float64, len(s.vips)), make([][]float64, len(s.vips))
	for b.Loop() {
		var loads []*load
		for _, vip := range s.vips {
			l := &load{t: b, from: s.client, to: netip.AddrPortFrom(vip, servicePort), patience: benchPatience, query: s.query}
			if s.query != nil {
				l.to = netip.AddrPortFrom(vip, 53)
			}
			loads = append(loads, startRequests(l, time.Second*time.Duration(len(s.vips))/perSecond))
		}
		time.Sleep(lead)
		s.happen()
		time.Sleep(trail)
		for _, load := range loads {
			load.stop()
		}
		for i, load := range loads {
			got := load.end()
			b.Logf("%s: %s, outage %s", load.to, got, got.outage)
			lost[i] = append(lost[i], float64(got.lost))
			outage[i] = append(outage[i], float64(got.outage.Microseconds())/1000)
		}
		if s.undo != nil {
			s.undo()
		}
	}
	b.ReportMetric(0, "ns/op")
	for i, vip := range s.vips {
		family := map[bool]string{true: "ipv4", false: "ipv6"}[vip.Is4()]
		for name, values := range map[string][]float64{"lost": lost[i], "ms": outage[i]} {
			slices.Sort(values)
			b.ReportMetric(values[len(values)/2], family+"-"+name)
			b.ReportMetric(values[len(values)-1], family+"-"+name+"-worst")
		}
	}
	for name, count := range s.count {
		b.ReportMetric(float64(count()), name)
	}
}

// event is what happens in a scene.
type event struct {
	name  string
	start func(b *testing.B) *scene
}

func measureAll(b *testing.B, events []event) {
	for _, e := range events {
		b.Run(e.name, func(b *testing.B) { e.start(b).measure(b) })
	}
}

// atLayer2 is a pair of hosts on one segment. Something happens to the first one.
func atLayer2(start func(b *testing.B) *lab, happen, undo func(*lab, *host)) func(b *testing.B) *scene {
	return func(b *testing.B) *scene {
		l := start(b)
		a := l.hosts[0]
		owners := l.settled()
		return &scene{client: l.client, vips: []netip.Addr{ownedBy(b, owners, a.Name, false), ownedBy(b, owners, a.Name, true)},
			happen: func() { happen(l, a) },
			undo: func() {
				if undo != nil {
					undo(l, a)
				}
				l.awaitThese(owners)
			}}
	}
}

// Events of the first host of a pair.

func drainNode(_ *lab, a *host) { a.must("node", "drain", "--wait") }

func undrainNode(_ *lab, a *host) { a.must("node", "undrain") }

func stopAgent(_ *lab, a *host) { a.stop(a.agent) }

func startAgent(_ *lab, a *host) {
	must.Succeed(a.t, a.agent.Start())
}

func restartAnnouncer(l *lab, a *host) {
	a.stop(a.announcer)
	l.hosts[1].awaitAll()
	a.startAnnouncer()
}

func (h *host) stop(p *process.Process) {
	h.t.Helper()
	must.Succeed(h.t, p.Stop())
}

// upgrade restarts the agent, as a package does.
func (h *host) upgrade() {
	h.t.Helper()
	h.stop(h.agent)
	h.agent = h.newAgent()
	must.Succeed(h.t, h.agent.Start())
}
