//go:build system

package fleet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"path"
	"reflect"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/ironvip/ironvip/api/client"
	"github.com/ironvip/ironvip/test/consultest"
)

// names is a fleet with services from the catalogs of two datacenters, which contain the same
// names. Hosts receive changes of the two in any order. They must assign each name to one of the
// catalogs, the same one on all hosts.
type names struct {
	*lab
	catalogs []*catalog
	rnd      *rand.Rand
	value    int // the newest registered.weight

	// calm is a clock that stops when this machine does, with its last reading at ticked. By that
	// clock, all agents have received what was registered before known. While disconnected, one of
	// them receives nothing.
	calm, known  time.Duration
	ticked       time.Time
	disconnected bool
}

// catalog is a datacenter's catalog, and a source with its name at every agent.
type catalog struct {
	*consultest.Server
	node netip.Addr // of all its instances, so that a backend identifies its catalog
	has  map[string]registered
	gone bool          // the server doesn't run
	back time.Duration // when all agents received it again, by names.calm
}

// registered is one name in a catalog.
type registered struct {
	weight uint32        // of its only instance: a unique number
	since  time.Duration // when it was registered in the catalog, by names.calm
}

// Steady names are always in at least one of the catalogs. Others are added and removed.
const (
	steadyNames = 6
	otherNames  = 6
)

func steady(name string) bool { return name[0] == 's' }

// overlap is the minimum time in which a moving name is in both catalogs. It is longer than an
// agent takes to receive the change. No pause counts for more than step, because agents receive
// nothing while the machine stands still.
const (
	overlap = 1500 * time.Millisecond
	step    = 100 * time.Millisecond
)

// tick advances the calm clock.
func (n *names) tick() {
	now := time.Now()
	n.calm += min(now.Sub(n.ticked), step)
	if n.ticked = now; !n.disconnected {
		n.known = max(n.known, n.calm-overlap)
	}
}

func newNames(t *testing.T) *names {
	// The cooldown of released addresses is longer than the test, so that a returning name gets its
	// former address.
	l := newLab(t, shape{servers: 1, datacentres: 2, reuse: time.Hour}).record()
	n := &names{lab: l, rnd: rand.New(rand.NewPCG(seed, 3))}
	for i, s := range l.datacentres {
		n.catalogs = append(n.catalogs, &catalog{Server: s, node: netip.AddrFrom4([4]byte{127, 1, 0, byte(i + 1)}), has: map[string]registered{}})
	}
	l.rest = n.rests
	return n
}

// numbered returns a name by number. The steady ones are first.
func numbered(i int) string {
	if i < steadyNames {
		return fmt.Sprintf("steady-%d", i)
	}
	return fmt.Sprintf("other-%d", i)
}

// register adds the name to the catalog, or changes it there.
func (n *names) register(c *catalog, name string) {
	n.t.Helper()
	n.value++
	_, err := c.Client.Catalog().Register(&api.CatalogRegistration{Node: "web-" + c.Datacenter, Address: c.node.String(), Service: &api.AgentService{
		ID: name, Service: name, Port: int(target.Port()), Tags: []string{"ironvip"},
		Weights: api.AgentWeights{Passing: n.value, Warning: 1}, Meta: map[string]string{"ironvip-port": "80"},
	}}, nil)
	n.must("register "+name+" in "+c.Datacenter, err)
	now := registered{uint32(n.value), n.calm}
	if was, there := c.has[name]; there {
		now.since = was.since
	}
	c.has[name] = now
}

func (n *names) deregister(c *catalog, name string) {
	n.t.Helper()
	_, err := c.Client.Catalog().Deregister(&api.CatalogDeregistration{Node: "web-" + c.Datacenter, ServiceID: name}, nil)
	n.must("deregister "+name+" in "+c.Datacenter, err)
	delete(c.has, name)
}

// changes makes many random changes to the running catalogs.
func (n *names) changes(many int) {
	n.t.Helper()
	for range many {
		name := numbered(n.rnd.IntN(steadyNames + otherNames))
		if i := n.rnd.IntN(2); !n.catalogs[i].gone {
			n.change(name, n.catalogs[i], n.catalogs[1-i])
		}
		time.Sleep(time.Duration(n.rnd.Int64N(int64(60 * time.Millisecond))))
		n.tick()
	}
}

