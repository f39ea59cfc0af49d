package naming

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/ironvip/ironvip/dns/server"
)

type collector struct{ n *Naming }

// Collector returns the metrics of DNS.
func (n *Naming) Collector() prometheus.Collector { return &collector{n} }

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("ironvip_dns_"+name, help, labels, nil)
}

var (
	descUp          = desc("up", "1: the address is served by UDP and TCP.", "listen")
	descQueries     = desc("queries_total", "Answered queries.", "transport", "type", "rcode")
	descDropped     = desc("dropped_total", "Queries and connections without an answer.", "reason")
	descNames       = desc("names", "Names that are answered, with those of ports and addresses.")
	descConflicts   = desc("name_conflicts", "Names that services want and other services have.")
	descConnections = desc("tcp_connections", "Open TCP connections.")
	descDuration    = desc("query_duration_seconds", "Time from the receipt of a query to its reply.")
)

// Describe implements prometheus.Collector. It describes nothing, because there are no series while
// names are not answered.
func (c *collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector. It costs O(addresses to listen at).
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	if !c.n.Config().DNS.On() {
		return
	}
	send := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, kind, v, labels...)
	}
	for _, l := range c.n.server.Listeners() {
		up := 0.0
		if l.Up {
			up = 1
		}
		send(descUp, prometheus.GaugeValue, up, l.Addr.String())
	}
	counters := c.n.server.Counters()
	for q := range counters.Queries() {
		send(descQueries, prometheus.CounterValue, float64(q.Count), q.Transport.String(), q.Type, q.Code.String())
	}
	for _, r := range server.Reasons {
		send(descDropped, prometheus.CounterValue, float64(counters.Dropped(r)), r.String())
	}
	send(descNames, prometheus.GaugeValue, float64(c.n.Stage.Len()))
	send(descConflicts, prometheus.GaugeValue, float64(c.n.Stage.Conflicts().Len()))
	send(descConnections, prometheus.GaugeValue, float64(counters.Connections()))
	upTo, count, sum := counters.Durations()
	buckets := make(map[float64]uint64, len(upTo))
	for i, n := range upTo {
		buckets[server.Buckets[i].Seconds()] = n
	}
	ch <- prometheus.MustNewConstHistogram(descDuration, count, sum.Seconds(), buckets)
}
