package pipeline

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/hostnet"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/vip"
)

// Allocator is what Allocate needs of ipam. One goroutine calls its methods.
type Allocator interface {
	// Assign answers each service with what it holds now, in the same order. None
	// comes twice, and nobody changes one; the answer depends on nothing in it that
	// sameRequest passes over. What could not be granted is a problem, and what the
	// service held before is kept. Everything in the answer is durable, in one commit for the batch. A
	// problem with CodeStore says that nothing could be made durable for that
	// service and that trying again may help.
	Assign(ctx context.Context, services []*vip.Service) []vip.Allocation
	// Release gives up everything that each service holds, in one commit for the
	// batch, and answers in the same order. Nobody else gets it for at least the
	// cooldown. An error means that the service still holds something and that
	// trying again may help.
	Release(ctx context.Context, gone []ipam.Released) []error
	// Freed returns a channel that is closed when something became free that a
	// service with a problem may have been waiting for. A closed one is replaced.
	Freed() <-chan struct{}
	// Reconfigured returns a channel that is closed when any service may be
	// granted more than it was, for there is a new configuration. A closed one is
	// replaced.
	Reconfigured() <-chan struct{}
	// Recalls returns a channel that is closed when there are services to be asked
	// for again: what they hold was changed elsewhere, or the time has come for what
	// was put off. TakeRecalls returns them, each once, and a closed channel is replaced.
	Recalls() <-chan struct{}
	TakeRecalls() []vip.ServiceKey
	// SetHost tells the host's own addresses, which are never given out.
	SetHost(hostnet.Snapshot)
	// Settled says that every source has told its services; known reports whether
	// a service is among them. It may be called from any goroutine.
	Settled(known func(vip.ServiceKey) bool)
}

// DefaultHostWait is how long Allocate waits at the start for the host's own
// addresses, so that none of them is given out.
const DefaultHostWait = 5 * time.Second

// AllocateOptions are what Allocate needs. Services, Allocator and Allocations
// must be given.
type AllocateOptions struct {
	Services    table.Reader[vip.ServiceKey, vip.Service]
	Host        table.Reader[struct{}, hostnet.Snapshot] // may be nil
	Allocator   Allocator
	Allocations *table.Table[vip.ServiceKey, vip.Allocation] // Allocate is its only writer

	HostWait time.Duration // 0 is DefaultHostWait
	Events   *event.Log
	Log      *slog.Logger
}

// Allocate is the stage from services to allocations. Make one with
// NewAllocate and give it one goroutine with Run.
//
// Each row of the services table is answered by a row of the allocations table
// that carries its revision. The allocator is asked when a service's request is
// a new one; again when something became free, for a service with problems; when
// the allocator recalls it; and for each one when the configuration is a new one. While the store can't be
// written, rows stay as they are, say so, and are tried again with a growing
// wait.
type Allocate struct {
	AllocateOptions
	ready func() // the allocations are complete

	waiting  waiting // services that lack something
	unstored waiting // services that the store kept from being answered
	anew     touched // services to ask for whatever they were granted: recalled, or the configuration is a new one
	releases releases
	retry    *backoff
	stored   bool // since the last pace the store took something
	refused  bool // and it refused something
	down     bool // it was told that the store can't be written
}

type serviceRow = table.Row[vip.Service]

// NewAllocate returns a stage that does nothing until Run. Allocations is not
// Ready before Run has answered every service of a Ready services table.
func NewAllocate(o AllocateOptions) *Allocate {
	if o.HostWait == 0 {
		o.HostWait = DefaultHostWait
	}
	o.Log = logger(o.Log)
	return &Allocate{AllocateOptions: o, ready: o.Allocations.Initializer(), retry: newBackoff()}
}

