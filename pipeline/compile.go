package pipeline

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/hostnet"
	"github.com/ironvip/ironvip/internal/parallel"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/pipeline/compile"
	"github.com/ironvip/ironvip/vip"
)

// Compile is the stage from services and their allocations to frontends.
//
// A change of a service's allocation row, which each change of a service causes, compiles that one service. So does
// a change of an override or of the health of a backend. A change of the host's addresses compiles the services
// that depend on them (compile.DependsOnHost). A frontend that compile no longer returns drains before it is
// deleted; see drains.
type Compile struct {
	Options
	ready []func() // mark frontends and compiled as complete

	todo     queue
	hosted   map[vip.ServiceKey]struct{} // services that depend on the host's addresses
	blind    bool                        // the host table is no longer waited for
	owners   portOwnership
	drains   drains
	starts   slowStarts
	override func(vip.BackendKey) (vip.State, bool)
	regroup  func(vip.OverrideKey) (uint32, bool)
	health   func(vip.BackendKey) *vip.BackendHealth
	room     []vip.Frontend // memory for the frontends of one service

	ignored  func(*vip.Service) []vip.Problem      // of the dataplane that serves
	replaced chan func(*vip.Service) []vip.Problem // the same of another one that serves now; has room for one

	overridden table.Reached // the revision of the overrides up to which every service is compiled
}

// newCompile returns a stage that does nothing until Run. Frontends and Compiled are Ready once Run
// has compiled every service of a Ready allocations table. Run first waits for a Ready host table,
// but at most hostWait, because a host that can't be read must not stop the whole agent. Services
// that depend on its addresses are compiled again when these are known.
func newCompile(o Options) *Compile {
	c := &Compile{
		Options: o,
		ready:   []func(){o.Frontends.Initializer(), o.Compiled.Initializer()},
		hosted:  make(map[vip.ServiceKey]struct{}),
		owners:  newPortOwnership(),
		override: func(k vip.BackendKey) (vip.State, bool) {
			s, _, ok := o.Overrides.Get(vip.OverrideKey{BackendKey: k})
			return s.State, ok
		},
		regroup: func(k vip.OverrideKey) (uint32, bool) {
			s, _, ok := o.Overrides.Get(k)
			return s.Weight, ok
		},
		health: func(k vip.BackendKey) *vip.BackendHealth {
			if row := o.Health.Row(k); row != nil {
				return &row.Value
			}
			return nil
		},
		ignored:  o.Plane.Ignored,
		replaced: make(chan func(*vip.Service) []vip.Problem, 1),
	}
	c.starts = newSlowStarts()
	c.drains = newDrains(&c.Options, &c.owners, c.todo.Add)
	return c
}

// Run compiles until the context ends and returns its error. It first waits for the overrides, so
// that no drained backend briefly takes connections. When it returns, the drains under way are in
// the store.
func (c *Compile) Run(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-c.Overrides.Ready():
	}
	running, ctx := parallel.NewGroup(ctx)
	stop := c.drains.start(ctx, running)
	running.Go(func() error {
		defer stop()
		return c.loop(ctx)
	})
	return running.Wait()
}

// WaitKept waits until the store has accepted or rejected the drains of everything compiled so far.
// An agent that is killed later continues them at its next start. Any goroutine may call it while
// Run runs. It returns the context's error.
func (c *Compile) WaitKept(ctx context.Context) error {
	if c.Drains == nil {
		return nil
	}
	return c.drains.kept.Wait(ctx, c.drains.keep.Revision())
}

// WaitOverridden waits until the overrides up to a revision are compiled. Any goroutine may call it
// while Run runs. It returns the context's error.
func (c *Compile) WaitOverridden(ctx context.Context, rev uint64) error {
	return c.overridden.Wait(ctx, rev)
}

