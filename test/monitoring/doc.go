// Package monitoring tests the files of configs/prometheus with Debian's promtool and Prometheus.
//
// The tests of the rules are in configs/prometheus/ironvip_test.yml. This package runs them, and lets
// a real Prometheus scrape a real agent in demo mode until an alert fires.
package monitoring
