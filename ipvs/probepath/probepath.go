// Package probepath gives health probes the path of clients to one backend, with direct routing or a
// tunnel.
//
// Its input are the paths that the probes of this host need. Its output is, for each path, a packet
// mark (Target.Mark): a socket with this mark that connects to the virtual address reaches this
// backend. An IPVS service with the mark and the backend as its only destination forwards its
// packets. The rules of an nftables table let the answers in, see filter.NewProbes.
//
// The socket must not have the virtual address for its own, which is what the kernel would select.
//
// It owns this table and the IPVS services with the marks in it: the element of the table is the
// record. An element is added before its service and removed after it. So the element alone doesn't
// show that a service with its mark is ours: the kernel may have refused ours because of a foreign one.
// A service is ours if the kernel has accepted it from this Target, or if it looks like ours in all but
// its destinations. Only those are deleted. The table exists only while there is a path.
//
//	probepath.go  the Target and its marks
//	apply.go      changes paths
//	read.go       reads the kernel
//	access.go     how it reaches the kernel
package probepath

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/ironvip/ironvip/internal/netlink"
	"github.com/ironvip/ironvip/internal/netlink/watch"
	"github.com/ironvip/ironvip/plane/kernel/drift"
	"github.com/ironvip/ironvip/plane/kernel/filter"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/vip"
)

// Options configure a Target.
type Options struct {
	Table string // our nftables table, of family inet
}

// TableOf returns the name of our table beside a table of frontends.
func TableOf(frontends string) string { return frontends + "_probes" }

// Stats count the messages to the kernel that change something.
type Stats struct {
	Services uint64 // of IPVS
	Rules    uint64 // of nftables
}

// Target is a reconcile.Target for paths. It works in the network namespace of the calling thread.
type Target struct {
	reconcile.Tidy
	access
	watch drift.Watch // of the rules; the zero value sees nothing

	// The goroutine of Apply and Actual uses these.
	record  map[vip.ProbePath]uint32 // the paths that the table may have, with their marks
	owner   map[uint32]vip.ProbePath // the same by mark
	ours    map[uint32]struct{}      // marks with a service that is known to be ours
	foreign map[uint32]struct{}      // marks of services that aren't ours
	next    uint32                   // the index to try next; a released mark is used again late
	adopted bool                     // record has been read from the kernel
	broken  bool                     // the table is missing or must be rebuilt

	mu      sync.RWMutex
	open    map[vip.ProbePath]uint32 // paths that are whole
	blocked error                    // why none of them works
}

var _ reconcile.Target[vip.ProbePath, vip.ProbePath] = (*Target)(nil)

type (
	updateOf = reconcile.Update[vip.ProbePath, vip.ProbePath]
	observed = reconcile.Observed[vip.ProbePath]
)

// New connects to IPVS. It changes nothing.
func New(o Options) (*Target, error) {
	ctx := context.Background()
	stats := &counters{}
	table := filter.NewProbes(o.Table, &stats.rules)
	a, err := openAccess(ctx, table, stats)
	if err != nil {
		return nil, err
	}
	t := newTarget(a)
	t.watch = drift.Open(ctx, watch.Options{Table: o.Table}, table.Open, slog.New(slog.DiscardHandler))
	return t, nil
}

func newTarget(a access) *Target {
	return &Target{access: a, record: map[vip.ProbePath]uint32{}, owner: map[uint32]vip.ProbePath{},
		ours: map[uint32]struct{}{}, foreign: map[uint32]struct{}{}, open: map[vip.ProbePath]uint32{}}
}

// Close closes the socket. Paths stay.
func (t *Target) Close() error {
	t.services.Close()
	t.watch.Close()
	t.table.Close()
	return nil
}

// Stats returns the current counts. It may be called at any time.
func (t *Target) Stats() Stats {
	return Stats{Services: t.stats.Writes.Load(), Rules: t.stats.rules.Load()}
}

// ErrNoPath means that a path isn't programmed. ErrNoVIP means that the virtual address isn't on this
// host, so that a connection to it would leave the host.
var (
	ErrNoPath = errors.New("not programmed yet")
	ErrNoVIP  = errors.New("the virtual address is not on this host yet")
)

// Mark returns the mark of a path's probes. It may be called at any time.
func (t *Target) Mark(p vip.ProbePath) (uint32, error) {
	t.mu.RLock()
	mark, ok := t.open[p]
	blocked := t.blocked
	t.mu.RUnlock()
	switch {
	case !ok:
		return 0, ErrNoPath
	case blocked != nil:
		return 0, blocked
	case !t.local(p.VIP):
		return 0, ErrNoVIP
	}
	return mark, nil
}

// Blocked returns why none of the paths works, as of the last access to the kernel, or nil. It may be
// called at any time.
func (t *Target) Blocked() error {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.blocked
}

// Same implements reconcile.Target.
func (t *Target) Same(a, b *vip.ProbePath) bool { return *a == *b }

// remember records a path and its mark.
func (t *Target) remember(p vip.ProbePath, mark uint32) { t.record[p], t.owner[mark] = mark, p }

// forget releases a path's mark.
func (t *Target) forget(p vip.ProbePath) {
	delete(t.owner, t.record[p])
	delete(t.ours, t.record[p])
	delete(t.record, p)
}

// draw assigns a free mark to a path.
func (t *Target) draw(p vip.ProbePath) (uint32, error) {
	for range uint32(filter.ProbeMarkCount) {
		mark := filter.ProbeMarkAt(t.next)
		t.next = (t.next + 1) % filter.ProbeMarkCount
		_, taken := t.owner[mark]
		if _, foreign := t.foreign[mark]; !taken && !foreign {
			t.remember(p, mark)
			return mark, nil
		}
	}
	return 0, vip.Problem{Code: vip.CodeDataplane,
		Message: fmt.Sprintf("no packet mark is left for probes of %s: all %d are in use", p, filter.ProbeMarkCount),
		Hint:    "let several hosts of a fleet share the probes, or give services with dr or tunnel fewer addresses"}
}

// publish makes a path's mark available, or with mark 0, no longer.
func (t *Target) publish(p vip.ProbePath, mark uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if mark == 0 {
		delete(t.open, p)
	} else {
		t.open[p] = mark
	}
}

// counters count messages to the kernel.
type counters struct {
	netlink.Counters // of IPVS
	rules            atomic.Uint64
}
