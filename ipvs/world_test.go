package ipvs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/ipvs/internal/kernel"
	"github.com/ironvip/ironvip/plane/kernel/conntrack"
	"github.com/ironvip/ironvip/plane/kernel/host"
	"github.com/ironvip/ironvip/plane/kernel/vips"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

// world is a fleet's desired state, a Reconciler, a Target and a fake kernel, in a synctest bubble.
type world struct {
	errs    []string // the errors that the test found
	k       *fakeKernel
	foreign map[vip.FrontendKey]*fakeService

	want    map[vip.FrontendKey]*vip.Frontend
	clock   table.Clock
	desired *table.Table[vip.FrontendKey, vip.Frontend]

	amnesia    bool        // an agent ended without a record of the clients with backends that left
	unrecorded bool        // the table or its content was deleted
	crashed    atomic.Bool // at a call of the script; nothing reaches the kernel until restart

	resync  time.Duration
	applied *table.Table[vip.FrontendKey, reconcile.AppliedFrontend]
	target  *Target
	plane   *fakePlane
	r       *reconcile.Reconciler[vip.FrontendKey, vip.Frontend]
	stop    func()
}

const testBackoff = 50 * time.Millisecond // the longest wait between two tries

var testPrefixes = []netip.Prefix{netip.MustParsePrefix("10.1.0.0/30"), netip.MustParsePrefix("fd01::/120")}

func newWorld() *world {
	w := &world{k: newFakeKernel(), want: map[vip.FrontendKey]*vip.Frontend{}, resync: -1}
	w.desired = table.New(&w.clock, vip.KeyOfFrontend, nil)
	w.foreign = map[vip.FrontendKey]*fakeService{}
	for _, at := range []string{"10.50.0.1:80", "192.0.2.1:30081"} {
		ap := netip.MustParseAddrPort(at)
		key := vip.FrontendKey{Addr: ap.Addr(), Port: ap.Port(), Protocol: vip.TCP}
		w.k.put(kernel.Service{Key: key, Scheduler: "sed", Netmask: kernel.Netmask4}, kernel.Dest{Addr: addrPort("10.1.0.1:80"), Weight: 7, Forward: kernel.ForwardDirect})
		w.foreign[key] = w.k.services[key]
	}
	return w
}

// inWorld runs f with a new world in a bubble, and fails the test with the errors that f found. The parameter what names the
// event before.
func inWorld(t *testing.T, what string, f func(w *world)) {
	t.Helper()
	var w *world
	bubble.Test(t, func(*testing.T) {
		w = newWorld()
		f(w)
	})
	report(t, w, what)
}

// start creates a Target, with retries, and a Reconciler with it.
func (w *world) start() {
	o := Options{Device: DefaultDevice, Owns: owns, PodCIDRs: func() []netip.Prefix { return testPrefixes }}
	for try := 0; ; try++ {
		var err error
		if w.plane, err = w.k.plane(context.Background(), o); err == nil {
			w.target = w.plane.target
			break
		}
		if try > 1000 {
			panic(fmt.Sprintf("no start: %v\n%s", err, w.k.history()))
		}
		w.crashed.Store(false)
		time.Sleep(testBackoff)
	}
	w.applied = table.New(&w.clock, reconcile.KeyOfApplied, nil)
	w.r = reconcile.New(reconcile.Options[vip.FrontendKey, vip.Frontend]{
		Desired: w.desired, Target: w.plane, Applied: w.applied,
		Resync: w.resync, MinBackoff: time.Millisecond, MaxBackoff: testBackoff,
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); w.r.Run(ctx) }()
	w.stop = func() { cancel(); <-done; w.plane.Close() }
}

// set sets the desired state of a frontend; nil removes it.
func (w *world) set(key vip.FrontendKey, f *vip.Frontend) {
	if f == nil {
		delete(w.want, key)
		w.desired.Delete(key)
		return
	}
	w.want[key] = f
	w.desired.Set(*f)
}

func (w *world) errorf(format string, args ...any) {
	w.errs = append(w.errs, fmt.Sprintf(format, args...))
}

// waitIdle waits until all goroutines wait for time to pass.
func (w *world) waitIdle() {
	synctest.Wait()
	w.k.traffic()
}

// wrong returns the differences between the kernel and what an agent can make of the desired state.
func (w *world) wrong() map[vip.FrontendKey][]string {
	if w.amnesia {
		// Nothing shows that the clients of a removed frontend on the host's own addresses were ours.
		w.k.alter(func() {
			maps.DeleteFunc(w.k.entries, func(x conntrack.Flow, _ struct{}) bool { return !owns(x.Frontend.Addr) })
		})
	}
	if !w.amnesia || !w.unrecorded {
		return w.k.witness(w.want, w.foreign)
	}
	// Services without a record are foreign, and nothing else of a frontend in conflict is in the
	// kernel: no element of its key, and no hairpin element that only its backends need.
	want, foreign := maps.Clone(w.want), maps.Clone(w.foreign)
	maps.DeleteFunc(want, func(key vip.FrontendKey, _ *vip.Frontend) bool { return w.conflicts(key) })
	w.k.alter(func() {
		for key, s := range w.k.services {
			if !owns(key.Addr) && foreign[key] == nil {
				foreign[key] = s
			}
		}
	})
	return w.k.witness(want, foreign)
}

