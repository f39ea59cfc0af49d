package ipvs

import (
	"context"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"

	"go4.org/netipx"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/netlink"
	"github.com/ironvip/ironvip/internal/nftwire"
	"github.com/ironvip/ironvip/ipvs/internal/kernel"
	"github.com/ironvip/ironvip/plane/kernel/filter"
	"github.com/ironvip/ironvip/plane/kernel/vips"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/vip"
)

// nullKernel accepts everything and does nothing, and answers reads with the expected state. So all
// measured cost is ours.
type nullKernel struct {
	services [][]byte
	dests    map[vip.FrontendKey][][]byte
	elements []filter.Element
	fw       *filter.Table
	element  nftwire.Element // reused
	keys     int             // in the table, when it was last read
	device   *fakeKernel
}

func newNullKernel() *nullKernel {
	k := &nullKernel{dests: map[vip.FrontendKey][][]byte{}, device: newFakeKernel()}
	k.fw = filter.New(DefaultTable, &atomic.Uint64{})
	return k
}

// hold makes it answer as a kernel with these frontends.
func (k *nullKernel) hold(all []*vip.Frontend) {
	k.device.device = &fakeDevice{index: 1, up: true, noARP: true, routes: map[netip.Addr]bool{}, addrs: map[netip.Addr]bool{netip.MustParseAddr("169.254.255.1"): true}}
	for _, f := range all {
		s := desired(f, 0)
		k.services = append(k.services, serviceMessage(&s.Service))
		for _, d := range slices.Backward(s.Dests) {
			k.dests[f.Key] = append(k.dests[f.Key], kernel.AppendDest([]byte{kernel.CmdNewDest, 1, 0, 0}, &d, true))
		}
		k.elements = append(elements(k.elements, f, 0), filter.AddrElement(filter.SetVIPs, f.Key.Addr))
		k.device.device.routes[f.Key.Addr] = true
	}
}

func (k *nullKernel) target() reconcile.Plane {
	own := &counters{}
	h, err := k.device.open(context.Background(), own)
	if err != nil {
		panic(err)
	}
	h.fw = nullFilters{k: k}
	for _, to := range []**kernel.Conn{&h.kernel, &h.watch, &h.count} {
		*to = &kernel.Conn{Socket: &nullSocket{k: k}, Family: 33}
	}
	device := k.device.newDevice()
	device.Conn = &nullSocket{k: k, routes: true}
	t := newTarget(Options{Device: DefaultDevice, Owns: testOwned}, h, own)
	p, err := vips.New(vips.Options{Plane: t, Kernel: device})
	if err != nil {
		panic(err)
	}
	return p
}

func testOwned(a netip.Addr) bool { return netip.MustParsePrefix("10.96.0.0/16").Contains(a) }

type nullSocket struct {
	k      *nullKernel
	routes bool // it is that of the device
	b      []byte
}

func (s *nullSocket) Close() {}

func (s *nullSocket) Write(_ context.Context, n int, put func(b []byte, i int) []byte, done func(i int, err error)) error {
	for i := range n {
		if i%netlink.PackMessages == 0 {
			s.b = s.b[:0]
		}
		s.b = put(s.b, i)
		done(i, nil)
	}
	return nil
}

func (s *nullSocket) Query(_ context.Context, put func(b []byte) []byte, each func(typ uint16, data []byte) error) error {
	s.b = put(s.b[:0])
	netlink.EndMessage(s.b, 1, 1)
	_, data, _, err := netlink.NextMessage(s.b)
	if err != nil {
		return err
	}
	answer := s.k.services
	switch {
	case s.routes && data[0] == unix.AF_INET:
		for a := range s.k.device.device.routes {
			if err := each(unix.RTM_NEWROUTE, routeMessage(a, s.k.device.device.index)); err != nil {
				return err
			}
		}
		return nil
	case s.routes:
		return nil
	}
	switch data[0] {
	case kernel.CmdGetConfig:
		answer = [][]byte{kernel.AppendIdleTimeout([]byte{kernel.CmdSetConfig, 1, 0, 0}, vip.MaxIdleTimeout)}
	case kernel.CmdGetDest:
		asked, _, err := kernel.DecodeService(data)
		if err != nil {
			return err
		}
		answer = s.k.dests[asked.Key]
	}
	for _, m := range answer {
		if err := each(33, m); err != nil {
			return err
		}
	}
	return nil
}

