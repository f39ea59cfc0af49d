package pipeline

import (
	"context"
	"slices"
	"time"

	"github.com/ironvip/ironvip/internal/backoff"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/hostnet"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/internal/workqueue"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/vip"
)

// Allocator is what the stages need from ipam. One goroutine calls the methods from Assign on.
type Allocator interface {
	Leases
	// Run does what is due without a request, until its context ends.
	Run(ctx context.Context) error
	// Assign returns what each service holds now, in the same order. No service occurs twice, and
	// none is changed. The answer depends on nothing that sameRequest ignores. A resource that
	// could not be granted is a problem, and the service keeps what it held before. Everything in
	// the answer is durable, in one commit for the batch. A problem with CodeStore states that
	// nothing could be stored for that service and that a retry may help.
	Assign(ctx context.Context, services []*vip.Service) []vip.Allocation
	// Release releases everything that each service holds, in one commit for the batch, and returns
	// the errors in the same order. No other service gets it for at least the cooldown. An error
	// means that the service still holds something and that a retry may help.
	Release(ctx context.Context, gone []ipam.Released) []error
	// Freed returns a channel that is closed when something becomes free that a service with a
	// problem may wait for. A closed channel is replaced.
	Freed() <-chan struct{}
	// Reconfigured returns a channel that is closed when a new configuration may grant more to any
	// service. A closed channel is replaced.
	Reconfigured() <-chan struct{}
	// Recalls returns a channel that is closed when services must be assigned again: their holdings
	// were changed elsewhere, or a postponed change is due. TakeRecalls returns them, each once. A
	// closed channel is replaced.
	Recalls() <-chan struct{}
	TakeRecalls() []vip.ServiceKey
	// SetHost sets the host's own addresses, which are never assigned.
	SetHost(hostnet.Snapshot)
	// Settled states that every source has listed its services. known reports whether a service is
	// among them, and may be called from any goroutine.
	Settled(known func(vip.ServiceKey) bool)
}

// hostWait is how long Allocate and Compile wait at the start for the host's own addresses, so that
// none of them is assigned.
const hostWait = 5 * time.Second

// Allocate is the stage from services to allocations.
//
// Each row of the services table has a row of the allocations table that carries its revision.
// It calls the allocator for a service when its request changes, when something became free
// and it has problems, and when the allocator recalls it. It calls the allocator for every service
// when the configuration changes. While the store can't be written, rows keep their content, report
// the problem and are retried with a growing wait.
type Allocate struct {
	Options
	ready func() // marks the allocations as complete

	waiting  queue // services that lack something
	unstored queue // services without an answer because of the store
	reassign queue // services to assign whatever they hold: recalled, or the configuration changed
	releases releases
	retry    backoff.Backoff
	again    <-chan time.Time // delivers when the next retry is due; nil: none is scheduled
	stored   bool             // the store accepted something since the last pace
	refused  bool             // the store rejected something since the last pace
	failing  bool             // something remained to be retried at the last pace
	down     bool             // it is logged that the store can't be written
}

type serviceRow = table.Row[vip.Service]

// queue is services to process, in the order in which they were added.
type queue = workqueue.Queue[vip.ServiceKey]

// newAllocate returns a stage that does nothing until Run. Allocations is not Ready before Run has
// answered every service of a Ready services table.
func newAllocate(o Options) *Allocate {
	return &Allocate{Options: o, ready: o.Allocations.Initializer(), retry: backoff.Backoff{Lo: 100 * time.Millisecond, Hi: 10 * time.Second}}
}

