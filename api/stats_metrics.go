package api

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
)

// statsCollector reads the dataplane's counters at each scrape, with one read for all frontends.
// When the dataplane recreates a frontend, its counters fall to 0, which Prometheus detects as a
// reset. Each frontend therefore has its own series. A sum over several would fall only partly, and
// Prometheus would count that as a reset of the sum.
type statsCollector struct{ s *Server }

var (
	frontendLabels  = []string{"service", "port", "frontend"}
	directionLabels = []string{"service", "port", "frontend", "direction"}

	descStatsUp     = desc("statistics_up", "1: the dataplane's counters were read in this scrape; 0: the service traffic series are missing.")
	descConnections = desc("service_connections_total", "Connections given to a backend, by frontend; a UDP client counts as one.", frontendLabels...)
	descBytes       = desc("service_bytes_total", "Bytes from clients (in) and to them (out), by frontend: of IP packets with ipvs, of payload with the proxy.", directionLabels...)
	descPackets     = desc("service_packets_total", "Packets from clients (in) and to them (out), by frontend; ipvs only.", directionLabels...)
	descActive      = desc("service_active_connections", "Open connections, by frontend: established TCP connections and recently active UDP clients.", frontendLabels...)
	descInactive    = desc("service_inactive_connections", "TCP connections that are opening, closing or in a timed wait, by frontend; ipvs only.", frontendLabels...)
)

// Describe implements prometheus.Collector; see tableCollector.
func (c *statsCollector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c *statsCollector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), countingTime)
	defer cancel()
	send := func(d *prometheus.Desc, kind prometheus.ValueType, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, kind, float64(v), labels...)
	}
	totals, err := c.s.Statistics.Totals(ctx, c.s.wanted)
	if err != nil {
		c.s.log.Warn("read the dataplane's counters", "err", err)
		send(descStatsUp, prometheus.GaugeValue, 0)
		return
	}
	send(descStatsUp, prometheus.GaugeValue, 1)
	counted := c.s.Statistics.Counted()
	for f, t := range c.s.counted(totals) {
		service, frontend := f.Service.String(), f.Key.String()
		send(descConnections, prometheus.CounterValue, t.Connections, service, f.Port, frontend)
		send(descActive, prometheus.GaugeValue, t.Active, service, f.Port, frontend)
		send(descBytes, prometheus.CounterValue, t.In.Bytes, service, f.Port, frontend, "in")
		send(descBytes, prometheus.CounterValue, t.Out.Bytes, service, f.Port, frontend, "out")
		if counted.Packets {
			send(descPackets, prometheus.CounterValue, t.In.Packets, service, f.Port, frontend, "in")
			send(descPackets, prometheus.CounterValue, t.Out.Packets, service, f.Port, frontend, "out")
		}
		if counted.Inactive {
			send(descInactive, prometheus.GaugeValue, t.Inactive, service, f.Port, frontend)
		}
	}
}
