package storetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/ipam/allocator"
	"github.com/ironvip/ironvip/pipeline"
	"github.com/ironvip/ironvip/test/reconciletest"
	"github.com/ironvip/ironvip/vip"
)

// Storm is several hosts that share a store. Each has an allocator and the stages around it, with
// services that are the same everywhere except for a delay. Meanwhile commits fail, answers get
// lost, hosts crash, and clocks and elections are wrong. Run it inside a bubble or, with an
// external store, in real time.
type Storm struct {
	Hosts, Steps int
	Seed         uint64
	// Open returns a host's own handle of the store. End is called when the host crashes.
	Open func(t testing.TB, host int) (s ipam.Store, end func())
	// Trouble disturbs a running host's connection to the store. Calm ends all disturbances. Both
	// may be nil.
	Trouble func(host int, r *rand.Rand)
	Calm    func()
	// Pause is the mean time between two steps. Timeout is how long hosts may take to reach the
	// final state.
	Pause, Timeout time.Duration
}

// stormPools have room for the services of a storm, but little more.
var stormPools = []ipam.Pool{
	{Name: "p", AutoAssign: true, CIDRs: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/27"), netip.MustParsePrefix("2001:db8::/120")}},
	{Name: "q", CIDRs: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/27"), netip.MustParsePrefix("2001:db8:1::/120")}},
}

// stormServices is the number of names.
const stormServices = 16

type storm struct {
	Storm
	t     testing.TB
	rand  *rand.Rand
	hosts []*stormHost
	lag   sync.WaitGroup

	mu     sync.Mutex
	wanted map[vip.ServiceKey]wanted

	faultsMu sync.Mutex
	faults   *rand.Rand

	recent  []string // the last commits
	commits atomic.Int64
}

// wanted is a service of all hosts, or of one of them.
type wanted struct {
	service vip.Service
	only    int // the only host with it; -1: all
}

// stormHost is one host.
type stormHost struct {
	storm *storm
	name  string
	n     int

	mu      sync.Mutex
	skew    time.Duration
	down    float64 // the probability that a commit is refused
	lost    float64 // the probability that its answer is lost
	elected bool
	leader  string
	changed chan struct{}
	refused int

	store       ipam.Store
	end         func()
	services    *table.Table[vip.ServiceKey, vip.Service] // nil while the host is down
	allocations *table.Table[vip.ServiceKey, vip.Allocation]
	allocator   *allocator.Allocator
	stop        func()
}

// Run runs the storm and checks the final state.
func (o Storm) Run(t testing.TB) {
	s := &storm{Storm: o, t: t, rand: rand.New(rand.NewPCG(o.Seed, 1)), faults: rand.New(rand.NewPCG(o.Seed, 2)), wanted: map[vip.ServiceKey]wanted{}}
	for i := range o.Hosts {
		h := &stormHost{storm: s, name: fmt.Sprintf("lb%d", i+1), n: i, changed: make(chan struct{})}
		s.hosts = append(s.hosts, h)
		h.start()
	}
	defer func() {
		for _, h := range s.hosts {
			h.crash()
		}
		s.lag.Wait()
	}()
	s.elect(0)
	for range o.Steps {
		s.step()
		time.Sleep(time.Duration(s.rand.Int64N(int64(2 * o.Pause))))
	}
	s.calm()
	s.settle()
}

// step performs one action, usually on one service.
func (s *storm) step() {
	h := s.hosts[s.rand.IntN(len(s.hosts))]
	switch n := s.rand.IntN(100); {
	case n < 55:
		s.put()
	case n < 73:
		s.remove()
	case n < 77:
		if s.Trouble != nil && h.allocator != nil {
			s.Trouble(h.n, s.rand)
		}
	case n < 80:
		s.elect(s.rand.IntN(len(s.hosts)+1) - 1)
	case n < 82: // a stalled host still believes that it leads
		h.set(func() { h.elected = true })
	case n < 87:
		h.set(func() { h.down, h.lost = s.rand.Float64(), s.rand.Float64()/2 })
	case n < 92:
		h.set(func() { h.down, h.lost = 0, 0 })
	case n < 95:
		h.set(func() { h.skew = time.Duration(s.rand.Int64N(int64(20*time.Second))) - 10*time.Second })
	case n < 98:
		if h.allocator != nil {
			h.crash()
		} else {
			h.start()
		}
	default:
		if h.allocator != nil {
			cfg := s.config()
			cfg.ReuseDelay = time.Duration(s.rand.IntN(20)) * time.Second
			if problems := h.allocator.Configure(cfg); len(problems) > 0 {
				s.t.Fatal(problems)
			}
		}
	}
}

func (s *storm) config() ipam.Config {
	return ipam.Config{Pools: stormPools, ReuseDelay: 12 * time.Second, OrphanGrace: 20 * time.Second}
}

func (s *storm) name() vip.ServiceKey {
	return vip.ServiceKey{Namespace: vip.DefaultNamespace, Name: fmt.Sprintf("s%d", s.rand.IntN(stormServices))}
}

// put adds a service or changes one.
func (s *storm) put() {
	k := s.name()
	sv := vip.Service{Key: k, Source: "rest", Ports: []vip.Port{{Protocol: vip.TCP, Port: 80, TargetPort: 80}}}
	switch s.rand.IntN(6) {
	case 0:
		sv.ShareKey = "k"
		sv.Ports[0].Port = uint16(1000 + s.rand.IntN(4))
	case 1:
		sv.VIPs = []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(1 + s.rand.IntN(6))})}
	case 2:
		sv.Pool = "q"
	case 3:
		sv.Families = vip.FamiliesOf(vip.IPv4)
	}
	if s.rand.IntN(3) == 0 {
		sv.Ports[0].NodePort = vip.NodePort{Auto: true}
	}
	only := -1
	if s.rand.IntN(8) == 0 {
		only = s.rand.IntN(len(s.hosts))
	}
	s.mu.Lock()
	if former, there := s.wanted[k]; there {
		only = former.only
	}
	s.wanted[k] = wanted{sv, only}
	s.mu.Unlock()
	s.publish(k)
}

