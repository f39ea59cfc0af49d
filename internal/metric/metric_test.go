package metric

import (
	"compress/gzip"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"pgregory.net/rapid"
)

// write returns what a writer writes.
func write(t interface{ Fatal(...any) }, w *Writer) string {
	var b strings.Builder
	if n, err := w.WriteTo(&b); err != nil || int(n) != b.Len() {
		t.Fatal(n, b.Len(), err)
	}
	return b.String()
}

// The parser of Prometheus' library reads the samples that were added, whatever the labels and values
// are.
func TestTextIsReadable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := NewGroup("Test", "")
		gauge := g.Gauge("g", rapid.String().Draw(t, "help"), "zone", "a")
		zone, a := rapid.String().Draw(t, "zone"), rapid.String().Draw(t, "a")
		v := rapid.Float64().Draw(t, "value")
		var w Writer
		w.Add(gauge, v, zone, a)
		parser := expfmt.NewTextParser(model.UTF8Validation)
		families, err := parser.TextToMetricFamilies(strings.NewReader(write(t, &w)))
		if err != nil {
			t.Fatal(err)
		}
		m := families["ironvip_g"].Metric[0]
		if got := m.GetGauge().GetValue(); got != v {
			t.Errorf("%v, want %v", got, v)
		}
		if m.Label[0].GetName() != "a" || m.Label[0].GetValue() != a || m.Label[1].GetName() != "zone" || m.Label[1].GetValue() != zone {
			t.Errorf("labels %v, want a=%q zone=%q", m.Label, a, zone)
		}
	})
}

func TestSamples(t *testing.T) {
	g := NewGroup("Test", "test_")
	gauge, counter := g.Gauge("b", "A \\ and\na line.", "one"), g.Counter("a_total", "Counts.")
	plain, labeled := g.Histogram("d_seconds", "Without labels."), g.Histogram("c_seconds", "With one.", "zone")
	var w Writer
	w.Add(gauge, math.Inf(1), `"q"`)
	w.Truth(gauge, true, "x")
	w.Add(gauge, -1.5e-7, "y")
	w.Add(counter, 1<<52+1)
	b := Buckets{Bounds: []float64{.5, 1}, Counts: []uint64{2, 3}, Count: 4, Sum: 7.5}
	w.AddHistogram(plain, b)
	w.AddHistogram(labeled, b, "z")
	const want = `# HELP ironvip_test_a_total Counts.
# TYPE ironvip_test_a_total counter
ironvip_test_a_total 4503599627370497
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
	if got := write(t, &w); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	if len(g.Families()) != 4 || g.Families()[0] != gauge {
		t.Errorf("%v", g.Families())
	}
}

// A sample costs no memory but its text, and the second scrape allocates that once.
func TestSamplesCostNoObjects(t *testing.T) {
	gauge := NewGroup("Test", "").Gauge("g", "A gauge.", "service", "backend")
	fill := func(w *Writer) {
		for range 1000 {
			w.Add(gauge, 12, "shop/web", "10.0.0.1:80")
		}
	}
	var first Writer
	fill(&first)
	sizes := first.lengths()
	n := testing.AllocsPerRun(10, func() {
		w := Writer{sizes: sizes}
		fill(&w)
	})
	if n > 5 {
		t.Errorf("%v allocations for 1,000 samples", n)
	}
}

func TestDurations(t *testing.T) {
	d := NewDurations(NewGroup("Test", "").Histogram("d_seconds", "Durations.", "source"), .1, 1)
	d.Observe("rest", 100*time.Millisecond)
	d.Observe("rest", 500*time.Millisecond)
	d.Observe("rest", 2*time.Second)
	d.Observe("files", 0)
	var w Writer
	d.Collect(&w)
	text := write(t, &w)
	for _, want := range []string{
		`_bucket{source="files",le="0.1"} 1`, `_bucket{source="rest",le="0.1"} 1`, `_bucket{source="rest",le="1"} 2`,
		`_bucket{source="rest",le="+Inf"} 3`, `_sum{source="rest"} 2.6`, `_count{source="rest"} 3`,
	} {
		if !strings.Contains(text, "ironvip_d_seconds"+want+"\n") {
			t.Errorf("no %s in\n%s", want, text)
		}
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
	}{{"", false}, {"gzip", true}, {"deflate, gzip;q=0.5", true}, {"gzip; q=0", false}, {"gzip;q=0.0, identity", false}} {
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
		if got := answer.Header().Get("Content-Type"); got != contentType {
			t.Errorf("type %s", got)
		}
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
	if code := <-answered; code != http.StatusServiceUnavailable {
		t.Errorf("one scrape too many: %d", code)
	}
	close(release)
	for range maxScrapes {
		if code := <-answered; code != http.StatusOK {
			t.Error(code)
		}
	}
}

// A wrong number of labels, or of samples of another type, is a fault of the code.
func TestFaultsPanic(t *testing.T) {
	g := NewGroup("Test", "")
	gauge, histogram := g.Gauge("g", "A gauge.", "one"), g.Histogram("h", "A histogram.")
	for i, f := range []func(){
		func() { new(Writer).Add(gauge, 1) },
		func() { new(Writer).Add(histogram, 1) },
		func() { new(Writer).AddHistogram(gauge, Buckets{}, "a") },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Error(fmt.Sprint("no panic of ", i))
				}
			}()
			f()
		}()
	}
}
