package zone

import (
	"fmt"
	"net/netip"
	"runtime"
	"strconv"
	"testing"

	"github.com/miekg/dns"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/heapsize"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

// many returns a zone with about n names: one in ten services is in the default namespace, and one in
// ten has a hostname and a named port.
func many(t testing.TB, n int) *Zone {
	s := settings()
	s.Pools = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	z := must.Get(New(s))(t)
	z.SetSynced()
	var batch []Change
	for i := 0; z.Len() < n; i++ {
		batch = append(batch, Change{Service: numbered(i)})
		if len(batch) == 100 {
			z.Apply(1, batch)
			batch = batch[:0]
		}
	}
	return z
}

// numbered is one of many services.
func numbered(i int) Service {
	ns := "prod"
	if i%10 == 0 {
		ns = vip.DefaultNamespace
	}
	s := Service{Key: vip.ServiceKey{Namespace: ns, Name: "service-" + strconv.Itoa(i)}, Since: vip.Instant(1 + i),
		VIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})}}
	if i%10 == 5 {
		s.Hostnames = []string{"shop-" + strconv.Itoa(i) + ".example.com"}
		s.Ports = []vip.Port{{Name: "http", Protocol: vip.TCP, Port: 80}}
	}
	return s
}

// query is a query of the oracle, with EDNS.
func query(t testing.TB, name string, qtype uint16) []byte {
	m := new(dns.Msg)
	m.SetQuestion(name, qtype)
	m.SetEdns0(1232, false)
	return must.Get(m.Pack())(t)
}

// A claim costs the same for any number of services that want the name: a change that leaves the winner reports one
// claim. In one batch, all claims are noted once for each name, however often its winner changes.
func TestCostOfARival(t *testing.T) {
	const names = 4
	rival := func(i, since int) Change {
		s := numbered(i)
		s.Since, s.Hostnames = vip.Instant(since), nil
		for j := range names {
			s.Hostnames = append(s.Hostnames, fmt.Sprintf("shared-%d.example.com", j))
		}
		return Change{Service: s}
	}
	var former float64
	for _, size := range []int{100, 2000} {
		z := many(t, 100)
		var batch []Change
		for i := range size {
			batch = append(batch, rival(1000+i, 10+size-i)) // each is older than those before it
		}
		expect.Equal(t, len(z.Apply(1, batch)), size*names, "%d rivals: claims of the first batch", size)
		expect.Equal(t, z.noted, size*names, "%d rivals: claims noted for the first batch", size)

		added := rival(999, 10+2*size)
		gone := added
		gone.Gone = true
		expect.Equal(t, len(z.Apply(2, []Change{added})), names, "%d rivals: claims of one more", size)
		expect.Equal(t, len(z.Apply(2, []Change{gone})), names, "%d rivals: claims of one that ends", size)
		n := testing.AllocsPerRun(100, func() {
			z.Apply(2, []Change{added})
			z.Apply(2, []Change{gone})
		})
		if former != 0 {
			expect.AtMost(t, n, former+1, "%d rivals: allocations of one more", size)
		}
		former = n
		expect.Equal(t, z.noted, size*names, "%d rivals: claims noted, with the winner as before", size)

		oldest := rival(998, 1)
		expect.Equal(t, len(z.Apply(2, []Change{oldest})), (size+1)*names, "%d rivals: claims of a new winner", size)
	}
}

// The allocations of a change depend on the service, not on the zone.
func TestAllocationsOfAChange(t *testing.T) {
	var former float64
	for i, size := range []int{100, 10_000} {
		z := many(t, size)
		s := []Change{{Service: numbered(15)}, {Service: numbered(15)}}
		s[1].VIPs = addrs("10.250.0.1")
		n := testing.AllocsPerRun(200, func() {
			z.Apply(2, s[:1])
			z.Apply(2, s[1:])
		})
		if i > 0 && n != former || n > 50 {
			t.Errorf("%d names: %v allocations for two changes, %v with fewer names", size, n, former)
		}
		former = n
	}
}

// A name costs few bytes. The goal for a process with 100,000 names is 35 MB.
func TestMemory(t *testing.T) {
	const n = 100_000
	var z *Zone
	bytes := heapsize.Of(func() any {
		z = many(t, n)
		return z
	})
	per := bytes / z.Len()
	t.Logf("%d bytes per name, %d names, %.1f MB", per, z.Len(), float64(bytes)/1e6)
	expect.AtMost(t, per, 190, "bytes of a name")
	runtime.KeepAlive(z)
}

func BenchmarkAnswer(b *testing.B) {
	for _, n := range []int{10_000, 100_000} {
		z := many(b, n)
		for _, c := range []struct {
			what, name string
			qtype      uint16
		}{
			{"A", "service-%d.prod.svc.vip.internal.", dns.TypeA},
			{"NODATA", "service-%d.prod.svc.vip.internal.", dns.TypeAAAA},
			{"NXDOMAIN", "none-%d.prod.svc.vip.internal.", dns.TypeA},
			{"REFUSED", "none-%d.example.com.", dns.TypeA},
		} {
			var queries [][]byte
			for i := range 1024 {
				queries = append(queries, query(b, fmt.Sprintf(c.name, i*7), c.qtype))
			}
			b.Run(fmt.Sprintf("%s/%d", c.what, n), func(b *testing.B) {
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					z.Answer(queries[i%1024], false)
				}
			})
		}
	}
}

func BenchmarkChange(b *testing.B) {
	for _, n := range []int{1_000, 100_000} {
		z := many(b, n)
		b.Run(fmt.Sprintf("address/%d", n), func(b *testing.B) {
			b.ReportAllocs()
			s, other := []Change{{Service: numbered(11)}}, addrs("10.250.0.1")
			for i := 0; b.Loop(); i++ {
				s[0].VIPs, other = other, s[0].VIPs
				z.Apply(2, s)
			}
		})
		b.Run(fmt.Sprintf("service/%d", n), func(b *testing.B) {
			b.ReportAllocs()
			s := []Change{{Service: Service{Key: key("prod/new"), Since: 1, VIPs: addrs("10.250.0.2")}}}
			for i := 0; b.Loop(); i++ {
				s[0].Gone = i%2 == 1
				z.Apply(2, s)
			}
		})
	}
}