func (s *storm) remove() {
	k := s.name()
	s.mu.Lock()
	delete(s.wanted, k)
	s.mu.Unlock()
	s.publish(k)
}

// publish sends a service's newest version to the hosts, to each after its own delay.
func (s *storm) publish(k vip.ServiceKey) {
	for _, h := range s.hosts {
		late := time.Duration(s.rand.Int64N(int64(200 * time.Millisecond)))
		s.lag.Go(func() {
			time.Sleep(late)
			s.mu.Lock()
			defer s.mu.Unlock()
			h.has(k)
		})
	}
}

// has updates one service of one host. The caller holds the storm's mu.
func (h *stormHost) has(k vip.ServiceKey) {
	if h.services == nil {
		return
	}
	if w, there := h.storm.wanted[k]; there && (w.only < 0 || w.only == h.n) {
		h.services.Set(w.service)
	} else {
		h.services.Delete(k)
	}
}

// elect makes one host the leader, or none.
func (s *storm) elect(n int) {
	leader := ""
	if n >= 0 {
		leader = s.hosts[n].name
	}
	for i, h := range s.hosts {
		h.set(func() { h.elected, h.leader = i == n, leader })
	}
}

// calm ends all faults.
func (s *storm) calm() {
	if s.Calm != nil {
		s.Calm()
	}
	for _, h := range s.hosts {
		h.set(func() { h.down, h.lost, h.skew = 0, 0, 0 })
		if h.allocator == nil {
			h.start()
		}
		h.allocator.Configure(s.config())
	}
	s.elect(s.rand.IntN(len(s.hosts)))
}

func (h *stormHost) set(change func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change()
	close(h.changed)
	h.changed = make(chan struct{})
}

// Mine, Elected and Changed are the host's allocator.Leadership.
func (h *stormHost) Mine() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.elected
}

func (h *stormHost) Elected() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.leader
}

func (h *stormHost) Changed() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.changed
}

func (h *stormHost) now() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return time.Now().Add(h.skew)
}

// start creates the host's allocator and stages.
func (h *stormHost) start() {
	s := h.storm
	h.store, h.end = s.Open(s.t, h.n)
	tables := pipeline.NewTables(&table.Clock{})
	a, err := allocator.New(context.Background(), h, s.config(), allocator.Options{Clock: tables.Clock, Now: h.now, Node: h.name, Leadership: h})
	if err != nil {
		s.t.Fatal(err)
	}
	s.mu.Lock()
	h.services = tables.Services
	for k := range s.wanted {
		h.has(k)
	}
	s.mu.Unlock()
	h.allocator = a
	h.allocations = tables.Allocations
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	line := pipeline.New(pipeline.Options{Tables: tables, Allocator: a, Shared: true, Plane: reconciletest.NewPlane(), Resync: -1})
	running.Go(func() { _ = line.Run(ctx) })
	h.stop = func() { cancel(); running.Wait() }
}

// crash stops the host at an arbitrary point.
func (h *stormHost) crash() {
	if h.allocator == nil {
		return
	}
	h.stop()
	h.storm.mu.Lock()
	h.services = nil
	h.storm.mu.Unlock()
	h.allocator = nil
	if h.end != nil {
		h.end()
	}
}

// Commit passes ops to the store, with faults.
func (h *stormHost) Commit(ctx context.Context, ops []ipam.Op) error {
	for i := range ops {
		h.check(&ops[i])
	}
	h.mu.Lock()
	down, lost := h.storm.chance(h.down), h.storm.chance(h.lost)
	if down || lost {
		h.refused++
	}
	h.mu.Unlock()
	if down {
		return fmt.Errorf("%w: fault of the storm", ipam.ErrUnavailable)
	}
	h.storm.note(h, ops)
	err := h.store.Commit(ctx, ops)
	if lost && err == nil {
		for i := range ops {
			ops[i].Err = nil
		}
		return fmt.Errorf("%w: the answer is lost", ipam.ErrUnavailable)
	}
	return err
}

// Watch calls the store's Watch.
func (h *stormHost) Watch(ctx context.Context) (ipam.Feed, error) { return h.store.Watch(ctx) }

