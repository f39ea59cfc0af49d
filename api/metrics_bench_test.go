package api

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/pipeline"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

// allAlike reports the same counters for every frontend, with the values that IPVS counts.
type allAlike struct{ w *written }

func (e allAlike) Counted() reconcile.Counted {
	return reconcile.Counted{Packets: true, Inactive: true, Rates: true}
}

func (e allAlike) Totals(context.Context, func(vip.FrontendKey) bool) (map[vip.FrontendKey]reconcile.Traffic, error) {
	out := make(map[vip.FrontendKey]reconcile.Traffic, e.w.frontends.Len())
	for k := range e.w.frontends.All() {
		out[k] = reconcile.Traffic{Connections: 123456, Active: 12, Inactive: 34, In: reconcile.Volume{Packets: 1234567, Bytes: 123456789},
			Out: reconcile.Volume{Packets: 2345678, Bytes: 9876543210}}
	}
	return out, nil
}

func (e allAlike) Breakdown(context.Context, vip.FrontendKey) (reconcile.Breakdown, bool, error) {
	return reconcile.Breakdown{}, false, nil
}

// fill adds n healthy services with the given number of backends each.
func (w *written) fill(n, backends int) {
	for i := range n {
		k, f := serviceNo(i), frontendNo(i)
		s := vip.Service{Key: k, Source: "files", Ports: []vip.Port{{Protocol: vip.TCP, Port: 80}}}
		front := vip.Frontend{Key: f, Kind: vip.OnVIP, Service: k}
		for b := range backends {
			at := netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), byte(b)})
			s.Backends = append(s.Backends, vip.Backend{Address: at, Port: 8080, Weight: 1, State: vip.Ready})
			front.Backends = append(front.Backends, vip.Endpoint{Addr: netip.AddrPortFrom(at, 8080), Weight: 1})
		}
		wanted, made := w.services.Put(s), w.frontends.Put(front)
		w.allocations.Set(vip.Allocation{Asked: &wanted.Value, ServiceRev: wanted.Rev, VIPs: []netip.Addr{f.Addr}})
		w.compiled.Set(pipeline.Compiled{Service: &wanted.Value, ServiceRev: wanted.Rev, Frontends: []*pipeline.FrontendRow{made}})
		w.applied.Set(reconcile.AppliedFrontend{Tried: made})
	}
}

// BenchmarkScrape measures one scrape of the metrics of 10,000 services with 10 backends each: with all
// services healthy, with one percent of them degraded, and with series of single backends.
func BenchmarkScrape(b *testing.B) {
	const services, backends = 10_000, 10
	for _, kind := range []struct {
		name      string
		unhealthy int
		single    bool
	}{{"healthy", 0, false}, {"degraded", services / 100, false}, {"backends", services / 100, true}} {
		for _, encoding := range []string{"identity", "gzip"} {
			b.Run(kind.name+"/"+encoding, func(b *testing.B) {
				w := newWritten()
				w.fill(services, backends)
				for i := range kind.unhealthy {
					w.states.Set(vip.BackendState{Backend: vip.BackendKey{Service: serviceNo(i * 100), Address: netip.AddrFrom4([4]byte{10, byte(i * 100 >> 8), byte(i * 100), 0}), Port: 8080}, State: vip.Maint})
				}
				d := w.deps()
				d.Policy = everyone
				d.BackendMetrics = kind.single
				d.Statistics = allAlike{w}
				d.Leases = table.New(&table.Clock{}, func(l **ipam.Lease) ipam.Resource { return (*l).Resource }, nil)
				handler := New(d).Handler()
				var answer counter
				scrape := func() {
					r := httptest.NewRequest(http.MethodGet, v1.PathMetrics, nil)
					r.Host = "localhost"
					r.Header.Set("Accept-Encoding", encoding)
					recorder := httptest.NewRecorder()
					answer = counter{ResponseWriter: recorder}
					handler.ServeHTTP(&answer, r)
					if recorder.Code != http.StatusOK || answer.Header().Get("Content-Encoding") == "gzip" != (encoding == "gzip") {
						b.Fatal(recorder.Code, answer.Header())
					}
				}
				scrape()
				b.ReportAllocs()
				before := processTime(b)
				for b.Loop() {
					scrape()
				}
				b.ReportMetric(float64((processTime(b)-before).Microseconds())/1000/float64(b.N), "cpu-ms/op")
				b.ReportMetric(float64(answer.bytes), "B/answer")
			})
		}
	}
}

// processTime returns the CPU time of all threads of this process. It includes the garbage
// collection that a scrape causes, and excludes other programs.
func processTime(b *testing.B) time.Duration {
	var r unix.Rusage
	must.Succeed(b, unix.Getrusage(unix.RUSAGE_SELF, &r))
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// counter counts the bytes of a response body and discards them.
type counter struct {
	http.ResponseWriter
	bytes int
}

func (c *counter) Write(p []byte) (int, error) {
	c.bytes += len(p)
	return io.Discard.Write(p)
}

// BenchmarkListServices measures what `ironvip service list` asks for: all pages of 10,000 services with
// 3 backends each.
func BenchmarkListServices(b *testing.B) {
	const services = 10_000
	w := newWritten()
	w.fill(services, 3)
	d := w.deps()
	d.Policy = everyone
	d.Leases = table.New(&table.Clock{}, func(l **ipam.Lease) ipam.Resource { return (*l).Resource }, nil)
	handler := New(d).Handler()
	list := func() (n int) {
		for cursor := "start"; cursor != ""; {
			q := url.Values{"limit": {"1000"}}
			if cursor != "start" {
				q.Set("cursor", cursor)
			}
			r := httptest.NewRequest(http.MethodGet, v1.PathServices+"?"+q.Encode(), nil)
			r.Host = "localhost"
			answer := httptest.NewRecorder()
			handler.ServeHTTP(answer, r)
			var page struct {
				Items []json.RawMessage `json:"items"`
				Next  string            `json:"next"`
			}
			if err := json.Unmarshal(answer.Body.Bytes(), &page); err != nil || answer.Code != http.StatusOK {
				b.Fatal(answer.Code, err)
			}
			n, cursor = n+len(page.Items), page.Next
		}
		return n
	}
	if n := list(); n != services {
		b.Fatalf("%d services", n)
	}
	b.ReportAllocs()
	before := processTime(b)
	for b.Loop() {
		list()
	}
	b.ReportMetric(float64((processTime(b)-before).Microseconds())/1000/float64(b.N), "cpu-ms/op")
}
