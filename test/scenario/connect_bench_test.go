//go:build linux

package scenario

import (
	"io"
	"net"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/connect"
	"github.com/ironvip/ironvip/nft"
	"github.com/ironvip/ironvip/plane/kernel/vips"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/vip"
)

// BenchmarkConnect compares the CPU time of a client and its server together: a program of the host that is balanced at
// connect(), by nft, and that asks the server directly. Rounds of the three alternate, and the medians count. The metrics are
// ratios to asking directly.
func BenchmarkConnect(b *testing.B) {
	cgroup := netlab.Cgroup(b)
	l := netlab.New(b)
	at := netip.AddrPortFrom(l.Backends[0].Addr4, backendPort)
	for _, network := range []string{"tcp", "udp"} {
		serveEcho(b, l.Backends[0], network, at)
	}
	l.Director.Do(func() {
		beside := must.Get(connect.Open(connect.Options{Cgroup: cgroup, Host: "here"}))(b)
		defer beside.Close()
		inner := must.Get(nft.New(nft.Options{Device: device}))(b)
		defer inner.Close()
		outer := must.Get(vips.New(vips.Options{Plane: inner, Device: device}))(b)
		defer outer.Close()
		vipOf := map[string]netip.AddrPort{"direct": at, "connect": netip.MustParseAddrPort("10.96.0.1:80"), "nft": netip.MustParseAddrPort("10.96.0.2:80")}
		for name, target := range map[string]reconcile.Target[vip.FrontendKey, vip.Frontend]{"connect": beside, "nft": outer} {
			for _, p := range []vip.Protocol{vip.TCP, vip.UDP} {
				f := &vip.Frontend{Key: vip.FrontendKey{Addr: vipOf[name].Addr(), Port: 80, Protocol: p}, Kind: vip.OnVIP, Scheduler: vip.WeightedRoundRobin,
					Backends: []vip.Endpoint{{Addr: at, Weight: 1}}}
				batch := []reconcile.Update[vip.FrontendKey, vip.Frontend]{{Key: f.Key, New: f}}
				must.Succeed(b, target.Apply(b.Context(), batch))
				must.Succeed(b, batch[0].Err)
			}
		}
		for _, what := range []struct {
			name string
			run  func(testing.TB, netip.AddrPort)
		}{{"connection", connections}, {"request", requests}, {"udp", queries}} {
			cost := map[string][]float64{}
			ways := []string{"direct", "connect", "nft"}
			what.run(b, vipOf["direct"]) // the first round costs more
			for range 15 {
				ways = append(ways[1:], ways[0]) // each is the first one as often
				for _, way := range ways {
					before := cpuTime(b)
					what.run(b, vipOf[way])
					cost[way] = append(cost[way], cpuTime(b)-before)
				}
			}
			for _, way := range []string{"connect", "nft"} {
				b.ReportMetric(median(cost[way])/median(cost["direct"]), what.name+"-"+way+"/direct")
			}
		}
	})
}

// clientsOfARound is the number of connections, requests or queries of one round.
const clientsOfARound = 400

func connections(t testing.TB, to netip.AddrPort) {
	for range clientsOfARound {
		c := must.Get(net.Dial("tcp", to.String()))(t)
		askEcho(t, c)
		c.Close()
	}
}

func requests(t testing.TB, to netip.AddrPort) {
	c := must.Get(net.Dial("tcp", to.String()))(t)
	defer c.Close()
	for range 10 * clientsOfARound {
		askEcho(t, c)
	}
}

// queries has a socket for each query, as resolvers of names do.
func queries(t testing.TB, to netip.AddrPort) {
	for range clientsOfARound {
		c := must.Get(net.Dial("udp", to.String()))(t)
		askEcho(t, c)
		c.Close()
	}
}

func askEcho(t testing.TB, c net.Conn) {
	var buf [100]byte
	must.Get(c.Write(buf[:]))(t)
	must.Get(io.ReadFull(c, buf[:]))(t)
}

// serveEcho answers with what it gets.
func serveEcho(b *testing.B, n *netlab.Node, network string, at netip.AddrPort) {
	if network == "udp" {
		c := n.ListenPacket(at)
		go func() {
			var buf [2000]byte
			for {
				n, from, err := c.ReadFromUDPAddrPort(buf[:])
				if err != nil {
					return
				}
				_, _ = c.WriteToUDPAddrPort(buf[:n], from)
			}
		}()
		return
	}
	l := n.Listen(at)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
}

// cpuTime returns the CPU time of this process, in seconds.
func cpuTime(t testing.TB) float64 {
	var u unix.Rusage
	must.Succeed(t, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

func median(all []float64) float64 {
	all = slices.Clone(all)
	slices.Sort(all)
	return all[len(all)/2]
}
