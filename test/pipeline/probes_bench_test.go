package pipeline

import (
	"context"
	"io"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ironvip/ironvip/health/probe"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/proxy"
	"github.com/ironvip/ironvip/test/accept"
	"github.com/ironvip/ironvip/test/freeport"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

// BenchmarkProxyBesideProbes compares the time of connections through the proxy without probes and
// beside 10,000 TCP probes every 2 s in the same process. It takes turns, so that other work on the
// machine affects both. One operation is a connection, a request and its answer.
//
// The probes are charged with the kernel's work for both of their ends, because they go to this host. A
// real backend does its half on another host. The program that is probed does nothing: it never sees a
// connection of a check that only connects.
func BenchmarkProxyBesideProbes(b *testing.B) {
	const targets, turns = 10_000, 10
	backend := echo(b, "127.0.0.1:0")
	plane := proxy.New(proxy.Options{})
	b.Cleanup(func() { plane.Close() })
	at := netip.MustParseAddr("127.96.0.1")
	key := vip.FrontendKey{Addr: at, Port: freeport.Reserve(b, nil, at)[1], Protocol: vip.TCP}
	batch := []reconcile.Update[vip.FrontendKey, vip.Frontend]{{Key: key, New: &vip.Frontend{Key: key, Kind: vip.OnVIP,
		Service: vip.ServiceKey{Namespace: "default", Name: "web"}, Scheduler: vip.RoundRobin, Forward: vip.ForwardNAT,
		Backends: []vip.Endpoint{{Addr: backend, Weight: 1}}}}}
	if err := plane.Apply(b.Context(), batch); err != nil || batch[0].Err != nil {
		b.Fatal(err, batch[0].Err)
	}
	probed := echo(b, ":0").Port()

	for b.Loop() {
		took := map[bool][]time.Duration{}
		for range turns {
			took[false] = append(took[false], requests(b, key.AddrPort())...)
			stop := probes(b, targets, probed)
			took[true] = append(took[true], requests(b, key.AddrPort())...)
			stop()
		}
		alone, beside := percentile(took[false], 99), percentile(took[true], 99)
		b.ReportMetric(float64(alone.Microseconds()), "p99-us")
		b.ReportMetric(float64(beside.Microseconds()), "p99-us-probing")
		b.ReportMetric(float64(beside)/float64(alone), "p99-ratio")
		b.ReportMetric(float64(percentile(took[true], 50))/float64(percentile(took[false], 50)), "p50-ratio")
	}
}

// echo starts a server that sends back what it gets.
func echo(b *testing.B, at string) netip.AddrPort {
	l := must.Get(net.Listen("tcp4", at))(b)
	b.Cleanup(func() { l.Close() })
	accept.Each(l, func(c net.Conn) {
		io.Copy(c, c)
	})
	return l.Addr().(*net.TCPAddr).AddrPort()
}

// probes runs TCP probes of many addresses of this host, and returns when all have a result.
func probes(b *testing.B, targets int, port uint16) (stop func()) {
	e := probe.New(probe.Options{Results: probe.NewResults(table.NewClock(time.Now()))})
	for i := range targets {
		at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 1, byte(i >> 8), byte(i)}), port)
		e.Start(probe.NewTarget(at, vip.HealthCheck{Type: vip.CheckTCP}), probe.Use{Namespace: "default"})
	}
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); e.Run(ctx) }()
	for done := uint64(0); done < uint64(targets); time.Sleep(10 * time.Millisecond) {
		done = 0
		for _, p := range e.Stats().Probes {
			done += p.N
		}
	}
	return func() { cancel(); <-ended }
}

// requests makes requests for two seconds, 200 each second, and returns how long each took.
func requests(b *testing.B, at netip.AddrPort) (took []time.Duration) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	answer := make([]byte, 1)
	for range 400 {
		began := <-tick.C
		c, err := net.Dial("tcp", at.String())
		must.Succeed(b, err)
		if _, err = c.Write([]byte("x")); err == nil {
			_, err = c.Read(answer)
		}
		if c.Close(); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(began))
	}
	return took
}

func percentile(of []time.Duration, p int) time.Duration {
	sorted := slices.Sorted(slices.Values(of))
	return sorted[(len(sorted)-1)*p/100]
}