func (c *Compile) loop(ctx context.Context) error {
	in := &feeds{allocations: c.Allocations.Watch(), overrides: c.Overrides.Watch(), health: c.Health.Watch(), host: c.Host.Watch()}
	defer in.close()
	timeout := time.NewTimer(hostWait)
	defer timeout.Stop()
	complete := false
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		inputs := c.inputsReady()
		busy := c.read(in)
		for k, ok := c.todo.Take(); ok; k, ok = c.todo.Take() {
			c.compile(k)
		}
		c.drains.advance()
		c.starts.advance(c.todo.Add)
		if busy || c.todo.Len() > 0 {
			continue
		}
		c.overridden.Set(in.overrides.Seen())
		if inputs == nil && !complete {
			complete = true
			c.drains.settle()
			c.starts.began = !c.Node.RealServer // whose endpoints are for display only
			for _, done := range c.ready {
				done()
			}
			continue // settle may have set the timer
		}
		select {
		case <-ctx.Done():
		case <-inputs:
		case <-in.allocationsChanged:
		case <-in.overridesChanged:
		case <-in.healthChanged:
		case <-in.hostChanged:
		case <-timeout.C:
			c.giveUpHost()
		case <-c.drains.timer.C:
		case <-c.starts.timer.C:
		case r := <-c.drains.idle:
			c.drains.left(r)
		case c.ignored = <-c.replaced:
			for k := range c.Services.All() {
				c.todo.Add(k)
			}
		}
	}
}

// inputsReady returns the Ready channel of an input that isn't ready yet, or nil if all are ready.
func (c *Compile) inputsReady() <-chan struct{} {
	if ready := c.Allocations.Ready(); !table.IsClosed(ready) {
		return ready
	}
	if ready := c.Host.Ready(); !c.blind && !table.IsClosed(ready) {
		return ready
	}
	return nil
}

// giveUpHost stops the wait for the host's addresses, if they are still unknown.
func (c *Compile) giveUpHost() {
	c.blind = true
	if table.IsClosed(c.Host.Ready()) {
		return
	}
	c.Log.Warn("compiling without knowing the host's own addresses; node ports are not served, and backends on this node not known by their address, until they are", "waited", hostWait)
	c.Events.Add(event.Event{
		Kind:    "host_unknown",
		Message: fmt.Sprintf("the host's own addresses are not known after %s; node ports are not served until they are", hostWait),
	})
}

// feeds are the inputs that Compile follows. Services are read when their allocation changes.
type feeds struct {
	allocations *table.Feed[vip.ServiceKey, vip.Allocation]
	overrides   *table.Feed[vip.OverrideKey, vip.BackendState]
	health      *table.Feed[vip.BackendKey, vip.BackendHealth]
	host        *table.Feed[struct{}, hostnet.Snapshot]

	allocationsChanged, overridesChanged, healthChanged, hostChanged <-chan struct{}
}

func (in *feeds) close() {
	in.allocations.Close()
	in.overrides.Close()
	in.health.Close()
	in.host.Close()
}

// read receives the next changes of every input and queues the affected services. It reports
// whether there were any changes.
func (c *Compile) read(in *feeds) (busy bool) {
	host, changed := in.host.TryNext()
	in.hostChanged = changed
	if len(host) > 0 {
		snapshot := newest(host)
		own, nodePorts := hostAddrsOf(snapshot), NodePortAddrs(snapshot, c.NodePorts)
		if !slices.Equal(own, c.Node.Addrs) || !slices.Equal(nodePorts, c.Node.NodePortAddrs) {
			c.Node.Addrs, c.Node.NodePortAddrs = own, nodePorts
			for k := range c.hosted {
				c.todo.Add(k)
			}
		}
	}
	overrides, changed := in.overrides.TryNext()
	in.overridesChanged = changed
	for i := range overrides {
		if k := overrides[i].Value.Backend.Service; c.Compiled.Row(k) != nil {
			c.todo.Add(k)
		}
	}
	health, changed := in.health.TryNext()
	in.healthChanged = changed
	for i := range health {
		if k := health[i].Value.Backend.Service; c.Compiled.Row(k) != nil {
			c.todo.Add(k)
		}
	}
	allocations, changed := in.allocations.TryNext()
	in.allocationsChanged = changed
	for i := range allocations {
		c.todo.Add(allocations[i].Value.Asked.Key)
	}
	return len(host)+len(overrides)+len(health)+len(allocations) > 0
}

