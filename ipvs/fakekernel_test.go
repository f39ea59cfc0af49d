package ipvs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go4.org/netipx"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/netlink"
	"github.com/ironvip/ironvip/ipvs/internal/kernel"
	"github.com/ironvip/ironvip/plane/kernel/conntrack"
	"github.com/ironvip/ironvip/plane/kernel/filter"
	"github.com/ironvip/ironvip/plane/kernel/host"
	"github.com/ironvip/ironvip/plane/kernel/linux"
	"github.com/ironvip/ironvip/vip"
)

// fakeKernel is one network namespace's kernel in memory, as far as a Target uses it: IPVS and
// addresses by the bytes of their netlink messages, the nftables table by its transactions. It
// rejects what the kernel rejects, and can fail at any call. It outlives the Targets that use it.
type fakeKernel struct {
	mu     sync.Mutex
	calls  int
	script func(c call) *fault // the faults of calls; nil: none
	trace  []string

	module     bool // ip_vs is loaded
	ipvsFamily uint16
	schedulers map[string]bool // the loaded schedulers
	tunnels    map[netip.Addr]bool
	services   map[vip.FrontendKey]*fakeService
	idle       time.Duration // the timeout of TCP connections

	loopback bool // an interface other than the device is up
	device   *fakeDevice
	nextLink int

	table     *fakeTable
	noModule  string // a missing module that the rules need; "" if there are all
	sysctls   map[string]string
	entries   map[conntrack.Flow]struct{} // connection tracking entries of UDP clients
	processes map[vip.FrontendKey]bool    // the sockets of processes
}

// call is one call of the kernel, or one message of a batched one.
type call struct {
	n    int    // the first is 1
	kind string // for example "ipvs message"
	what string // the object, "new service 10.96.0.1:80/tcp"
}

func (c call) String() string { return fmt.Sprintf("%d: %s %s", c.n, c.kind, c.what) }

const clientsStay = "clients stay" // how the witness describes entries that Clean should have deleted

// fault is how a call fails.
type fault struct {
	err  error
	done bool // it is done, and only the answer is lost
}

type fakeService struct {
	kernel.Service
	dests map[netip.AddrPort]kernel.Dest
	added map[netip.AddrPort]int // order of addition
	adds  int
	last  map[netip.AddrPort]uint32 // the weights that mh uses
}

type fakeDevice struct {
	index     int
	up, noARP bool
	routes    map[netip.Addr]bool
	addrs     map[netip.Addr]bool // of other programs, and that of the device
}

type fakeTable struct {
	intact   bool
	elements map[filter.Element]struct{}
	pods     *netipx.IPSet
}

func newFakeKernel() *fakeKernel {
	k := &fakeKernel{
		module: true, ipvsFamily: 33, nextLink: 5, loopback: true,
		tunnels:    map[netip.Addr]bool{},
		schedulers: map[string]bool{"rr": true, "wrr": true, "lc": true, "wlc": true, "sh": true, "mh": true, "sed": true},
		services:   map[vip.FrontendKey]*fakeService{},
		sysctls:    map[string]string{host.Remembered(0).Key: "432000"},
		entries:    map[conntrack.Flow]struct{}{},
	}
	for _, s := range append(settings(linux.ParseVersion(linux.Release())), forwarding6) {
		k.sysctls[s.Key] = "0"
	}
	return k
}

// enter records a call and returns its fault. The caller holds the lock.
func (k *fakeKernel) enter(kind, format string, args ...any) *fault {
	k.calls++
	c := call{n: k.calls, kind: kind, what: fmt.Sprintf(format, args...)}
	line := c.String()
	var f *fault
	if k.script != nil {
		f = k.script(c)
	}
	if f != nil {
		line += fmt.Sprintf(" -> %v", f.err)
		if f.done {
			line += ", but done"
		}
	}
	k.trace = append(k.trace, line)
	return f
}

// call performs one atomic call.
func (k *fakeKernel) call(kind, what string, do func() error) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	f := k.enter(kind, "%s", what)
	if f != nil && !f.done {
		return f.err
	}
	if err := do(); err != nil {
		return err
	}
	if f != nil {
		return f.err
	}
	return nil
}

