package api

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/api/status/statustest"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

// allAlike reports the same counters for the first frontends, with the values that IPVS counts, and none for the others.
type allAlike struct {
	w    *statustest.Tables
	busy int // how many have traffic
}

func (e allAlike) Counted() reconcile.Counted {
	return reconcile.Counted{Packets: true, Inactive: true, Rates: true}
}

func (e allAlike) Totals(context.Context, func(vip.FrontendKey) bool) (map[vip.FrontendKey]reconcile.Traffic, error) {
	out := make(map[vip.FrontendKey]reconcile.Traffic, e.busy)
	for i := range e.busy {
		out[statustest.FrontendNo(i)] = reconcile.Traffic{Connections: 123456, Active: 12, Inactive: 34, In: reconcile.Volume{Packets: 1234567, Bytes: 123456789},
			Out: reconcile.Volume{Packets: 2345678, Bytes: 9876543210}}
	}
	return out, nil
}

func (e allAlike) Breakdown(context.Context, vip.FrontendKey) (reconcile.Breakdown, bool, error) {
	return reconcile.Breakdown{}, false, nil
}

// scraped is an agent with many services that answers scrapes.
type scraped struct {
	w       *statustest.Tables
	handler http.Handler
	chosen  []string
}

// newScraped returns an agent with healthy services of 10 backends each.
func newScraped(services, busy, unhealthy int, chosen ...string) *scraped {
	s := &scraped{w: statustest.New(), chosen: chosen}
	s.w.Fill(services, 10)
	for i := range unhealthy {
		row, _, _ := s.w.Services.Get(statustest.ServiceNo(i))
		s.w.Overrides.Set(vip.BackendState{Backend: row.Backends[0].Key(row.Key), State: vip.Maint})
	}
	d := depsOf(s.w)
	d.BackendMetrics = func() []string { return s.chosen }
	d.Forwarding.Statistics = allAlike{s.w, busy}
	s.handler = New(d).Handler()
	return s
}

// scrape returns the text of the metrics.
func (s *scraped) scrape(t testing.TB, encoding string) string {
	r := httptest.NewRequest(http.MethodGet, v1.PathMetrics, nil)
	r.Host = "localhost"
	r.Header.Set("Accept-Encoding", encoding)
	answer := httptest.NewRecorder()
	s.handler.ServeHTTP(answer, r)
	if answer.Code != http.StatusOK || answer.Header().Get("Content-Encoding") == "gzip" != (encoding == "gzip") {
		t.Fatal(answer.Code, answer.Header())
	}
	return answer.Body.String()
}

// A scrape costs what has traffic or trouble, and the chosen backends.
func TestScrapeCostsTrafficAndTrouble(t *testing.T) {
	cost := func(s *scraped) (series int, allocations float64) {
		text := s.scrape(t, "")
		for line := range strings.Lines(text) {
			series += count(strings.HasPrefix(line, "ironvip_"))
		}
		return series, testing.AllocsPerRun(3, func() { s.scrape(t, "") })
	}
	few, fewAllocations := cost(newScraped(10, 0, 0))
	all := newScraped(1000, 0, 0)
	many, allocations := cost(all)
	if many != few || allocations > fewAllocations+500 {
		t.Errorf("1,000 services: %d series and %.0f allocations, want those of 10: %d and %.0f", many, allocations, few, fewAllocations)
	}
	all.chosen = []string{"default/s1", "default/s2"}
	const ofBackends, ofState, ofTraffic = 10, 6, 7
	if chosen, _ := cost(all); chosen != few+2*(ofBackends+ofState) {
		t.Errorf("%d series more for two chosen services", chosen-few)
	}
	if some, _ := cost(newScraped(1000, 3, 5)); some != few+1+3*ofTraffic+5*ofState { // and one for the state of the services
		t.Errorf("%d series more with 3 services with traffic and 5 with trouble", some-few)
	}
	text := newScraped(10, 1, 2).scrape(t, "")
	for _, want := range []string{`ironvip_backends{state="maint"} 2`, `ironvip_backends{state="ready"} 98`, "ironvip_usable_backends 98", "ironvip_unhealthy_backends 0",
		`ironvip_services{source="files",state="degraded"} 2`, `ironvip_services{source="files",state="unchecked"} 8`,
		`ironvip_service_usable_backends{service="s1"} 9`, `ironvip_service_connections_total{frontend="192.0.0.0:80/tcp",port="",service="s0"} 123456`} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
}

// BenchmarkScrape measures one scrape of the metrics of 100,000 services with 10 backends each: with all
// services healthy and idle, with 1 percent that have traffic and 0.1 percent that are degraded, and with series of the
// backends of 100 services.
func BenchmarkScrape(b *testing.B) {
	const services = 100_000
	for _, kind := range []struct {
		name            string
		busy, unhealthy int
		chosen          string
	}{{"idle", 0, 0, "other/*"}, {"busy", services / 100, services / 1000, "other/*"}, {"backends", services / 100, services / 1000, "*/s123??"}} {
		s := newScraped(services, kind.busy, kind.unhealthy, kind.chosen)
		for _, encoding := range []string{"identity", "gzip"} {
			b.Run(kind.name+"/"+encoding, func(b *testing.B) {
				size := len(s.scrape(b, encoding))
				b.ReportAllocs()
				before := processTime(b)
				for b.Loop() {
					s.scrape(b, encoding)
				}
				b.ReportMetric(float64((processTime(b)-before).Microseconds())/1000/float64(b.N), "cpu-ms/op")
				b.ReportMetric(float64(size), "B/answer")
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

// BenchmarkListServices measures what `ironvip service list` asks for: all pages of 10,000 services with
// 3 backends each.
func BenchmarkListServices(b *testing.B) {
	const services = 10_000
	w := statustest.New()
	w.Fill(services, 3)
	d := depsOf(w)
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
