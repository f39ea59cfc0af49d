package pipeline

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/ironvip/ironvip/internal/hostnet"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/vip"
)

// fakeAllocator grants requested addresses, and other addresses from 192.0.2.1 on in turn, while
// there are any. Node ports are 30000 above the port for the first service that requests one, 31000
// for the second, and so on.
type fakeAllocator struct {
	mu       sync.Mutex
	vips     map[vip.ServiceKey]netip.Addr
	share    map[netip.Addr]string
	ports    map[vip.ServiceKey][]vip.Port // as last granted
	hosted   map[vip.ServiceKey]uint16
	next     int
	capacity int
	down     bool
	few      int            // if not 0: the number of services that a call stores something for
	stuck    vip.ServiceKey // its release is rejected

	batches    [][]vip.ServiceKey
	released   []string
	releases   int // calls of Release
	host       hostnet.Snapshot
	settled    func(vip.ServiceKey) bool
	freed      chan struct{}
	configured chan struct{} // closed at a new configuration
	recalls    []vip.ServiceKey
	recalled   chan struct{}
	others     map[vip.ServiceKey]bool // services that another host must process
}

func newFakeAllocator() *fakeAllocator {
	return &fakeAllocator{
		vips: map[vip.ServiceKey]netip.Addr{}, share: map[netip.Addr]string{}, ports: map[vip.ServiceKey][]vip.Port{},
		hosted: map[vip.ServiceKey]uint16{}, capacity: 10_000, freed: make(chan struct{}), configured: make(chan struct{}),
		recalled: make(chan struct{}),
	}
}

func (a *fakeAllocator) Leases() table.Reader[ipam.Resource, *ipam.Lease] {
	return table.New(&table.Clock{}, func(l **ipam.Lease) ipam.Resource { return (*l).Resource }, nil)
}

func (a *fakeAllocator) SourceOf(vip.ServiceKey) (source string, known bool) { return "", false }

func (a *fakeAllocator) Run(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

func (a *fakeAllocator) Assign(ctx context.Context, services []*vip.Service) []vip.Allocation {
	a.mu.Lock()
	defer a.mu.Unlock()
	var keys []vip.ServiceKey
	var out []vip.Allocation
	down, before := a.down, len(a.vips)
	for i := range services {
		a.down = down || a.few > 0 && len(a.vips) >= before+a.few
		keys = append(keys, services[i].Key)
		out = append(out, a.assign(services[i]))
	}
	a.down = down
	a.batches = append(a.batches, keys)
	return out
}

func (a *fakeAllocator) assign(s *vip.Service) vip.Allocation {
	out := vip.Allocation{Pool: "p"}
	held, has := a.vips[s.Key]
	if a.down && !has {
		out.Problems = []vip.Problem{{Code: vip.CodeStore, Message: "disk full"}}
		return out
	}
	if a.others[s.Key] {
		if out.Problems = []vip.Problem{{Code: vip.CodeWaiting, Message: "node b has not answered yet"}}; held.IsValid() {
			out.VIPs = []netip.Addr{held}
		}
		return out
	}
	want := held
	switch {
	case len(s.VIPs) > 0:
		want = s.VIPs[0]
	case !has && len(a.vips) >= a.capacity:
		out.Problems = []vip.Problem{{Code: vip.CodePoolFull, Message: "full"}}
	case !has:
		a.next++
		want = netip.AddrFrom4([4]byte{192, 0, byte(2 + a.next/256), byte(a.next)})
	}
	if want != held {
		var other vip.ServiceKey
		var taken bool
		if len(s.VIPs) > 0 {
			other, taken = a.holder(want, s.Key)
		}
		switch {
		case a.down:
			out.Problems = []vip.Problem{{Code: vip.CodeStore, Message: "disk full"}}
		case taken && (s.ShareKey == "" || s.ShareKey != a.share[want]):
			out.Problems = []vip.Problem{{Code: vip.CodeAddressTaken, Message: fmt.Sprintf("%s is held by %s", want, other)}}
		default:
			held = want
			a.vips[s.Key], a.share[want] = want, s.ShareKey
		}
	}
	if held.IsValid() {
		out.VIPs = []netip.Addr{held}
	}
	var ports []vip.Port
	for i, p := range s.Ports {
		if other, clash := a.clash(s, held, p); clash {
			out.Problems = append(out.Problems, vip.Problem{Code: vip.CodePortTaken, Field: fmt.Sprintf("ports[%d].port", i),
				Message: fmt.Sprintf("%s is held by %s", portKey(p), other)})
		} else {
			ports = append(ports, p)
		}
	}
	a.ports[s.Key] = ports
	out.NodePorts = map[vip.PortKey]uint16{}
	for _, p := range s.Ports {
		if p.NodePort.Wanted() {
			if _, known := a.hosted[s.Key]; !known {
				a.hosted[s.Key] = 30000 + 1000*uint16(len(a.hosted))
			}
			out.NodePorts[portKey(p)] = a.hosted[s.Key] + p.Port
		}
	}
	if s.HealthPort.Wanted() {
		out.NodePorts[vip.HealthPortKey] = 32000
	}
	return out
}

func portKey(p vip.Port) vip.PortKey { return p.Key() }

// clash returns another service that has the port of s on the same address.
func (a *fakeAllocator) clash(s *vip.Service, held netip.Addr, port vip.Port) (vip.ServiceKey, bool) {
	if s.ShareKey == "" {
		return vip.ServiceKey{}, false
	}
	for other, addr := range a.vips {
		if other == s.Key || addr != held {
			continue
		}
		if slices.ContainsFunc(a.ports[other], func(p vip.Port) bool { return portKey(p).Overlaps(portKey(port)) }) {
			return other, true
		}
	}
	return vip.ServiceKey{}, false
}

func (a *fakeAllocator) holder(addr netip.Addr, but vip.ServiceKey) (vip.ServiceKey, bool) {
	for k, held := range a.vips {
		if held == addr && k != but {
			return k, true
		}
	}
	return vip.ServiceKey{}, false
}

func (a *fakeAllocator) Release(ctx context.Context, gone []ipam.Released) []error {
	a.mu.Lock()
	defer a.mu.Unlock()
	errs := make([]error, len(gone))
	a.releases++
	for i, g := range gone {
		if a.down || a.stuck == g.Service {
			errs[i] = fmt.Errorf("release %s: %w", g.Service, errFull)
			continue
		}
		delete(a.vips, g.Service)
		delete(a.ports, g.Service)
		a.released = append(a.released, fmt.Sprintf("%s %s", g.Service, g.Cooldown))
		close(a.freed)
		a.freed = make(chan struct{})
	}
	return errs
}

func (a *fakeAllocator) Freed() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.freed
}