// fail sets the faults of later calls.
func (k *fakeKernel) fail(script func(c call) *fault) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.script = script
}

// alter changes the kernel without the Target.
func (k *fakeKernel) alter(do func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	do()
}

// history returns the last calls.
func (k *fakeKernel) history() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return strings.Join(k.trace[max(0, len(k.trace)-40):], "\n")
}

// open is openAccess.
func (k *fakeKernel) open(ctx context.Context, stats *counters) (access, error) {
	var h access
	var err error
	for _, to := range []**kernel.Conn{&h.kernel, &h.watch, &h.count} {
		*to = &kernel.Conn{Socket: &fakeSocket{k: k, protocol: unix.NETLINK_GENERIC}}
		if (*to).Family, err = kernel.LookupFamily(ctx, (*to).Socket); err != nil {
			return h, err
		}
	}
	h.fw, h.sysctl, h.flows, h.free, h.conns, h.list, h.tunnels = fakeFilters{k}, fakeTunables{k}, fakeFlows{k}, fakePorts{k}.Free, fakeConnections{k}.Read, fakeList{}.each, fakeTunnels{k}
	return h, nil
}

// newDevice returns access to the device.
func (k *fakeKernel) newDevice() *host.Device {
	return &host.Device{Name: DefaultDevice, Stats: new(atomic.Uint64), Conn: &fakeSocket{k: k, protocol: unix.NETLINK_ROUTE},
		Dial: func() (host.Links, error) { return fakeLinks{k}, nil }}
}

// unload unloads ip_vs with all of its state.
func (k *fakeKernel) unload() {
	k.module, k.services = false, map[vip.FrontendKey]*fakeService{}
}

// reload loads it again, as a new netlink family.
func (k *fakeKernel) reload() {
	k.module = true
	k.ipvsFamily++
}

// fakeSocket is a netlink socket to a fakeKernel.
type fakeSocket struct {
	k        *fakeKernel
	protocol int
	closed   bool
}

var errClosedSocket = errors.New("the socket is closed")

func (s *fakeSocket) Close() { s.closed = true }

func (s *fakeSocket) kind(of string) string {
	if s.protocol == unix.NETLINK_ROUTE {
		return "route " + of
	}
	return "ipvs " + of
}

func (s *fakeSocket) Write(ctx context.Context, n int, put func(b []byte, i int) []byte, done func(i int, err error)) error {
	if s.closed {
		return errClosedSocket
	}
	for first := 0; first < n; first += netlink.PackMessages {
		if err := ctx.Err(); err != nil {
			return err
		}
		s.k.mu.Lock()
		if f := s.k.enter(s.kind("send"), "%d messages", min(netlink.PackMessages, n-first)); f != nil {
			s.k.mu.Unlock()
			return fmt.Errorf("send by netlink: %w", f.err)
		}
		var outcome []error
		for i := first; i < min(n, first+netlink.PackMessages); i++ {
			outcome = append(outcome, s.message(put(nil, i)))
		}
		s.k.mu.Unlock()
		for i, err := range outcome {
			done(first+i, err)
		}
	}
	return nil
}

// message performs one message, with its fault.
func (s *fakeSocket) message(b []byte) error {
	m := s.k.parse(s.protocol, b)
	f := s.k.enter(s.kind("message"), "%s", m.what)
	if f != nil && !f.done {
		return f.err
	}
	err := m.do()
	if f != nil {
		return netlink.ErrUnknown
	}
	if err == nil {
		return nil
	}
	return err
}

func (s *fakeSocket) Query(ctx context.Context, put func(b []byte) []byte, each func(typ uint16, data []byte) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.closed {
		return errClosedSocket
	}
	s.k.mu.Lock()
	m := s.k.parse(s.protocol, put(nil))
	f := s.k.enter(s.kind("query"), "%s", m.what)
	var parts [][]byte
	var err error
	if f == nil || f.done {
		err = m.do()
		parts = m.answer
	}
	s.k.mu.Unlock()
	if f != nil && f.done && len(parts) > 0 {
		parts = parts[:len(parts)-1] // the answer is incomplete
	}
	for _, p := range parts {
		if err := each(m.typ, p); err != nil {
			return err
		}
	}
	if f != nil {
		return f.err
	}
	return err
}

