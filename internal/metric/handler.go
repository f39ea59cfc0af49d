package metric

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// maxScrapes is how many scrapes are answered at a time: two of a pair of Prometheus servers, and
// others of a person.
const maxScrapes = 4

// Handler returns a handler that answers with the samples of collectors, and with those of Prometheus'
// library about the Go runtime and the process. More than four scrapes at a time get 503.
func Handler(own ...Collector) http.Handler {
	r := Registry(own...)
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes, ErrorHandling: promhttp.ContinueOnError})
}

// Registry returns a registry with the samples of collectors.
func Registry(own ...Collector) *prometheus.Registry {
	r := prometheus.NewRegistry()
	for _, c := range own {
		r.MustRegister(c)
	}
	return r
}