// mostCommits bounds the commits per step on all hosts. More commits mean that hosts undo each
// other's changes.
const mostCommits = 200

// note counts a commit, and fails a test with hosts that never stop committing.
func (s *storm) note(h *stormHost, ops []ipam.Op) {
	n, most := int(s.commits.Add(1)), mostCommits*s.Steps
	if n < most-20 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, op := range ops {
		s.recent = append(s.recent, fmt.Sprintf("%s: %+v -> %+v", h.name, op.Old, op.New))
	}
	if n > most {
		panic("hosts fight:\n" + strings.Join(s.recent, "\n"))
	}
}

// chance returns true with probability p. Commits are concurrent, so it doesn't use the storm's own
// source of random numbers.
func (s *storm) chance(p float64) bool {
	s.faultsMu.Lock()
	defer s.faultsMu.Unlock()
	return s.faults.Float64() < p
}

// check fails the test if an op gives a held resource to a service that may not share it.
func (h *stormHost) check(op *ipam.Op) {
	if op.Old == nil || op.New == nil {
		if op.Old != nil && op.Old.State == ipam.Held {
			h.storm.t.Errorf("%s lets go of %s without cooling", h.name, op.Old.Resource)
		}
		return
	}
	for _, holder := range op.New.Holders {
		joins := op.New.ShareKey != "" && op.New.ShareKey == op.Old.ShareKey
		if op.New.State == ipam.Held && op.New.HeldBy(holder.Service) >= 0 && op.Old.HeldBy(holder.Service) < 0 &&
			!joins && op.Old.Holders[0].Service != holder.Service {
			h.storm.t.Errorf("%s gives %s of %v to %s", h.name, op.Old.Resource, op.Old.Holders, holder.Service)
		}
	}
}

// settle waits until wrong finds nothing.
func (s *storm) settle() {
	s.lag.Wait()
	var wrong []error
	for end := time.Now().Add(s.Timeout); time.Now().Before(end); time.Sleep(s.Timeout / 100) {
		if wrong = s.wrong(); len(wrong) == 0 {
			return
		}
	}
	s.t.Errorf("after %s: %v", s.Timeout, errors.Join(wrong...))
}

// wrong returns all differences from the expected final state.
func (s *storm) wrong() (out []error) {
	bad := func(format string, args ...any) { out = append(out, fmt.Errorf(format, args...)) }
	feed, err := s.hosts[0].store.Watch(context.Background())
	if err != nil {
		return []error{err}
	}
	defer feed.Close()
	all, _ := ipam.Drain(feed)
	stored := map[ipam.Resource]ipam.Lease{}
	for _, c := range all {
		stored[c.Resource] = *c.Lease
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	held := map[vip.ServiceKey][]ipam.Resource{}
	for r, l := range stored {
		for _, holder := range l.Holders {
			if l.State != ipam.Held {
				continue
			}
			k := holder.Service
			held[k] = append(held[k], r)
			if _, there := s.wanted[k]; !there {
				bad("%s holds %s and is gone", k, r)
			}
		}
	}
	for k, resources := range held {
		count := map[string]int{}
		for _, r := range resources {
			kind := r.Protocol.String()
			if r.Addr.IsValid() {
				kind = fmt.Sprint("v4: ", r.Addr.Is4())
			}
			if count[kind]++; count[kind] == 2 {
				bad("%s holds %v", k, resources)
			}
		}
	}
	for _, h := range s.hosts {
		shown := maps.Collect(h.allocator.Leases().All())
		for r, l := range stored {
			if got, ok := shown[r]; !ok || !got.Equal(l) {
				bad("%s shows %s as %+v, stored %+v", h.name, r, got, l)
			}
			delete(shown, r)
		}
		for r := range shown {
			bad("%s shows %s, which is not stored", h.name, r)
		}
		for k, w := range s.wanted {
			if w.only >= 0 && w.only != h.n {
				continue
			}
			row, _, ok := h.allocations.Get(k)
			if !ok {
				bad("%s has no row of %s", h.name, k)
				continue
			}
			if len(row.Problems) > 0 && !s.mayLack(w, row.Problems) {
				bad("%s: %s has problems %+v", h.name, k, row.Problems)
			}
			if !s.mayLack(w, row.Problems) && len(row.VIPs) == 0 {
				bad("%s: %s has no address", h.name, k)
			}
			for _, a := range row.VIPs {
				if !slices.Contains(held[k], ipam.Resource{Addr: a}) {
					bad("%s: %s has %s, and holds %v", h.name, k, a, held[k])
				}
			}
			if n := len(row.VIPs) + len(row.NodePorts); n != len(held[k]) {
				bad("%s: %s has %v and %v, and holds %v", h.name, k, row.VIPs, row.NodePorts, held[k])
			}
		}
	}
	return out
}

// mayLack reports whether a service may lack what others have: an address that it requests, or a
// port of an address that it shares.
func (s *storm) mayLack(w wanted, problems []vip.Problem) bool {
	return len(problems) > 0 && !slices.ContainsFunc(problems, func(p vip.Problem) bool {
		return p.Code != vip.CodeAddressTaken && p.Code != vip.CodePortTaken
	})
}