// nullFilters writes what it would send.
type nullFilters struct {
	filters // not used
	k       *nullKernel
}

func (f nullFilters) Read(context.Context) (*filter.Ruleset, error) {
	r := filter.NewRuleset(f.k.keys)
	r.Intact = len(f.k.elements) > 0
	for i := range f.k.elements {
		e := &f.k.elements[i]
		filter.EncodeElement(&f.k.element, e)
		got, _ := filter.DecodeElement(e.Set, vip.FamilyOf(e.Key.Addr), &f.k.element)
		r.Add(got)
	}
	f.k.keys = len(r.Sets)
	return r, nil
}

func (f nullFilters) Apply(_ context.Context, c filter.Change) error {
	if len(c) > 0 {
		f.k.fw.EncodeChange(c).End(1, 2, 3)
	}
	return nil
}

func (f nullFilters) Rebuild(_ context.Context, pods *netipx.IPSet, c filter.Change) error {
	tx, err := f.k.fw.EncodeRebuild(pods, c)
	if err == nil {
		tx.End(1, 2, 3)
	}
	return err
}

func (f nullFilters) Exists(context.Context) (bool, error) { return true, nil }

func fleetOf(n int) (all []*vip.Frontend) {
	for i := range n {
		f := &vip.Frontend{
			Key:       vip.FrontendKey{Addr: netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), Port: 80, Protocol: vip.TCP},
			Scheduler: vip.WeightedRoundRobin, Forward: vip.ForwardNAT, Masquerade: vip.MasqueradeAuto, Kind: vip.OnVIP,
		}
		for j := range 10 {
			f.Backends = append(f.Backends, vip.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{172, 16, byte(j), byte(i%250 + 1)}), 8080), Weight: 1})
		}
		all = append(all, f)
	}
	return all
}

// programAll does what a cold start does, in batches as in the reconciler.
func programAll(t reconcile.Plane, all []*vip.Frontend) {
	for chunk := range slices.Chunk(all, 512) {
		batch := make([]updateOf, len(chunk))
		for i, f := range chunk {
			batch[i] = updateOf{Key: f.Key, New: f}
		}
		if err := t.Apply(context.Background(), batch); err != nil {
			panic(err)
		}
		for _, u := range batch {
			if u.Err != nil {
				panic(u.Err)
			}
		}
	}
}

func observeAll(t reconcile.Plane) (n int) {
	for o, err := range t.Actual(context.Background()) {
		if err != nil || len(o.Damage) > 0 {
			panic(o)
		}
		n++
	}
	return n
}

const fleetSize = 1000

func BenchmarkColdStart(b *testing.B) {
	all := fleetOf(fleetSize)
	b.ReportAllocs()
	for b.Loop() {
		t := newNullKernel().target()
		observeAll(t)
		programAll(t, all)
	}
}

func BenchmarkReadBack(b *testing.B) {
	k := newNullKernel()
	k.hold(fleetOf(fleetSize))
	b.ReportAllocs()
	for b.Loop() {
		if n := observeAll(k.target()); n != fleetSize {
			b.Fatalf("%d frontends were read", n)
		}
	}
}

// A cold start and a reading take few allocations: what is remembered of a
// service, and nothing for each of its destinations.
func TestFleetTakesFewAllocations(t *testing.T) {
	all := fleetOf(fleetSize)
	cold := testing.AllocsPerRun(3, func() {
		target := newNullKernel().target()
		observeAll(target)
		programAll(target, all)
	})
	k := newNullKernel()
	k.hold(all)
	read := testing.AllocsPerRun(3, func() { observeAll(k.target()) })
	// The fake device takes two for each address that it lists.
	read -= 2 * fleetSize
	t.Logf("%d services: %.0f allocations to program them, %.0f to read them", fleetSize, cold, read)
	expect.AtMost(t, cold, 3.2*fleetSize, "allocations to program services of 10 destinations") // the race detector adds some
	expect.AtMost(t, read, 6*fleetSize, "allocations to read them")
}
