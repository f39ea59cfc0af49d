package metric

import (
	"compress/gzip"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

// text returns the text of what a collector adds.
func text(t *testing.T, collect Collector) string {
	t.Helper()
	families := must.Get(Registry(collect).Gather())(t)
	var b strings.Builder
	for _, f := range families {
		must.Get(expfmt.MetricFamilyToText(&b, f))(t)
	}
	return b.String()
}

func TestSamples(t *testing.T) {
	g := NewGroup("Test", "test_")
	gauge, counter := g.Gauge("b", "A \\ and\na line.", "one"), g.Counter("a_total", "Counts.")
	plain, labeled := NewDurations(g.Histogram("d_seconds", "Without labels."), .5, 1), NewDurations(g.Histogram("c_seconds", "With one.", "zone"), .5, 1)
	for _, took := range []time.Duration{0, 500 * time.Millisecond, time.Second, 6 * time.Second} {
		plain.Observe(took)
		labeled.Observe(took, "z")
	}
	got := text(t, func(w *Writer) {
		w.Add(gauge, math.Inf(1), `"q"`)
		w.Truth(gauge, true, "x")
		w.Add(gauge, -1.5e-7, "y")
		w.Add(counter, 1200)
		plain.Collect(w)
		labeled.Collect(w)
	})
	const want = `# HELP ironvip_test_a_total Counts.
# TYPE ironvip_test_a_total counter
ironvip_test_a_total 1200
# HELP ironvip_test_b A \\ and\na line.
# TYPE ironvip_test_b gauge
ironvip_test_b{one="\"q\""} +Inf
ironvip_test_b{one="x"} 1
ironvip_test_b{one="y"} -1.5e-07
# HELP ironvip_test_c_seconds With one.
# TYPE ironvip_test_c_seconds histogram
ironvip_test_c_seconds_bucket{zone="z",le="0.5"} 2
ironvip_test_c_seconds_bucket{zone="z",le="1"} 3
ironvip_test_c_seconds_bucket{zone="z",le="+Inf"} 4
ironvip_test_c_seconds_sum{zone="z"} 7.5
ironvip_test_c_seconds_count{zone="z"} 4
# HELP ironvip_test_d_seconds Without labels.
# TYPE ironvip_test_d_seconds histogram
ironvip_test_d_seconds_bucket{le="0.5"} 2
ironvip_test_d_seconds_bucket{le="1"} 3
ironvip_test_d_seconds_bucket{le="+Inf"} 4
ironvip_test_d_seconds_sum 7.5
ironvip_test_d_seconds_count 4
`
	expect.Equal(t, got, want, "\nwant\n")
	if len(g.Families()) != 4 || g.Families()[0] != gauge {
		t.Errorf("%v", g.Families())
	}
}

func TestDurations(t *testing.T) {
	d := NewDurations(NewGroup("Test", "").Histogram("d_seconds", "Durations.", "source"), .1, 1)
	d.Observe(100*time.Millisecond, "rest")
	d.Observe(500*time.Millisecond, "rest")
	d.Observe(2*time.Second, "rest")
	d.Observe(0, "files")
	got := text(t, d.Collect)
	for _, want := range []string{
		`_bucket{source="files",le="0.1"} 1`, `_bucket{source="rest",le="0.1"} 1`, `_bucket{source="rest",le="1"} 2`,
		`_bucket{source="rest",le="+Inf"} 3`, `_sum{source="rest"} 2.6`, `_count{source="rest"} 3`,
	} {
		expect.Contains(t, got, "ironvip_d_seconds"+want+"\n")
	}
}

func TestHandler(t *testing.T) {
	gauge := NewGroup("Test", "").Gauge("g", "A gauge.")
	entered, release := make(chan struct{}), make(chan struct{})
	var block bool
	h := Handler(func(w *Writer) {
		w.Add(gauge, 7)
		if block {
			entered <- struct{}{}
			<-release
		}
	})
	for _, tc := range []struct {
		accept string
		packed bool
	}{{"", false}, {"gzip", true}, {"deflate, gzip;q=0.5", true}, {"gzip; q=0", false}} {
		r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
		r.Header.Set("Accept-Encoding", tc.accept)
		answer := httptest.NewRecorder()
		h.ServeHTTP(answer, r)
		body := io.Reader(answer.Body)
		if packed := answer.Header().Get("Content-Encoding") == "gzip"; packed != tc.packed {
			t.Errorf("accepts %q: packed is %t", tc.accept, packed)
		} else if packed {
			var err error
			if body, err = gzip.NewReader(body); err != nil {
				t.Fatal(err)
			}
		}
		text, err := io.ReadAll(body)
		if err != nil || !strings.Contains(string(text), "\nironvip_g 7\n") || !strings.Contains(string(text), "\ngo_goroutines ") || !strings.Contains(string(text), "\nprocess_open_fds ") {
			t.Errorf("accepts %q: %v %s", tc.accept, err, text)
		}
		got := answer.Header().Get("Content-Type")
		expect.True(t, strings.HasPrefix(got, "text/plain; version=0.0.4; charset=utf-8"), "type %s", got)
	}
	block = true
	answered := make(chan int)
	scrape := func() {
		answer := httptest.NewRecorder()
		h.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		answered <- answer.Code
	}
	for range maxScrapes {
		go scrape()
		<-entered
	}
	go scrape()
	expect.Equal(t, <-answered, http.StatusServiceUnavailable, "one scrape too many")
	close(release)
	for range maxScrapes {
		expect.Equal(t, <-answered, http.StatusOK)
	}
}

// A fault of a collector is an error of its samples: the others are answered, and the process goes on.
func TestFaults(t *testing.T) {
	g := NewGroup("Test", "")
	gauge, other := g.Gauge("g", "A gauge.", "one"), g.Gauge("other", "Another one.")
	for _, fault := range []Collector{
		func(w *Writer) { w.Add(gauge, 1) },
		func(w *Writer) { w.Add(gauge, 1, "\xff") },
		func(w *Writer) { w.Add(gauge, 1, "same"); w.Add(gauge, 2, "same") },
		func(*Writer) { panic("fault") },
	} {
		families, err := Registry(func(w *Writer) { w.Add(other, 7) }, fault).Gather()
		if err == nil || len(families) == 0 {
			t.Errorf("%v, %v", families, err)
		}
	}
}
