package pipeline

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ironvip/ironvip/fleet"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/ipam/allocator"
	"github.com/ironvip/ironvip/ipam/fleetstore"
	"github.com/ironvip/ironvip/pipeline"
	"github.com/ironvip/ironvip/sources"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/fleettest"
	"github.com/ironvip/ironvip/test/reconciletest"
	"github.com/ironvip/ironvip/vip"
)

// catalogs are two catalogs with the same names. Hosts receive the changes of the two in any order. They must assign
// each name to one of the catalogs, the same one on all hosts, and steady names must keep their addresses.
type catalogs struct {
	t     *testing.T
	kv    *fleettest.Memory
	rnd   *rand.Rand
	hosts map[string]*namesHost
	mu    sync.Mutex
	has   [2]map[string]name
	away  [2]bool      // the catalog doesn't answer
	back  [2]time.Time // when it answered again
}

// name is one name in a catalog: its weight is a unique number.
type name struct {
	weight uint32
	since  time.Time
}

// Steady names are always in at least one of the catalogs.
const steadyNames, otherNames = 6, 6

// longestDelay is the longest time after which a host has a change of a catalog that answers.
const longestDelay = time.Second

// namesHost is one host: its copy of the tree, both catalogs as sources, and every stage behind them.
type namesHost struct {
	*pipeline.Pipeline
	tree  *fleettest.Host
	plane *reconciletest.Plane
	shown map[string]netip.Addr // the addresses of steady names that this run has had
	end   func()
}

// follower reads a catalog again and again, as one host's source.
type follower struct {
	*catalogs
	catalog int
	host    string
	rnd     *rand.Rand
}

func (f follower) Run(ctx context.Context, out sources.Sink) error {
	for {
		if services, ok := f.read(f.catalog); ok {
			out.Replace(services, nil)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Duration(f.rnd.Int64N(int64(longestDelay)))):
		}
	}
}

func (c *catalogs) read(catalog int) (services []vip.Service, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for of, n := range c.has[catalog] {
		s := serviceOf(0, []vip.Backend{{Address: netip.AddrFrom4([4]byte{172, 16, 0, byte(1 + catalog)}), Weight: n.weight, State: vip.Ready}})
		s.Key.Name, s.Source = of, sourceOf(catalog)
		services = append(services, s)
	}
	return services, !c.away[catalog]
}

func (c *catalogs) setAway(catalog int, is bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.away[catalog], c.back[catalog] = is, time.Now()
}

func sourceOf(catalog int) string { return fmt.Sprint("dc", catalog+1) }

