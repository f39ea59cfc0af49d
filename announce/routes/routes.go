// Package routes announces prefixes through a router that already runs on this host, such as BIRD or
// FRR: it keeps one route for each prefix in a routing table of its own, from which the router
// exports them.
//
// Its input is a table of prefixes. Its outputs are routes with its own protocol number in its own table.
// No rule refers to that table, so the routes don't affect forwarding. At the start it adopts what
// an earlier run left, and at the end it leaves the routes. It changes no route with another
// protocol number, also not in its table.
package routes

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"time"

	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/plane/reconcile"
)

const (
	// DefaultTable is the routing table. It can be imported by FRR, which accepts the tables 1 to 252.
	DefaultTable = 179
	// DefaultProtocol is a number that neither the kernel nor a known routing daemon uses.
	DefaultProtocol = 179
)

// Speaker keeps the routes. Create one with New and start it with Run.
type Speaker struct {
	applied *table.Table[netip.Prefix, reconcile.Applied[netip.Prefix]]
	loop    *reconcile.Reconciler[netip.Prefix, netip.Prefix]
	kernel  *kernel
}

// resync is the pause between two reads of the table, which repair what others have removed.
const resync = time.Minute

// New returns a Speaker that keeps a route for each prefix of a table, which has no host bits. Routes of
// an earlier run that are not in the table are removed when it is ready.
func New(desired table.Reader[netip.Prefix, netip.Prefix], log *slog.Logger) *Speaker {
	s := &Speaker{
		applied: table.New(new(table.Clock), func(a *reconcile.Applied[netip.Prefix]) netip.Prefix { return a.Tried.Value }, nil),
		kernel:  newKernel(DefaultTable, DefaultProtocol),
	}
	s.loop = reconcile.New(reconcile.Options[netip.Prefix, netip.Prefix]{Desired: desired, Target: s.kernel, Applied: s.applied, Resync: resync, Log: log})
	return s
}

// Results returns the results of all routes, by prefix.
func (s *Speaker) Results() table.Reader[netip.Prefix, reconcile.Applied[netip.Prefix]] {
	return s.applied
}

// Stats returns totals, and why the kernel can't be programmed, if so.
func (s *Speaker) Stats() reconcile.Stats { return s.loop.Stats() }

// Run keeps the routes until the context ends. It leaves them, so that a restart of this process
// changes nothing for the router.
func (s *Speaker) Run(ctx context.Context) error {
	defer s.kernel.Close()
	return s.loop.Run(ctx)
}

// Find returns the routes that a Speaker that no longer runs has left, in the network namespace of the
// calling thread.
func Find(ctx context.Context) (found []netip.Prefix, err error) {
	k := newKernel(DefaultTable, DefaultProtocol)
	defer k.Close()
	for o, err := range k.Actual(ctx) {
		if err != nil {
			return nil, err
		}
		found = append(found, o.Value)
	}
	return found, nil
}

// Remove removes what Find finds, paced as all changes.
func Remove(ctx context.Context) error {
	found, err := Find(ctx)
	if err != nil {
		return err
	}
	k := newKernel(DefaultTable, DefaultProtocol)
	defer k.Close()
	batch := make([]reconcile.Update[netip.Prefix, netip.Prefix], len(found))
	for i, p := range found {
		batch[i] = reconcile.Update[netip.Prefix, netip.Prefix]{Key: p, Old: &found[i]}
	}
	err = k.Apply(ctx, batch)
	for i := range batch {
		err = errors.Join(err, batch[i].Err)
	}
	return err
}
