//go:build system

package browser

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/process"
)

// many is the number of services that a page must remain usable with.
const many = 10_000

// startMany starts an agent with many services.
func startMany(t testing.TB) *agent {
	t.Helper()
	a := start(t, loopback+fmt.Sprintf("\n[[pool]]\nname = \"big\"\ncidrs = [\"127.%d.0.0/16\"]\nauto_assign = false", 220+os.Getpid()%30))
	const batch = 1000
	for from := 0; from < many; from += batch {
		list := make([]object, batch)
		for i := range list {
			list[i] = object{"name": fmt.Sprintf("s%05d", from+i), "pool": "big", "labels": object{"rack": strconv.Itoa((from + i) % 40)}, "ports": []object{{"port": 80}},
				"backends": []object{{"address": "127.0.0.1", "port": 9}, {"address": "127.0.0.2", "port": 9}}}
		}
		a.call(http.MethodPost, "/v1/services:apply", object{"services": list})
	}
	return a
}

// The page of 10,000 services has a hundred rows in the document at most. Filter, order and scrolling reach every one.
func TestTenThousandServices(t *testing.T) {
	t.Parallel()
	a := startMany(t)
	b := open(t, a.base, "/ui/services")
	b.see("main", "10.0 k services", "s00000")
	rows := func() {
		t.Helper()
		if n := eval[int](b, "document.querySelectorAll('.rows .row').length"); n == 0 || n > 100 {
			t.Errorf("%d rows in the document", n)
		}
	}
	rows()
	b.enter("#filter", "rack=7")
	b.see("main", "250 of 10.0 k services", "s00007")
	eval[any](b, "const f = document.querySelector('#filter'); f.value = ''; f.dispatchEvent(new Event('input'))")
	b.see("main", "10.0 k services")
	b.click("[role=columnheader] button")
	b.click("[role=columnheader] button")
	b.see(".rows", "s09999")
	eval[any](b, "document.querySelector('[role=table]').scrollTop = 1e9")
	b.see(".rows", "s00000")
	rows()
	eval[any](b, "document.querySelector('[role=table]').scrollTop = 5000 * 36")
	b.see(".rows", "s04990")
	rows()
	a.call(http.MethodDelete, "/v1/services/default/s04990", nil)
	b.until("the service is gone", "!document.querySelector('.rows').innerText.includes('s04990')")
	b.enter("search input", "s09876")
	b.see("#found", "s09876")
	b.quiet()
}

// BenchmarkInteraction measures what a user waits for on a page with 10,000 services, from the event to the next
// frame, and how long a change of a service takes to be on the page.
func BenchmarkInteraction(b *testing.B) {
	a := startMany(b)
	page := open(b, a.base, "/ui/services")
	page.see("main", "10.0 k services")
	frame := func(action string) float64 {
		return eval[float64](page, `new Promise(resolve => { const t = performance.now(); `+action+`; requestAnimationFrame(() => setTimeout(() => resolve(performance.now() - t))) })`)
	}
	sums := map[string]float64{}
	for i := 0; b.Loop(); i++ {
		sums["filter-ms"] += frame(fmt.Sprintf("const f = document.querySelector('#filter'); f.value = 'rack=%d'; f.dispatchEvent(new Event('input'))", i%40))
		sums["all-ms"] += frame("const f = document.querySelector('#filter'); f.value = ''; f.dispatchEvent(new Event('input'))")
		sums["sort-ms"] += frame("document.querySelector('[role=columnheader]:nth-child(3) button').click()")
		sums["scroll-ms"] += frame(fmt.Sprintf("document.querySelector('[role=table]').scrollTop = %d * 36", (i*997)%many))
		name := fmt.Sprintf("new%d", i)
		eval[any](page, `{ window.seen = new Promise(resolve => { const timer = setInterval(() => { if (document.querySelector('main').innerText.includes('`+name+`')) { clearInterval(timer); resolve(Date.now()) } }, 5) }); const f = document.querySelector('#filter'); f.value = '`+name+`'; f.dispatchEvent(new Event('input')) }`)
		a.call(http.MethodPut, "/v1/services/default/"+name, object{"pool": "big", "ports": []object{{"port": 80}}})
		answered := time.Now()
		sums["change-ms"] += max(0, eval[float64](page, "window.seen")-float64(answered.UnixMicro())/1000)
	}
	for what, sum := range sums {
		b.ReportMetric(sum/float64(b.N), what)
	}
	b.ReportMetric(0, "ns/op")
}

// BenchmarkTwentyPages measures the share of a processor that the agent uses with 10,000 services, without a page and
// with the streams and requests of 20 overview pages, while one service changes every second.
func BenchmarkTwentyPages(b *testing.B) {
	a := startMany(b)
	const seconds = 20
	spend := func() float64 {
		from := process.CPUTime(b, a.Pid())
		for i := range seconds {
			a.call(http.MethodPut, "/v1/services/default/s00001", object{"pool": "big", "labels": object{"turn": strconv.Itoa(i)}, "ports": []object{{"port": 80}}})
			time.Sleep(time.Second)
		}
		return (process.CPUTime(b, a.Pid()) - from).Seconds() / seconds * 100
	}
	for b.Loop() {
		closed := spend()
		for range 20 {
			for _, path := range []string{"/v1/services:watch?view=summary", "/v1/top?interval=2s&limit=8&by=bytes"} {
				readStream(b, a.base+path)
			}
		}
		done := make(chan struct{})
		for range 20 {
			for path, pause := range map[string]time.Duration{"/v1/status": 2 * time.Second, "/v1/overrides?limit=1000": 5 * time.Second} {
				go func() {
					for {
						select {
						case <-done:
							return
						case <-time.After(pause):
							if r, err := http.Get(a.base + path); err == nil {
								_, _ = io.Copy(io.Discard, r.Body)
								r.Body.Close()
							}
						}
					}
				}()
			}
		}
		time.Sleep(5 * time.Second) // the first rows are sent once
		b.ReportMetric(closed, "%cpu-closed")
		b.ReportMetric(spend(), "%cpu-20-pages")
		close(done)
	}
	b.ReportMetric(0, "ns/op")
}

// readStream reads a stream until the end of the test.
func readStream(t testing.TB, url string) {
	t.Helper()
	request := must.Get(http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil))(t)
	request.Header.Set("Accept", "application/x-ndjson")
	response := must.Get(http.DefaultClient.Do(request))(t)
	go func() {
		defer response.Body.Close()
		_, _ = io.Copy(io.Discard, response.Body)
	}()
}
