// Package vip defines the shared types of ironvip: services, backends, frontends (what a dataplane
// programs), and the names of their states.
//
// Every other package uses these types, so that each fact has one shape. Formats (TOML, JSON,
// netlink) are converted at their edge. The package uses the standard library only, does no I/O and
// starts no goroutine. Values in a table are immutable: build a new one to change it.
package vip