// conflicts reports whether the agent has lost the record of a frontend's service, and reports a
// conflict with it. The table records which services on the host's own addresses are ours. An agent
// without that record treats them as foreign, and leaves them unchanged.
func (w *world) conflicts(key vip.FrontendKey) bool {
	row, _, _ := w.applied.Get(key)
	return w.amnesia && w.unrecorded && !owns(key.Addr) && row.Problem != nil && row.Problem.Code == vip.CodePortTaken
}

// checkReported checks that every present difference is reported: in the key's applied row, in that
// of a key with the same address, or for the dataplane as a whole.
func (w *world) checkReported() {
	s := w.r.Stats()
	if s.TargetError != "" || !s.Synced {
		return
	}
	failing := map[vip.FrontendKey]string{}
	for key, row := range w.applied.All() {
		if p := row.Problem; p != nil {
			failing[key] = p.Message
		}
	}
	for key, what := range w.wrong() {
		said := failing[key] != "" || s.CleanError != "" && !slices.ContainsFunc(what, func(x string) bool { return !strings.HasPrefix(x, clientsStay) })
		for other := range failing {
			f := w.want[other]
			said = said || key.Protocol == 0 && (other.Addr == key.Addr || f == nil ||
				slices.ContainsFunc(f.Backends, func(b vip.Endpoint) bool { return b.Addr.Addr() == key.Addr }))
		}
		if !said {
			w.errorf("nothing says that %s has %q; failing: %q", key, what, failing)
		}
	}
}

// checkApplied checks that the desired state is applied, and that no report contradicts this.
func (w *world) checkApplied() {
	wrong, s := w.wrong(), w.r.Stats()
	for key := range w.want {
		if a, _, tried := w.applied.Get(key); w.conflicts(key) {
			s.Failing--
		} else if !tried || a.Tried.Rev == 0 || a.Problem != nil {
			w.errorf("%s: applied is %+v", key, a.Problem)
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(wrong), vip.CompareFrontendKeys) {
		w.errorf("%s: %s", key, strings.Join(wrong[key], "; "))
	}
	if s.Failing > 0 || s.TargetError != "" || s.Unclean || s.CleanError != "" {
		w.errorf("%d frontends fail, the dataplane %q, it is unclean: %v, %q", s.Failing, s.TargetError, s.Unclean, s.CleanError)
	}
	for _, f := range w.target.Findings() {
		name, isSysctl := strings.CutPrefix(f.Name, "sysctl net.")
		if key := strings.ReplaceAll(name, ".", "/"); isSysctl && len(w.want) > 0 && f.OK && w.k.sysctls[key] != "1" && key != "ipv4/conf/all/arp_announce" && key != host.Remembered(0).Key {
			w.errorf("finding %+v, but it is %s", f, w.k.sysctls[key])
		}
	}
	if s.DriftRepairs > 0 && w.resync < 0 {
		w.errorf("%d drifts of our own making", s.DriftRepairs)
	}
}

// fakePlane is a Target with the addresses of its frontends, as in the agent.
type fakePlane struct {
	*vips.Plane
	target *Target
}

func (p *fakePlane) Close() error { return errors.Join(p.Plane.Close(), p.target.Close()) }

// plane opens a fakePlane.
func (k *fakeKernel) plane(ctx context.Context, o Options) (*fakePlane, error) {
	stats := &counters{}
	h, err := k.open(ctx, stats)
	if err != nil {
		return nil, err
	}
	p := &fakePlane{target: newTarget(o, h, stats)}
	p.Plane, err = vips.New(vips.Options{Plane: p.target, Kernel: k.newDevice()})
	return p, err
}

// target returns a fakePlane without a Reconciler.
func (k *fakeKernel) target(t *testing.T) *fakePlane {
	t.Helper()
	p := must.Get(k.plane(t.Context(), Options{Owns: owns, PodCIDRs: func() []netip.Prefix { return testPrefixes }}))(t)
	t.Cleanup(func() { p.Close() })
	return p
}

// put applies updates and ends the test if one fails.
func put(t *testing.T, target reconcile.Plane, batch ...updateOf) {
	t.Helper()
	must.Succeed(t, target.Apply(t.Context(), batch))
	for _, u := range batch {
		must.Succeed(t, u.Err, "%s", u.Key)
	}
}