func (a *fakeAllocator) Reconfigured() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.configured
}

func (a *fakeAllocator) Recalls() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.recalled
}

func (a *fakeAllocator) TakeRecalls() []vip.ServiceKey {
	a.mu.Lock()
	defer a.mu.Unlock()
	keys := a.recalls
	if len(keys) > 0 {
		a.recalls, a.recalled = nil, make(chan struct{})
	}
	return keys
}

// recall makes services be requested again.
func (a *fakeAllocator) recall(keys ...vip.ServiceKey) {
	a.set(func(a *fakeAllocator) {
		if len(a.recalls) == 0 {
			close(a.recalled)
		}
		a.recalls = append(a.recalls, keys...)
	})
}

// reconfigure reports a new configuration.
func (a *fakeAllocator) reconfigure() {
	a.set(func(a *fakeAllocator) {
		close(a.configured)
		a.configured = make(chan struct{})
	})
}

func (a *fakeAllocator) SetHost(s hostnet.Snapshot) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.host = s
}

func (a *fakeAllocator) Settled(known func(vip.ServiceKey) bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.settled = known
}

// set changes the allocator's state.
func (a *fakeAllocator) set(change func(*fakeAllocator)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change(a)
}

// received returns what the allocator has received since the beginning.
func (a *fakeAllocator) received() (released []string, settled func(vip.ServiceKey) bool, host hostnet.Snapshot) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.released), a.settled, a.host
}

// asked returns the batches of requests since the last call.
func (a *fakeAllocator) asked() [][]vip.ServiceKey {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := a.batches
	a.batches = nil
	return out
}

// fakeConnections is a dataplane that counts the connections of endpoints.
type fakeConnections struct {
	mu    sync.Mutex
	open  map[netip.AddrPort]int
	asked int
	err   error
	held  chan struct{} // if set, the next answer, which is "none", waits for it
}

func (c *fakeConnections) Connections(ctx context.Context, key vip.FrontendKey) (map[netip.AddrPort]int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked++
	if held := c.held; held != nil {
		c.held = nil
		c.mu.Unlock()
		<-held
		c.mu.Lock()
		return nil, nil
	}
	return maps.Clone(c.open), c.err
}

// hold keeps back the next answer until the returned function is called.
func (c *fakeConnections) hold() (answer func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	held := make(chan struct{})
	c.held = held
	return func() { close(held) }
}

func (c *fakeConnections) set(open map[netip.AddrPort]int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open, c.err = open, err
}

// count returns the number of queries for connections.
func (c *fakeConnections) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.asked
}

// memStore is a DrainStore in memory that can fail.
type memStore struct {
	mu     sync.Mutex
	values map[string]vip.Frontend
	writes int
	fsync  time.Duration // duration of a write
	err    error
}

func newMemStore() *memStore { return &memStore{values: map[string]vip.Frontend{}} }

func (s *memStore) Write(put map[string]vip.Frontend, remove []string) error {
	time.Sleep(s.fsync)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return s.err
	}
	s.writes++
	maps.Copy(s.values, put)
	for _, key := range remove {
		delete(s.values, key)
	}
	return nil
}

func (s *memStore) All() (map[string]vip.Frontend, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.values), nil
}

// has returns the stored values and the number of writes.
func (s *memStore) has() (values map[string]vip.Frontend, writes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.values), s.writes
}

func (s *memStore) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

var errFull = errors.New("no space left on device")

// Ignored implements reconcile.Plane: the dataplane of the tests relays nothing.
func (*fakeConnections) Ignored(s *vip.Service) []vip.Problem {
	if s.Relay == nil {
		return nil
	}
	return []vip.Problem{{Code: vip.CodeIneffective, Field: "idle_timeout"}}
}
