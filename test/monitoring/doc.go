// Package monitoring tests what operators watch ironvip with, against Debian's Prometheus.
//
// The tests of the alert rules are in configs/prometheus/ironvip_test.yml. This package runs them with
// promtool, and lets a real Prometheus scrape a real agent until an alert fires. Each query of the
// dashboard in configs/grafana must have data of an agent that uses all parts. promtool checks the
// metrics of this agent.
package monitoring
