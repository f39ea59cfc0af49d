package api

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/ipam"
)

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
