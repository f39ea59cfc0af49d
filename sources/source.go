package sources

import (
	"context"

	"github.com/ironvip/ironvip/vip"
)

// Source learns services from somewhere and tells them to a Sink.
type Source interface {
	// Run feeds out until the context ends, and then returns its error. Any
	// earlier return is a failure: what the source said last stays in force,
	// marked stale, and Run is called again after a back-off. Each Run starts
	// with out.Replace.
	Run(ctx context.Context, out Sink) error
}

// Sink takes what one source says. Rows it is given must not be changed
// afterwards. Its methods may be called by several goroutines.
type Sink interface {
	// Replace states the source's full list of services and everything that is
	// wrong with its input, and marks the source synced and not stale. Services
	// it had before and that are not in the list are removed. It returns the
	// revision of the newest row that changed.
	Replace(services []vip.Service, problems []vip.Problem) (rev uint64)
	// Put adds or replaces single services and returns their rows' revisions, in
	// order.
	Put(services ...vip.Service) (revs []uint64)
	// Delete removes services of this source.
	Delete(keys ...vip.ServiceKey)
	// Problems states everything that is wrong with the source's input, as Replace
	// does, and leaves its services alone.
	Problems(problems []vip.Problem)
	// Stale says that the source can't be read now and why; its rows stay. The
	// next Replace, or Fresh, ends it.
	Stale(err error)
	// Fresh says that the source is in touch again and nothing was missed.
	Fresh()
}

// Status is how a source fares: the row of the sources table.
type Status struct {
	Name     string
	Type     string // "static", "rest", "consul", "kubernetes"
	Synced   bool   // has said its full list once
	Stale    string // why its rows may be old; "" when they are not
	Services int    // rows in force, including those it holds aside
	Problems []vip.Problem
	LastSync int64 // Unix milliseconds of the last word from it; 0 never
	Restarts int
}
