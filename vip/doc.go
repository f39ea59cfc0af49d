// Package vip is the vocabulary of ironvip: what a service is, what a backend
// is, what a dataplane is asked to program, and the names of their states.
//
// Every other package speaks in these types, so that each fact has one shape;
// formats (TOML, JSON, netlink) are converted at their edge. The package uses
// the standard library only, does no I/O and starts no goroutine. Values are
// treated as immutable once they are in a table: build a new one to change it.
package vip