// start starts a host.
func (c *catalogs) start(node string) {
	clock, log := table.NewClock(time.Now()), slog.New(slog.DiscardHandler)
	h := &namesHost{plane: reconciletest.NewPlane(), shown: map[string]netip.Addr{}}
	var store *fleetstore.Store
	h.tree = c.kv.Run(c.t, fleet.Options{Node: node, Clock: clock, Folders: fleetstore.Folders()}, func(tree *fleet.Tree) { store = fleetstore.New(tree) })
	allocator, err := allocator.New(c.t.Context(), store, ipam.Config{
		ReuseDelay: time.Hour, // a name that returns gets its former address
		Pools:      []ipam.Pool{{Name: "main", CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/12")}, AutoAssign: true}},
	}, allocator.Options{Clock: clock, Node: node, Leadership: h.tree, OwnName: h.tree.OwnName})
	if err != nil {
		c.t.Fatal(err)
	}
	h.Pipeline = pipeline.New(pipeline.Options{Tables: pipeline.NewTables(clock), Allocator: allocator, Plane: h.plane, Shared: true, Resync: -1})
	supervisor := sources.NewSupervisor(sources.Options{Resolver: h.Resolve, Services: h.Services, Statuses: table.New(clock, sources.KeyOfStatus, sources.SameStatus), Log: log})
	for i := range c.has {
		supervisor.Add(sourceOf(i), "catalog", follower{c, i, node, rand.New(rand.NewPCG(c.rnd.Uint64(), 0))})
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for _, run := range []func(context.Context) error{h.Run, supervisor.Run} {
		running.Go(func() {
			expect.Is(c.t, run(ctx), context.Canceled, "a part of %s ended with", node)
		})
	}
	h.end = sync.OnceFunc(func() { cancel(); running.Wait(); h.tree.End() })
	c.hosts[node] = h
}

// change makes random changes. A steady name leaves a catalog only once all hosts have it from the other one.
func (c *catalogs) change(many int) {
	for range many {
		time.Sleep(time.Duration(c.rnd.Int64N(int64(200 * time.Millisecond))))
		c.mu.Lock()
		i, of := c.rnd.IntN(2), fmt.Sprint("other", c.rnd.IntN(otherNames))
		if n := c.rnd.IntN(steadyNames + otherNames); n < steadyNames {
			of = fmt.Sprint("steady", n)
		}
		now, here := c.has[i][of]
		there, elsewhere := c.has[1-i][of]
		switch {
		case c.away[i]:
		case !here || c.rnd.IntN(4) == 0:
			if !here {
				now.since = time.Now()
			}
			now.weight = 1 + c.rnd.Uint32N(60_000)
			c.has[i][of] = now
		case !strings.HasPrefix(of, "steady") || elsewhere && !c.away[1-i] && min(time.Since(there.since), time.Since(c.back[1-i])) > 2*longestDelay:
			delete(c.has[i], of)
		}
		c.mu.Unlock()
		c.watch()
	}
}

// watch checks that no run of a host loses a steady name, or its address.
func (c *catalogs) watch() {
	for node, h := range c.hosts {
		for i := range steadyNames {
			of := fmt.Sprint("steady", i)
			granted, _, _ := h.Allocations.Get(vip.ServiceKey{Namespace: vip.DefaultNamespace, Name: of})
			switch had, is := h.shown[of]; {
			case len(granted.VIPs) == 1 && (!is || had == granted.VIPs[0]):
				h.shown[of] = granted.VIPs[0]
			case is:
				c.t.Errorf("%s has %s at %v after %s", node, of, granted.VIPs, had)
			}
		}
	}
}

// led is one name on a host.
type led struct {
	Source string
	VIP    netip.Addr
	Weight uint32
}

// rest waits, and then requires that all hosts agree with the catalogs and with each other, and that nothing is written
// and no name changes any more.
func (c *catalogs) rest(when string) {
	c.t.Helper()
	time.Sleep(5 * time.Minute)
	c.watch()
	leases, before := c.kv.Pairs("ironvip/v2/tree/leases/"), c.leads(when)
	time.Sleep(5 * time.Minute)
	if after := c.leads(when); !reflect.DeepEqual(before, after) || !reflect.DeepEqual(leases, c.kv.Pairs("ironvip/v2/tree/leases/")) {
		c.t.Errorf("%s: at rest the fleet leads %v, and then %v", when, before, after)
	}
}

// leads returns what the hosts agree on.
func (c *catalogs) leads(when string) (all map[string]led) {
	c.t.Helper()
	for _, node := range slices.Sorted(maps.Keys(c.hosts)) {
		h, of := c.hosts[node], map[string]led{}
		for _, f := range h.plane.Have() {
			s, _, _ := h.Services.Get(f.Service)
			one := led{Source: s.Source, VIP: f.Key.Addr}
			for _, e := range f.Backends {
				one.Weight += uint32(e.Weight)
			}
			if one.Weight > 0 { // otherwise it drains
				of[f.Service.Name] = one
			}
		}
		for name := range c.has[0] {
			_, ok := of[name]
			expect.True(c.t, ok, "%s: %s doesn't serve %s", when, node, name)
		}
		for name, one := range of {
			if i := slices.IndexFunc([]int{0, 1}, func(i int) bool { return sourceOf(i) == one.Source }); i < 0 || c.has[i][name].weight != one.Weight {
				c.t.Errorf("%s: %s has %s as %+v, the catalogs as %v and %v", when, node, name, one, c.has[0][name], c.has[1][name])
			}
		}
		if all == nil {
			all = of
		} else if !maps.Equal(all, of) {
			c.t.Errorf("%s: %s leads %v, another host %v", when, node, of, all)
		}
	}
	return all
}

func TestContestedNames(t *testing.T) { contestedNames(t, 1) }

func contestedNames(t *testing.T, seed uint64) {
	bubble.Test(t, func(t *testing.T) {
		c := &catalogs{t: t, kv: fleettest.NewMemory(), rnd: rand.New(rand.NewPCG(seed, 0)), hosts: map[string]*namesHost{}, has: [2]map[string]name{{}, {}}}
		for i := range steadyNames {
			for j := range c.has {
				c.has[j][fmt.Sprint("steady", i)] = name{uint32(1 + i + 100*j), time.Now()}
			}
		}
		nodes := []string{"lb1", "lb2", "lb3"}
		for _, node := range nodes {
			c.start(node)
		}
		defer func() {
			for _, h := range c.hosts {
				h.end()
			}
		}()
		c.rest("both catalogs have the names from the beginning")
		c.change(100)
		c.rest("names come, go and move")
		restart := func() {
			node := nodes[c.rnd.IntN(len(nodes))]
			c.hosts[node].end()
			delete(c.hosts, node)
			c.change(20)
			c.start(node)
		}
		for range 3 {
			restart()
			c.change(20)
		}
		c.rest("hosts restart meanwhile")
		cut := c.hosts[nodes[c.rnd.IntN(len(nodes))]]
		cut.tree.SetDown(true)
		c.change(50)
		cut.tree.SetDown(false)
		c.rest("a host is cut off from the others meanwhile")
		for i := range c.has {
			c.change(20)
			c.setAway(i, true)
			c.change(20)
			restart()
			c.change(20)
			c.setAway(i, false)
			c.change(20)
			c.rest(sourceOf(i) + " is away, and a host starts meanwhile")
		}
	})
}