// message is a parsed netlink message.
type message struct {
	typ    uint16
	what   string
	do     func() error
	answer [][]byte // set by do
}

// parse parses a message. It panics on a message that no kernel would accept.
func (k *fakeKernel) parse(protocol int, b []byte) *message {
	netlink.EndMessage(b, 1, 1)
	h, data, rest, err := netlink.NextMessage(b)
	if err != nil || len(rest) > 0 || h.Flags&unix.NLM_F_REQUEST == 0 {
		panic(fmt.Sprintf("malformed message: %v, %d bytes behind it", err, len(rest)))
	}
	if protocol == unix.NETLINK_ROUTE {
		return k.parseRoute(h, data)
	}
	return k.parseGeneric(h, data)
}

// witness compares the actual state with want, with its own implementation of what a frontend
// needs. It returns the differences for each key. Differences without a key are at the zero key.
// Foreign objects are those that ours doesn't know.
func (k *fakeKernel) witness(want map[vip.FrontendKey]*vip.Frontend, foreign map[vip.FrontendKey]*fakeService) map[vip.FrontendKey][]string {
	k.mu.Lock()
	defer k.mu.Unlock()
	wrong := map[vip.FrontendKey][]string{}
	say := func(key vip.FrontendKey, format string, args ...any) {
		wrong[key] = append(wrong[key], fmt.Sprintf(format, args...))
	}
	nobody := vip.FrontendKey{}
	marks, places := map[vip.FrontendKey]uint32{}, map[vip.FrontendKey]vip.FrontendKey{}
	if k.table != nil {
		for e := range k.table.elements {
			if e.Set.IsMap() {
				marks[e.Key] = e.Mark
			}
		}
	}

	vips, ends := map[netip.Addr]vip.FrontendKey{}, map[netip.Addr]bool{}
	for key, f := range want {
		if f.Kind != vip.OnHost {
			vips[key.Addr] = key
		}
		if f.Kind != vip.OnRealServer {
			place := key
			if filter.ByMark(key) {
				place = keyOfMark(marks[key], vip.FamilyOf(key.Addr))
			}
			if other, twice := places[place]; twice {
				say(key, "has the mark of %s", other)
			}
			places[place] = key
			k.witnessService(f, k.services[place], marks[key], func(format string, args ...any) { say(key, format, args...) })
			continue
		}
		if !filter.ByMark(key) && k.services[key] != nil {
			say(key, "a service on a real server")
		}
		for _, b := range f.Backends {
			if a := b.Addr.Addr(); f.Forward == vip.ForwardTunnel {
				if ends[a] = true; !k.tunnels[a] {
					say(key, "no device for the tunnel to %s", a)
				}
			}
		}
	}
	for key, s := range k.services {
		switch {
		case places[key].Addr.IsValid():
		case foreign[key] == nil:
			say(key, "a service that nobody wants, mark %#x", s.Mark)
		case s.Service != foreign[key].Service || len(s.dests) != len(foreign[key].dests):
			say(nobody, "the foreign service %s was changed", key)
		}
	}
	for key := range foreign {
		if k.services[key] == nil && k.module {
			say(nobody, "the foreign service %s is gone", key)
		}
	}

	if k.device == nil || !k.device.up || !k.device.noARP {
		for _, key := range vips {
			say(key, "the device is not there, not up or speaks ARP")
		}
	}
	for a, key := range vips {
		if k.device == nil || !k.device.routes[a] {
			say(key, "the route to %s is missing", a)
		}
	}
	if k.device != nil {
		for a := range k.device.routes {
			if _, ok := vips[a]; !ok {
				say(vip.FrontendKey{Addr: a}, "a route to %s that nobody wants", a)
			}
		}
	}

	for a := range k.tunnels {
		if !ends[a] {
			say(vip.FrontendKey{Addr: a}, "a device for a tunnel to %s that nobody wants", a)
		}
	}

	elements := needed(want)
	for e := range elements {
		if k.table == nil {
			say(e.Key, "no table")
		} else if _, ok := k.table.elements[withMark(e, marks)]; !ok {
			say(e.Key, "missing: %s", e)
		}
	}
	if k.table != nil {
		if len(want) > 0 && !k.table.intact {
			say(nobody, "the rules are not intact")
		}
		if len(want) > 0 && !k.table.pods.Equal(testPods) {
			say(nobody, "the pod ranges are %v", k.table.pods.Ranges())
		}
		for e := range k.table.elements {
			bare := e
			if bare.Mark = 0; !elements[bare] || e != withMark(bare, marks) {
				say(e.Key, "element that nobody wants: %s", e)
			}
		}
	}
	for x := range k.entries {
		s := k.services[x.Frontend]
		left := s == nil
		if !left {
			_, stays := s.dests[x.Backend]
			left = !stays
		}
		if left {
			say(x.Frontend, "%s with %s, which has left", clientsStay, x.Backend)
		}
	}
	return wrong
}