// Run allocates until the context ends and returns its error.
func (a *Allocate) Run(ctx context.Context) error {
	if err := a.awaitHost(ctx); err != nil {
		return err
	}
	services := a.Services.Watch()
	defer services.Close()
	host := a.Host.Watch()
	defer host.Close()
	freed := a.Allocator.Freed()
	reconfigured := a.Allocator.Reconfigured()

	settled, due := false, false
	var ask queue // of one iteration
	for ctx.Err() == nil {
		servicesReady := a.Services.Ready()
		complete := table.IsClosed(servicesReady)
		addresses, hostChanged := host.TryNext()
		if len(addresses) > 0 {
			a.Allocator.SetHost(newest(addresses))
		}
		batch, changed := services.TryNext()
		for len(batch) > 0 {
			for i := range batch {
				a.take(&batch[i], &ask)
			}
			if ask.Len() >= max(commitBatch, a.Services.Len()/commitParts) {
				break
			}
			batch, changed = services.TryNext()
		}
		if table.IsClosed(freed) {
			freed = a.Allocator.Freed() // before assigning: what is freed later closes it
			for k := range a.waiting.All() {
				ask.Add(k)
			}
		}
		if table.IsClosed(reconfigured) {
			reconfigured = a.Allocator.Reconfigured()
			for k := range a.Services.All() {
				a.reassign.Add(k)
			}
		}
		recalls := a.Allocator.Recalls() // before taking
		for _, k := range a.Allocator.TakeRecalls() {
			a.reassign.Add(k)
		}
		retries := make([]vip.ServiceKey, 0, min(a.reassign.Len(), commitBatch)) // others need not wait for all of them
		for k := range a.reassign.All() {
			if len(retries) == cap(retries) {
				break
			}
			retries = append(retries, k)
			ask.Add(k)
		}
		select {
		case <-a.again:
			a.again, due = nil, true
		default:
		}
		if due {
			due = false
			for k := range a.unstored.All() {
				ask.Add(k)
			}
			a.releases.fresh = true
		}
		if a.releases.fresh { // first: released holdings are then free for the services below
			a.release(ctx)
		}
		a.assign(ctx, &ask)
		for _, k := range retries {
			a.reassign.Remove(k)
		}
		a.pace()
		if len(batch) > 0 || a.reassign.Len() > 0 {
			continue
		}
		if complete {
			servicesReady = nil
			if !settled {
				settled = true
				a.Allocator.Settled(a.known)
				a.ready()
			}
		}
		select {
		case <-ctx.Done():
		case <-changed:
		case <-servicesReady:
		case <-hostChanged:
		case <-freed:
		case <-reconfigured:
		case <-recalls:
		case <-a.again:
			a.again, due = nil, true
		}
	}
	return ctx.Err()
}

// awaitHost waits, for at most hostWait, until the host's addresses are known.
func (a *Allocate) awaitHost(ctx context.Context) error {
	timeout := time.NewTimer(hostWait)
	defer timeout.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-a.Host.Ready():
	case <-timeout.C:
		a.Log.Warn("allocating without knowing the host's own addresses", "waited", hostWait)
	}
	return nil
}

func (a *Allocate) known(k vip.ServiceKey) bool { return a.Services.Row(k) != nil }

// take processes one change of the services table.
func (a *Allocate) take(c *table.Change[vip.Service], ask *queue) {
	k := c.Value.Key
	if !c.Deleted {
		a.releases.drop(k)
		ask.Add(k)
		return
	}
	if a.known(k) {
		return // the service exists again; the feed delivers it
	}
	a.waiting.Remove(k)
	a.unstored.Remove(k)
	a.Allocations.Delete(k)
	a.releases.add(k, c.Value.DrainTimeout)
}

// assign empties the queue. It answers the newest version of each service, with its former grant or with a new answer of
// the allocator.
func (a *Allocate) assign(ctx context.Context, ask *queue) {
	var open []*serviceRow
	for k, ok := ask.Take(); ok; k, ok = ask.Take() {
		row := a.Services.Row(k)
		if row == nil || a.confirm(row) {
			continue
		}
		open = append(open, row)
	}
	if len(open) == 0 || ctx.Err() != nil {
		return
	}
	services := make([]*vip.Service, len(open))
	for i, row := range open {
		services[i] = &row.Value
	}
	answers := a.Allocator.Assign(ctx, services)
	if ctx.Err() != nil {
		return // canceled: the answers say nothing about the store
	}
	for i := range answers {
		a.write(open[i], answers[i])
	}
}

