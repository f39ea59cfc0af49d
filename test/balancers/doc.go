// Package balancers compares the userspace proxy with HAProxy, nginx and a plain io.Copy: processor
// time and memory of a request and of a connection, throughput and latency.
//
// Each balancer is a process of its own on this host. Clients and backends are one thread of the
// test, with an epoll loop, so that they cost less than what they measure. The processor time is that
// of the balancer's process: ratios of it hold on a busy machine. Throughput and latency need a quiet
// one.
package balancers