// change changes a name in a catalog, and may move a steady name to the other one.
func (n *names) change(name string, in, other *catalog) {
	n.t.Helper()
	_, here := in.has[name]
	switch {
	case !here || n.rnd.IntN(4) == 0:
		n.register(in, name)
	case !steady(name):
		n.deregister(in, name)
		if n.rnd.IntN(3) == 0 { // without a change in between
			n.register(in, name)
		}
	default:
		if there, is := other.has[name]; is && !other.gone && max(there.since, other.back) < n.known {
			n.deregister(in, name)
		}
	}
}

// take stops a catalog's server. bring starts it again and waits until all agents follow it.
func (n *names) take(c *catalog) {
	c.Kill()
	c.gone = true
}

func (n *names) bring(c *catalog) {
	n.t.Helper()
	c.Start()
	c.For(n.t).WaitReady()
	for _, a := range n.agents {
		n.awaitConnected(a)
	}
	c.gone, c.back = false, n.calm
}

// without disconnects a host, makes some changes, and reconnects it. The host may receive additions
// to one catalog after removals from the other.
func (n *names) without(a *agent, changes int) {
	n.t.Helper()
	n.cut(a)
	n.disconnected = true
	n.changes(changes)
	n.heal(a)
}

// awaitConnected waits until the agent is connected to all catalogs.
func (n *names) awaitConnected(a *agent) {
	n.t.Helper()
	n.eventually(a.name+" is connected to all catalogs", func(ctx context.Context) error {
		list, err := a.api.Sources(ctx)
		for _, s := range list.Items {
			if s.Stale != "" || !s.Synced {
				err = errors.Join(err, fmt.Errorf("source %s: %+v", s.Name, s))
			}
		}
		return err
	})
}

// restart kills the agent, makes some changes, and starts it.
func (n *names) restart(a *agent, meanwhile int) {
	n.t.Helper()
	a.proc.Kill()
	n.changes(meanwhile)
	n.start(a)
}

// led is the state of one name at one agent.
type led struct {
	Source   string
	VIPs     []netip.Addr
	Backends []string // in the dataplane and with connections, with their weights
}

// rests waits until the agents agree with the catalogs and each other. It then checks that nothing
// changes any more, and that no address has moved so far.
func (n *names) rests() {
	n.t.Helper()
	deadline := time.Now().Add(maxWait)
	for {
		before, err := n.state()
		if err == nil {
			time.Sleep(quiet)
			var after *fleetState
			if after, err = n.state(); err == nil {
				err = before.differs(after)
			}
		}
		if err == nil {
			n.calm++ // earlier changes have been received
			n.known, n.disconnected = n.calm, false
			break
		}
		if time.Now().After(deadline) {
			n.t.Errorf("the fleet does not come to rest within %s:\n%v", maxWait, err)
			break
		}
		time.Sleep(200 * time.Millisecond)
	}
	if wrong := append(Check(n.history()), n.interrupted()...); len(wrong) > 0 {
		n.t.Errorf("broken promises:\n%s", report(wrong, 20))
	}
}

// quiet is how long a fleet at rest is watched. It exceeds the shortest waits of hosts that undo
// each other's changes.
const quiet = 2 * time.Second

// fleetState is the state that must remain unchanged at rest.
type fleetState struct {
	leads   map[string]led
	writes  map[string]uint64 // the index of the last write of each lease in Consul
	decided map[string]uint64 // the last event of each agent about the source of a name
}

func (s *fleetState) differs(t *fleetState) error {
	switch {
	case !reflect.DeepEqual(s.leads, t.leads):
		return fmt.Errorf("at rest the fleet leads %v, and then %v", s.leads, t.leads)
	case !maps.Equal(s.writes, t.writes):
		return fmt.Errorf("at rest leases are written: %v, and then %v", s.writes, t.writes)
	case !maps.Equal(s.decided, t.decided):
		return fmt.Errorf("at rest names change hands: events %v, and then %v", s.decided, t.decided)
	}
	return nil
}

// state returns the state of a fleet that agrees with the catalogs, or the first difference.
func (n *names) state() (*fleetState, error) {
	ctx, cancel := context.WithTimeout(context.Background(), answering)
	defer cancel()
	s := &fleetState{writes: map[string]uint64{}, decided: map[string]uint64{}}
	for _, a := range n.agents {
		leads, err := n.leads(ctx, a)
		if err == nil && s.leads == nil {
			s.leads, err = leads, n.asCatalogs(leads)
		}
		for name := range merged(s.leads, leads) {
			if err == nil && !reflect.DeepEqual(leads[name], s.leads[name]) {
				err = fmt.Errorf("%s is %+v, and at %s %+v", name, leads[name], n.agents[0].name, s.leads[name])
			}
		}
		events, failed := a.api.Events(ctx, 0)
		for _, e := range events.Items {
			if e.Kind == "service_name_taken" || e.Kind == "service_name_freed" {
				s.decided[a.name] = e.ID
			}
		}
		if err = errors.Join(err, failed); err != nil {
			return nil, fmt.Errorf("%s: %w", a.name, err)
		}
	}
	pairs, _, err := n.servers[0].Client.KV().List("ironvip/v2/tree/leases/", query(ctx))
	for _, p := range pairs {
		s.writes[path.Base(p.Key)] = p.ModifyIndex
	}
	return s, err
}