// compile updates the frontends of one service.
func (c *Compile) compile(k vip.ServiceKey) {
	wanted, answer := c.Services.Row(k), c.Allocations.Row(k)
	if wanted == nil || answer == nil {
		c.remove(k)
		return
	}
	service, granted := &wanted.Value, &answer.Value
	in := compile.Input{View: c.view(service), Allocation: granted, Node: c.Node, Room: c.room}
	frontends, refused := compile.Service(in)
	if compile.DependsOnHost(service, c.Node.RealServer) {
		c.hosted[k] = struct{}{}
	} else {
		delete(c.hosted, k)
	}
	row := Compiled{
		Service:    service,
		ServiceRev: min(wanted.Rev, granted.ServiceRev),
		Frontends:  make([]*FrontendRow, 0, len(frontends)),
		Problems:   slices.Concat(vip.OfService(granted.Problems, k), refused, compile.Ineffective(service), compile.OwnBackends(service, &c.Node)),
	}
	row.Problems = append(row.Problems, vip.OfService(c.ignored(service), k)...)
	if service.NotHere {
		row.Problems = nil // they are of the hosts that serve it
	}
	clashes := vip.HasCode(granted.Problems, vip.CodePortTaken)
	var former []*FrontendRow
	if row := c.Compiled.Row(k); row != nil {
		former = row.Value.Frontends
	}
	undisputed := !clashes && !c.owners.lostPorts(k)
	c.owners.withdraw(k)
	now := c.drains.wall()
	slow := c.starts.service(service)
	for i := range frontends {
		f := &frontends[i]
		at, kept := find(former, f.Key)
		if !kept || !undisputed {
			if winner, lost := c.contest(f.Key, k, clashes); lost {
				row.Problems = append(row.Problems, taken(f.Key, k, winner))
				continue
			}
		}
		if kept && !in.Panics(vip.FamilyOf(f.Key.Addr), f.Port) {
			f.Backends = slow.weigh(&in.View, f.Port, f.Backends, former[at].Value.Backends)
		}
		row.Frontends = append(row.Frontends, c.drains.publish(*f, now))
	}
	c.starts.compiled(service, &slow)
	c.servesAll(row.Frontends)
	row.NotHere = service.NotHere || c.Node.RealServer && len(frontends)+len(refused) == 0 && len(granted.VIPs) > 0
	if row.HealthPort = c.healthPort(&in); row.HealthPort != 0 && len(row.Frontends) > 0 {
		row.LocalReady = int32(compile.LocalReady(&in))
	}
	c.letGo(k, former, row.Frontends, now)
	for _, f := range row.Frontends {
		if _, kept := find(former, f.Value.Key); f.Value.Key.Whole() && !kept {
			c.drains.cutAt(f.Value.Key.Addr)
		}
	}
	c.Compiled.Set(row)
	clear(frontends)
	c.room = frontends[:0]
}

// view returns what is known of a service's backends.
func (c *Compile) view(service *vip.Service) compile.View {
	v := compile.View{Service: service}
	if c.Overrides.Len() > 0 {
		v.Override, v.Regroup = c.override, c.regroup
	}
	if c.Health.Len() > 0 {
		v.Health = c.health
	}
	return v
}

// servesAll ends frontends that would reject clients that a frontend in live serves. These are
// frontends for inside clients that the service no longer has, or that another service left to
// drain on ports that the service now has. Live is sorted.
func (c *Compile) servesAll(live []*FrontendRow) {
	for i := range live {
		key := live[i].Value.Key
		if key.Audience != vip.Everyone {
			continue
		}
		key.Audience = vip.InternalClients
		if _, own := find(live, key); !own {
			c.drains.cut(key)
		}
	}
}

// remove removes everything of a deleted service.
func (c *Compile) remove(k vip.ServiceKey) {
	delete(c.hosted, k)
	c.starts.remove(k)
	c.owners.withdraw(k)
	former := c.Compiled.Row(k)
	if former == nil {
		return
	}
	c.letGo(k, former.Value.Frontends, nil, c.drains.wall())
	c.Compiled.Delete(k) // last: a reader that sees it gone sees its frontends gone or leaving
}

// healthPort returns the granted port for health checks of a service, or 0.
func (c *Compile) healthPort(in *compile.Input) uint16 {
	s := in.Service
	if c.Node.RealServer || s.NotHere || !s.HealthPort.Wanted() || s.ExternalTraffic != vip.Local {
		return 0
	}
	return in.Allocation.NodePorts[vip.HealthPortKey]
}

// letGo starts to drain those of the former keys that are not in kept, and retries services that
// wait for some of their ports. Both lists are sorted.
func (c *Compile) letGo(k vip.ServiceKey, former, kept []*FrontendRow, now vip.Instant) {
	for i := range former {
		key := former[i].Value.Key
		if _, stays := find(kept, key); stays {
			continue
		}
		c.owners.release(key, k)
		c.drains.leave(key, k, now)
		c.owners.losers(key, c.todo.Add)
	}
}