// confirm marks a service's grant as valid for its newest row too, if the service lacks nothing and
// its request is the same. It reports whether it did.
func (a *Allocate) confirm(row *serviceRow) bool {
	former := a.Allocations.Row(row.Value.Key)
	if former == nil || len(former.Value.Problems) > 0 || a.reassign.Has(row.Value.Key) || !sameRequest(former.Value.Asked, &row.Value) {
		return false
	}
	now := former.Value
	now.ServiceRev, now.Asked = row.Rev, &row.Value
	a.Allocations.Set(now)
	return true
}

// write stores the allocator's answer for a service in the allocations table.
func (a *Allocate) write(row *serviceRow, granted vip.Allocation) {
	k := row.Value.Key
	problems := vip.OfService(granted.Problems, k)
	unstored := vip.HasCode(problems, vip.CodeStore)
	former := a.Allocations.Row(k)
	if unstored && former != nil {
		granted = former.Value
	}
	if unstored {
		a.refused = true
	} else {
		a.stored = a.stored || len(granted.VIPs) > 0 && (former == nil || len(granted.VIPs) > len(former.Value.VIPs))
	}
	granted.ServiceRev, granted.Asked, granted.Problems = row.Rev, &row.Value, problems
	keepIf(unstored, &a.unstored, k)
	keepIf(len(granted.Problems) > 0, &a.waiting, k)
	a.Allocations.Set(granted)
}

// keepIf adds k to the queue, or removes it.
func keepIf(condition bool, q *queue, k vip.ServiceKey) {
	if condition {
		q.Add(k)
	} else {
		q.Remove(k)
	}
}

// commitBatch is how many services share one commit, and thus how long others wait. Of many new services, as at a start,
// one of commitParts shares it: a commit writes each lease with all of its holders, and services that share a VIP come in any
// order.
const (
	commitBatch = 512
	commitParts = 8
)

// release releases the holdings of deleted services. It stops when a whole batch is rejected,
// because an unavailable store would reject the others too. The next try begins with those others.
func (a *Allocate) release(ctx context.Context) {
	a.releases.fresh = false
	for batch := range slices.Chunk(slices.Collect(a.releases.order.All()), commitBatch) {
		gone := make([]ipam.Released, 0, len(batch))
		for _, k := range batch {
			gone = append(gone, ipam.Released{Service: k, Cooldown: a.releases.cooldown[k]})
		}
		var refused int
		for i, err := range a.Allocator.Release(ctx, gone) {
			a.releases.drop(gone[i].Service)
			if err == nil {
				a.stored = true
				continue
			}
			a.refused = true
			a.releases.again(gone[i].Service, gone[i].Cooldown)
			if refused++; refused == 1 && ctx.Err() == nil && !a.failing {
				a.Log.Error("release what a deleted service held, to be tried again", "service", gone[i].Service, "err", err)
			}
		}
		if refused == len(gone) || ctx.Err() != nil {
			return
		}
	}
}

// pace schedules the next try if the store prevented anything, and reports the beginning and the
// end of an outage. A store that accepts part of its input isn't down, and the rest is retried
// soon.
func (a *Allocate) pace() {
	open, stored, refused := a.unstored.Len()+a.releases.len(), a.stored, a.refused
	a.stored, a.refused, a.failing = false, false, open > 0
	if stored || open == 0 {
		a.retry.Reset()
		a.again = nil
	}
	if open > 0 && a.again == nil {
		a.again = time.After(a.retry.Next())
	}
	switch {
	case refused && !stored && !a.down:
		a.down = true
		a.Log.Error("the lease store can't be written; services keep what they have", "waiting", open)
		a.Events.Add(event.Event{Kind: "lease_store_down", Message: "the lease store can't be written; services keep what they have"})
	case open == 0 && a.down:
		a.down = false
		a.Log.Info("the lease store can be written again")
		a.Events.Add(event.Event{Kind: "lease_store_up", Message: "the lease store can be written again"})
	}
}
