// Package routes announces prefixes through a router that already runs on this host, such as BIRD or
// FRR: it keeps one route for each prefix in a routing table of its own, from which the router
// exports them.
//
// Its inputs are the prefixes. Its outputs are routes with its own protocol number in its own table.
// No rule refers to that table, so the routes don't affect forwarding. At the start it adopts what
// an earlier run left, and at the end it leaves the routes. It changes no route with another
// protocol number, also not in its table.
package routes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/plane/reconcile"
)

// Defaults of Config.
const (
	// DefaultTable can be imported by FRR, which accepts the tables 1 to 252.
	DefaultTable = 179
	// DefaultProtocol is a number that neither the kernel nor a known routing daemon uses.
	DefaultProtocol = 179
)

// Config are the settings of a Speaker.
type Config struct {
	Table    uint32 // 0: DefaultTable. Not the tables that the kernel's rules use: 253 to 255
	Protocol uint8  // 0: DefaultProtocol. Not one of the kernel's own: 1 to 4
	Log      *slog.Logger
}

// Validate returns the first error of the settings.
func (c Config) Validate() error {
	switch {
	case c.Table >= unix.RT_TABLE_DEFAULT && c.Table <= unix.RT_TABLE_LOCAL:
		return fmt.Errorf("routing table %d invalid: it is one of the host's own", c.Table)
	case c.Protocol != 0 && c.Protocol <= unix.RTPROT_STATIC:
		return fmt.Errorf("route protocol %d invalid: it is one of the kernel's", c.Protocol)
	}
	return nil
}

// Speaker keeps the routes. Create one with New and start it with Run. Its methods may be called
// concurrently, also before Run.
type Speaker struct {
	desired *table.Table[netip.Prefix, netip.Prefix]
	ready   func()
	applied *table.Table[netip.Prefix, Applied]
	loop    *reconcile.Reconciler[netip.Prefix, netip.Prefix]
	kernel  *kernel
}

// Applied is the result of the latest attempt at one prefix.
type Applied = reconcile.Applied[netip.Prefix]

// resync is the pause between two reads of the table, which repair what others have removed.
const resync = time.Minute

// New returns a Speaker.
func New(c Config) (*Speaker, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	clock := new(table.Clock)
	own := func(p *netip.Prefix) netip.Prefix { return *p }
	s := &Speaker{
		desired: table.New(clock, own, func(a, b netip.Prefix) bool { return a == b }),
		applied: table.New(clock, func(a *Applied) netip.Prefix { return a.Tried.Value }, nil),
		kernel:  newKernel(cmp.Or(c.Table, DefaultTable), cmp.Or(c.Protocol, DefaultProtocol)),
	}
	s.ready = s.desired.Initializer()
	s.loop = reconcile.New(reconcile.Options[netip.Prefix, netip.Prefix]{Desired: s.desired, Target: s.kernel, Applied: s.applied, Resync: resync, Log: c.Log})
	return s, nil
}

// Announce adds routes.
func (s *Speaker) Announce(prefixes ...netip.Prefix) {
	all := make([]netip.Prefix, 0, len(prefixes))
	for _, p := range prefixes {
		if p.IsValid() {
			all = append(all, p.Masked())
		}
	}
	s.desired.SetAll(all)
}

// Withdraw removes routes.
func (s *Speaker) Withdraw(prefixes ...netip.Prefix) {
	for _, p := range prefixes {
		s.desired.Delete(p.Masked())
	}
}

// Ready means that every prefix that this host announces now has been passed to Announce. Routes of
// an earlier run that were not announced again are removed then.
func (s *Speaker) Ready() { s.ready() }

// Applied returns the result for each prefix.
func (s *Speaker) Applied() table.Reader[netip.Prefix, Applied] { return s.applied }

// Stats returns totals, and why the kernel can't be programmed, if so.
func (s *Speaker) Stats() reconcile.Stats { return s.loop.Stats() }

// Run keeps the routes until the context ends. It leaves them, so that a restart of this process
// changes nothing for the router.
func (s *Speaker) Run(ctx context.Context) error {
	defer s.kernel.Close()
	return s.loop.Run(ctx)
}

// Find returns the routes that an earlier run with the default table and protocol has left, in the
// network namespace of the calling thread.
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

// Remove removes routes that Find has returned, paced as all changes.
func Remove(ctx context.Context, found []netip.Prefix) error {
	k := newKernel(DefaultTable, DefaultProtocol)
	defer k.Close()
	batch := make([]reconcile.Update[netip.Prefix, netip.Prefix], len(found))
	for i, p := range found {
		batch[i] = reconcile.Update[netip.Prefix, netip.Prefix]{Key: p, Old: &found[i]}
	}
	err := k.Apply(ctx, batch)
	for i := range batch {
		err = errors.Join(err, batch[i].Err)
	}
	return err
}

// Clear removes all routes, for the end of announcing, and waits until that is done. Run must be
// running.
func (s *Speaker) Clear(ctx context.Context) error {
	for p := range s.desired.All() {
		s.desired.Delete(p)
	}
	s.ready()
	select {
	case <-s.loop.Synced():
	case <-ctx.Done():
		return ctx.Err()
	}
	for {
		changed := s.applied.Changed()
		if s.applied.Len() == 0 && s.loop.Stats().AppliedRev >= s.desired.Revision() {
			return nil
		}
		pause := time.NewTimer(10 * time.Millisecond) // the revision changes without the table
		select {
		case <-changed:
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return errors.Join(fmt.Errorf("%d routes were not removed", s.applied.Len()), ctx.Err())
		}
		pause.Stop()
	}
}
