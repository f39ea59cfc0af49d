//go:build linux && vm

package scenario

import (
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ironvip/ironvip/ipvs"
	"github.com/ironvip/ironvip/nft"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/scope"
	"github.com/ironvip/ironvip/vip"
)

// BenchmarkFlows measures one datagram of a client, from its send until it is in the queue of a backend's socket: the
// first of a flow, and a later one. One of 1,000 services of 10 backends gets them, with IPVS and with nftables, and in
// the line "routed" a backend gets them without any. Medians of the rounds are reported.
//
// With vmrun's -icount, a nanosecond is an instruction, so the values repeat on any host.
func BenchmarkFlows(b *testing.B) {
	rounds := map[string][]float64{}
	for b.Loop() {
		for name, open := range map[string]func(*netlab.Lab) (reconcile.Plane, error){"routed": nil, "ipvs": openIPVS, "nft": openNFT} {
			var first, later float64
			scope.Run(b, func(t testing.TB) { first, later = flowTimes(t, open) })
			rounds[name+"-first"] = append(rounds[name+"-first"], first)
			rounds[name+"-later"] = append(rounds[name+"-later"], later)
		}
	}
	middle := func(name string) float64 {
		slices.Sort(rounds[name])
		return rounds[name][len(rounds[name])/2]
	}
	for name := range rounds {
		b.ReportMetric(middle(name), name+"-ns")
	}
	for _, part := range []string{"-first", "-later"} {
		b.ReportMetric(middle("nft"+part)/middle("ipvs"+part), "nft/ipvs"+part)
	}
	b.ReportMetric(0, "ns/op")
}

func openIPVS(*netlab.Lab) (reconcile.Plane, error) {
	p, err := ipvs.New(ipvs.Options{Owns: inFlowPool, Log: slog.New(slog.DiscardHandler)})
	return addVIPs(p, err)
}

func openNFT(*netlab.Lab) (reconcile.Plane, error) {
	p, err := nft.New(nft.Options{Owns: inFlowPool, Log: slog.New(slog.DiscardHandler)})
	return addVIPs(p, err)
}

func inFlowPool(a netip.Addr) bool { return netip.MustParsePrefix("10.96.0.0/16").Contains(a) }

// flowTimes returns the nanoseconds of the first and of a later datagram of a flow.
func flowTimes(b testing.TB, open func(*netlab.Lab) (reconcile.Plane, error)) (first, later float64) {
	const services, backends, flows, ofEach = 1000, 10, 500, 4
	lab := netlab.New(b)
	var queues []*net.UDPConn
	var endpoints []vip.Endpoint
	for range backends {
		q := lab.Backends[0].ListenPacket(netip.AddrPortFrom(lab.Backends[0].Addr4, 0))
		must.Succeed(b, q.SetReadBuffer(4<<20))
		queues = append(queues, q)
		endpoints = append(endpoints, vip.Endpoint{Addr: q.LocalAddr().(*net.UDPAddr).AddrPort(), Weight: 1})
	}
	to := endpoints[0].Addr
	if open != nil {
		var batch []reconcile.Update[vip.FrontendKey, vip.Frontend]
		for i := range services {
			f := &vip.Frontend{Key: vip.FrontendKey{Addr: netip.AddrFrom4([4]byte{10, 96, 0, byte(i >> 4)}), Port: uint16(1000 + i), Protocol: vip.UDP},
				Kind: vip.OnVIP, Forward: vip.ForwardNAT, Scheduler: vip.RoundRobin, Masquerade: vip.MasqueradeAuto, Backends: endpoints}
			batch = append(batch, reconcile.Update[vip.FrontendKey, vip.Frontend]{Key: f.Key, New: f})
			to = f.Key.AddrPort()
		}
		lab.Director.Do(func() {
			plane, err := open(lab)
			if err == nil {
				b.Cleanup(func() { _ = plane.(interface{ Close() error }).Close() })
				err = plane.Apply(b.Context(), batch)
			}
			if err == nil {
				err = batch[0].Err
			}
			must.Succeed(b, err)
		})
	}
	var clients []net.Conn
	for range flows {
		c := must.Get(lab.Client.DialContext(b.Context(), "udp", to.String()))(b)
		defer c.Close()
		clients = append(clients, c)
	}
	send := func() float64 {
		start := time.Now()
		for _, c := range clients {
			must.Get(c.Write([]byte("x")))(b)
		}
		return float64(time.Since(start)) / flows
	}
	send() // neighbors, and what else is done once; with flows of their own below
	received(b, queues, flows)
	for i, c := range clients {
		c.Close()
		var err error
		if clients[i], err = lab.Client.DialContext(b.Context(), "udp", to.String()); err != nil {
			b.Fatal(err)
		}
	}
	first = send()
	received(b, queues, flows)
	for range ofEach {
		later += send() / ofEach
		received(b, queues, flows)
	}
	return first, later
}

// received takes n datagrams from queues and fails if there are fewer.
func received(b testing.TB, queues []*net.UDPConn, n int) {
	b.Helper()
	for _, q := range queues {
		must.Succeed(b, q.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
		buf := make([]byte, 16)
		for {
			if _, err := q.Read(buf); err != nil {
				break
			}
			n--
		}
	}
	if n != 0 {
		b.Fatalf("%d datagrams are missing", n)
	}
}