// Run allocates until the context ends and returns its error.
func (a *Allocate) Run(ctx context.Context) error {
	if err := a.awaitHost(ctx); err != nil {
		return err
	}
	services := a.Services.Watch()
	defer services.Close()
	host := watchHost(a.Host)
	defer host.close()
	freed := a.Allocator.Freed()
	reconfigured := a.Allocator.Reconfigured()
	defer a.retry.stop()

	settled := false
	var ask touched // of one turn
	for ctx.Err() == nil {
		servicesReady := a.Services.Ready()
		complete := table.IsClosed(servicesReady)
		if snapshot, changed := host.next(); changed {
			a.Allocator.SetHost(snapshot)
		}
		batch, changed := services.TryNext()
		for i := range batch {
			a.take(&batch[i], &ask)
		}
		if table.IsClosed(freed) {
			freed = a.Allocator.Freed() // before asking: what is freed from here on is seen
			for _, k := range a.waiting.keys() {
				ask.add(k)
			}
		}
		if table.IsClosed(reconfigured) {
			reconfigured = a.Allocator.Reconfigured()
			for k := range a.Services.All() {
				a.anew.add(k)
			}
		}
		recalls := a.Allocator.Recalls() // before taking
		for _, k := range a.Allocator.TakeRecalls() {
			a.anew.add(k)
		}
		anew := min(a.anew.len(), commitBatch) // others need not wait for all of them
		for _, k := range a.anew.waiting()[:anew] {
			ask.add(k)
		}
		if a.retry.due() {
			for _, k := range a.unstored.keys() {
				ask.add(k)
			}
			a.releases.fresh = true
		}
		if a.releases.fresh { // first: what a service gave up is not in the way of the next
			a.release(ctx)
		}
		a.assign(ctx, ask.waiting())
		ask.empty()
		for range anew {
			a.anew.take()
		}
		a.pace()
		if len(batch) > 0 || a.anew.len() > 0 {
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
		case <-host.changed:
		case <-freed:
		case <-reconfigured:
		case <-recalls:
		case <-a.retry.C():
			a.retry.ring()
		}
	}
	return ctx.Err()
}

// awaitHost waits until the host's addresses are known, within reason.
func (a *Allocate) awaitHost(ctx context.Context) error {
	if a.Host == nil {
		return ctx.Err()
	}
	patience := time.NewTimer(a.HostWait)
	defer patience.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-a.Host.Ready():
	case <-patience.C:
		a.Log.Warn("allocating without knowing the host's own addresses", "waited", a.HostWait)
	}
	return nil
}

func (a *Allocate) known(k vip.ServiceKey) bool { return a.Services.Row(k) != nil }

// take notes what one change of the services table asks for.
func (a *Allocate) take(c *table.Change[vip.Service], ask *touched) {
	k := c.Value.Key
	if !c.Deleted {
		a.releases.drop(k)
		ask.add(k)
		return
	}
	if a.known(k) {
		return // it is back; the feed brings it
	}
	a.waiting.set(k, false)
	a.unstored.set(k, false)
	a.Allocations.Delete(k)
	a.releases.add(k, c.Value.DrainTimeout)
}

// assign answers the newest form of each service: with what it was granted
// before, or by asking the allocator.
func (a *Allocate) assign(ctx context.Context, keys []vip.ServiceKey) {
	var open []*serviceRow
	for _, k := range keys {
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
		return // cut short: what it says of the store means nothing
	}
	for i := range answers {
		a.write(open[i], answers[i])
	}
}

// confirm says that what a service was granted answers its newest row too, and
// reports whether it does: it lacks nothing, and asks for the same.
func (a *Allocate) confirm(row *serviceRow) bool {
	former := a.Allocations.Row(row.Value.Key)
	if former == nil || len(former.Value.Problems) > 0 || a.anew.has(row.Value.Key) || !sameRequest(former.Value.Asked, &row.Value) {
		return false
	}
	now := former.Value
	now.ServiceRev, now.Asked = row.Rev, &row.Value
	a.Allocations.Set(now)
	return true
}

// write puts the allocator's answer to a service into the allocations table.
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
	a.unstored.set(k, unstored)
	a.waiting.set(k, len(granted.Problems) > 0)
	a.Allocations.Set(granted)
}

// commitBatch bounds how many services go into one commit, so that others wait
// for no more than that.
const commitBatch = 512

// release gives up what deleted services held. It stops when a whole batch was
// refused: a store that is away would refuse the others, too. The next try
// begins with those others.
func (a *Allocate) release(ctx context.Context) {
	a.releases.fresh = false
	for batch := range slices.Chunk(a.releases.order.keys(), commitBatch) {
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
			if refused++; refused == 1 && ctx.Err() == nil && !a.retry.failing() {
				a.Log.Error("release what a deleted service held, to be tried again", "service", gone[i].Service, "err", err)
			}
		}
		if refused == len(gone) || ctx.Err() != nil {
			return
		}
	}
}

// pace sets the time of the next try, if the store kept anything from being
// done, and tells of the beginning and the end of that. A store that takes some of
// what it is given isn't down, and the rest need not wait long.
func (a *Allocate) pace() {
	open, stored, refused := len(a.unstored.since)+a.releases.len(), a.stored, a.refused
	a.stored, a.refused = false, false
	if stored {
		a.retry.set(false)
	}
	a.retry.set(open > 0)
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
