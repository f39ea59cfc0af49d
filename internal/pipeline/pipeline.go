// Package pipeline holds the stages of the pipeline that join tables: Allocate
// brings services to the allocator and writes what each was granted, Compile
// joins services, grants, the operator's words and this host's addresses into
// the frontends that a dataplane programs, and drains what is taken away.
//
// Each stage is one goroutine around a Run, and the only writer of its output
// tables. It acts on the newest rows, is safe to repeat, and does work in
// proportion to what changed, never to what there is. A stage has no policy of
// its own: who gets an address is ipam's word, what a service becomes is
// compile's. Package status explains what the tables hold.
package pipeline

import (
	"log/slog"
)

// logger returns l, or one that drops everything.
func logger(l *slog.Logger) *slog.Logger {
	if l == nil {
		return slog.New(slog.DiscardHandler)
	}
	return l
}