// leads reads an agent's state of every name.
func (n *names) leads(ctx context.Context, a *agent) (map[string]led, error) {
	list, err := a.api.Services(ctx, client.List{Limit: 1000})
	if err != nil {
		return nil, err
	}
	of := map[string]led{}
	for _, s := range list.Items {
		of[s.Spec.Name] = led{Source: s.Source, VIPs: s.Status.VIPs}
	}
	front, err := a.api.Frontends(ctx, "", "", 1000)
	for _, f := range front.Items {
		one, there := of[f.Service]
		if !there || !f.Applied {
			return nil, fmt.Errorf("frontend %s of %s: applied %t, its service is there: %t", f.Address, f.Service, f.Applied, there)
		}
		for _, b := range f.Backends {
			if b.Weight > 0 {
				one.Backends = append(one.Backends, b.Address+" "+strconv.Itoa(int(b.Weight)))
			}
		}
		of[f.Service] = one
	}
	return of, err
}

// asCatalogs compares an agent's state with the catalogs. Every name in any catalog must have one
// address, and the backend of the owner, which is one of those catalogs.
func (n *names) asCatalogs(leads map[string]led) error {
	var wrong []error
	for name := range merged(n.catalogs[0].has, n.catalogs[1].has) {
		got, fits := leads[name], false
		for _, c := range n.catalogs {
			if in, there := c.has[name]; there && c.Datacenter == got.Source {
				fits = len(got.VIPs) == 1 && slices.Equal(got.Backends, []string{fmt.Sprintf("%s:%d %d", c.node, target.Port(), in.weight)})
			}
		}
		if !fits {
			wrong = append(wrong, fmt.Errorf("%s is %+v; in dc1 it is %+v, in dc2 %+v", name, got, n.catalogs[0].has[name], n.catalogs[1].has[name]))
		}
	}
	for name, got := range leads {
		if n.catalogs[0].has[name].weight+n.catalogs[1].has[name].weight == 0 {
			wrong = append(wrong, fmt.Errorf("%s is %+v, and in no catalog", name, got))
		}
	}
	return errors.Join(wrong...)
}

// interrupted finds views without a steady name that the same run of the agent has shown before
// with an address.
func (n *names) interrupted() (wrong []string) {
	shown := map[Run]map[string]bool{}
	for _, v := range n.history().Views {
		if shown[v.Agent] == nil {
			shown[v.Agent] = map[string]bool{}
		}
		for name := range shown[v.Agent] {
			if len(v.Services[name].VIPs) == 0 {
				wrong = append(wrong, fmt.Sprintf("%s shows %s as %+v at %s", v.Agent, name, v.Services[name], at(v.From)))
			}
		}
		for name, s := range v.Services {
			if steady(name) && len(s.VIPs) > 0 {
				shown[v.Agent][name] = true
			}
		}
	}
	return wrong
}

func TestContestedNames(t *testing.T) {
	t.Parallel()
	n := newNames(t)

	n.scenario(t, "both catalogs have the names from the beginning", func() {
		for i := range steadyNames + otherNames {
			for _, j := range n.rnd.Perm(2) {
				n.register(n.catalogs[j], numbered(i))
			}
		}
	})
	n.scenario(t, "names come, go and move", func() { n.changes(100) })
	n.scenario(t, "agents are killed and started meanwhile", func() {
		for range 3 {
			n.restart(n.agents[n.rnd.IntN(len(n.agents))], 20)
			n.changes(20)
		}
	})
	n.scenario(t, "a host is cut off meanwhile", func() {
		n.without(n.agents[n.rnd.IntN(len(n.agents))], 50)
	})
	for _, c := range n.catalogs {
		n.scenario(t, "the Consul of "+c.Datacenter+" is away, and an agent starts meanwhile", func() {
			n.changes(20)
			n.take(c)
			n.changes(20)
			n.restart(n.agents[n.rnd.IntN(len(n.agents))], 10)
			n.changes(20)
			n.bring(c)
			n.changes(20)
		})
	}
}
