package metric

import (
	"compress/gzip"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/common/expfmt"
)

// contentType is that of Prometheus' text format.
const contentType = "text/plain; version=0.0.4; charset=utf-8"

// maxScrapes is how many scrapes are answered at a time: two of a pair of Prometheus servers, and
// others of a person.
const maxScrapes = 4

// handler answers scrapes.
type handler struct {
	collectors []Collector
	library    prometheus.Gatherer
	slots      chan struct{}
	sizes      atomic.Pointer[map[*Family]int] // of the last scrape
	packers    sync.Pool                       // of *gzip.Writer, each about 1 MB
}

// Handler returns a handler that answers with the samples of collectors, and with those of Prometheus'
// library about the Go runtime and the process. More than four scrapes at a time get 503.
func Handler(own ...Collector) http.Handler {
	library := prometheus.NewRegistry()
	library.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return &handler{collectors: own, library: library, slots: make(chan struct{}, maxScrapes)}
}

// ServeHTTP implements http.Handler.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	select {
	case h.slots <- struct{}{}:
		defer func() { <-h.slots }()
	default:
		http.Error(w, "too many scrapes at a time", http.StatusServiceUnavailable)
		return
	}
	scrape := &Writer{}
	if sizes := h.sizes.Load(); sizes != nil {
		scrape.sizes = *sizes
	}
	for _, collect := range h.collectors {
		collect(scrape)
	}
	sizes := scrape.lengths()
	h.sizes.Store(&sizes)

	w.Header().Set("Content-Type", contentType)
	out := io.Writer(w)
	if acceptsGzip(r) {
		w.Header().Set("Content-Encoding", "gzip")
		packer, _ := h.packers.Get().(*gzip.Writer)
		if packer == nil {
			packer, _ = gzip.NewWriterLevel(nil, gzip.BestSpeed) // the level is valid
		}
		packer.Reset(w)
		defer func() {
			_ = packer.Close() // the caller may be gone
			h.packers.Put(packer)
		}()
		out = packer
	}
	if _, err := scrape.WriteTo(out); err != nil {
		return // the caller is gone
	}
	families, _ := h.library.Gather() // with an error, what is known
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(out, f); err != nil {
			return
		}
	}
}

// acceptsGzip reports whether the caller reads gzip.
func acceptsGzip(r *http.Request) bool {
	for coding := range strings.SplitSeq(r.Header.Get("Accept-Encoding"), ",") {
		name, quality, _ := strings.Cut(strings.ReplaceAll(coding, " ", ""), ";")
		if name == "gzip" {
			q, err := strconv.ParseFloat(strings.TrimPrefix(quality, "q="), 64)
			return err != nil || q > 0
		}
	}
	return false
}
