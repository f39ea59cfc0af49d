package naming

import (
	"github.com/ironvip/ironvip/dns/server"
	"github.com/ironvip/ironvip/internal/metric"
)

// Metrics are the metrics of DNS.
var Metrics = metric.NewGroup("DNS", "dns_")

var (
	familyUp          = Metrics.Gauge("up", "1: the address is served by UDP and TCP.", "listen")
	familyQueries     = Metrics.Counter("queries_total", "Answered queries.", "transport", "type", "rcode")
	familyDropped     = Metrics.Counter("dropped_total", "Queries and connections without an answer.", "reason")
	familyNames       = Metrics.Gauge("names", "Answered names, also of ports and addresses.")
	familyConflicts   = Metrics.Gauge("name_conflicts", "Names that services want and don't have.")
	familyConnections = Metrics.Gauge("tcp_connections", "Open TCP connections.")
	familyDuration    = Metrics.Histogram("query_duration_seconds", "Time from a query to its reply.")
)

// Collect is the collector of the metrics of DNS. It costs O(addresses to listen at). There are no
// series while names are not answered.
func (n *Naming) Collect(w *metric.Writer) {
	if !n.Config().DNS.On() {
		return
	}
	for _, l := range n.server.Listeners() {
		w.Truth(familyUp, l.Up, l.Addr.String())
	}
	counters := n.server.Counters()
	for q := range counters.Queries() {
		w.Add(familyQueries, float64(q.Count), q.Transport.String(), q.Type, q.Code)
	}
	for _, r := range server.Reasons {
		w.Add(familyDropped, float64(counters.Dropped(r)), r.String())
	}
	w.Add(familyNames, float64(n.Stage.Len()))
	w.Add(familyConflicts, float64(n.Stage.Conflicts().Len()))
	w.Add(familyConnections, float64(counters.Connections()))
	n.durations.Collect(w)
}

// newDurations returns the histogram of the times from the receipt of a query to its reply.
func newDurations() *metric.Durations {
	return metric.NewDurations(familyDuration, 4e-6, 16e-6, 64e-6, 256e-6, .001, .004, .016, .064, .256)
}