// withMark returns an element in the table's form if frontends have these marks.
func withMark(e filter.Element, marks map[vip.FrontendKey]uint32) filter.Element {
	if e.Set.HasMark() {
		e.Mark = marks[e.Key]
	}
	return e
}

func (k *fakeKernel) witnessService(f *vip.Frontend, s *fakeService, mark uint32, say func(format string, args ...any)) {
	if s == nil {
		say("no service")
		return
	}
	flags := uint32(0)
	if f.Affinity > 0 {
		flags = kernel.FlagPersistent
	}
	if f.OnePacket {
		flags |= kernel.FlagOnePacket
	}
	mask := uint32(kernel.Netmask4)
	if f.Key.Addr.Is6() {
		mask = kernel.Netmask6
	}
	w := kernel.Service{Key: f.Key, Mark: mark, Scheduler: f.Scheduler.String(), Flags: flags, Timeout: uint32(f.Affinity.Seconds()), Netmask: mask}
	got := s.Service
	if mark != 0 {
		got.Key = f.Key // the kernel doesn't know it
	}
	got.Flags &^= kernel.FlagSched1 | kernel.FlagSched2 // the scheduler's own flags, which ipvsadm checks
	if got != w {
		say("service is %+v", got)
	}
	for _, b := range f.Backends {
		d, ok := s.dests[b.Addr]
		method := map[vip.Forward]uint32{vip.ForwardNAT: 0, vip.ForwardTunnel: 2, vip.ForwardDirect: 3}[f.Forward]
		if w := (kernel.Dest{Addr: b.Addr, Weight: uint32(b.Weight), Forward: method, Upper: b.MaxConnections}); !ok {
			say("no destination %s", b.Addr)
		} else if d != w {
			say("destination is %+v", d)
		}
	}
	if wrong := s.misplaced(); wrong != "" {
		say("%s", wrong)
	}
	for a := range s.dests {
		if !slices.ContainsFunc(f.Backends, func(b vip.Endpoint) bool { return b.Addr == a }) {
			say("destination %s that nobody wants", a)
		}
	}
}

// misplaced says which destinations the scheduler's table has in another order than that of their addresses, or wrongly.
func (s *fakeService) misplaced() string {
	var order []netip.AddrPort
	for _, d := range slices.Backward(s.list()) {
		switch {
		case inTable(s.Scheduler, &d):
			order = append(order, d.Addr)
		case s.Scheduler == maglev && s.last[d.Addr] != 0:
			return fmt.Sprintf("destination %s of weight 0 has a part of the table by its last weight", d.Addr)
		}
	}
	if !slices.IsSortedFunc(order, netip.AddrPort.Compare) {
		return fmt.Sprintf("destinations are in the order %v", order)
	}
	return ""
}
