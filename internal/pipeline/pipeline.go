// Package pipeline holds the stages that join tables between the sources and the dataplane.
//
// Resolve selects one source's claim for each service name. Allocate requests addresses and node
// ports from the allocator for each service and writes what was granted. Compile joins services,
// grants, overrides and this host's addresses into the frontends that a dataplane programs, and
// drains the frontends and backends that are removed.
//
// Each stage is the only writer of its output tables. Allocate and Compile each run in one
// goroutine. Resolve runs in the goroutine that writes a claim and, for changed leases, in one of
// its own. A stage acts on the newest rows, is idempotent, and does work in proportion to what
// changed. It has no policy of its own: package ipam selects addresses, and package compile
// computes frontends. Package status explains what the tables hold.
package pipeline

import (
	"log/slog"
)

// logger returns l, or a logger that discards everything if l is nil.
func logger(l *slog.Logger) *slog.Logger {
	if l == nil {
		return slog.New(slog.DiscardHandler)
	}
	return l
}
