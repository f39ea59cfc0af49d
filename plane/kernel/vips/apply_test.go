package vips

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/plane/kernel/usage"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/logbuffer"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/proxytest"
	"github.com/ironvip/ironvip/test/scope"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

// faked is a Plane around a fake dataplane on a fake kernel.
type faked struct {
	*testing.T
	*Plane
	inner *inner
	k     *fakeKernel
}

func newFaked(t *testing.T, k *fakeKernel, o Options, have ...string) *faked {
	p := &faked{T: t, k: k, inner: &inner{k: k, have: map[vip.FrontendKey]*vip.Frontend{}, errs: map[vip.FrontendKey]error{}}}
	for _, at := range have {
		p.inner.have[keyAt(at)] = proxytest.OnVIP(keyAt(at))
	}
	o.Plane, o.Kernel = p.inner, k.device()
	p.Plane = must.Get(New(o))(t)
	p.Plane.binds = func(netip.Addr) bool { return false }
	t.Cleanup(func() { p.Plane.Close() })
	return p
}

// keyAt returns the key at "10.96.0.1:80", or of leftovers at "10.96.0.1".
func keyAt(at string) vip.FrontendKey {
	if a, err := netip.ParseAddr(at); err == nil {
		return vip.FrontendKey{Addr: a}
	}
	ap := netip.MustParseAddrPort(at)
	return vip.FrontendKey{Addr: ap.Addr(), Port: ap.Port(), Protocol: vip.TCP}
}

// batch returns the updates of a text such as "+10.96.0.1:80 -10.96.0.2:80 !10.96.0.3:80", where ! is a repair.
func batchOf(text string) (batch []updateOf) {
	for _, word := range strings.Fields(text) {
		u := updateOf{Key: keyAt(word[1:]), Repair: word[0] == '!'}
		if word[0] != '-' {
			u.New = proxytest.OnVIP(u.Key)
		}
		batch = append(batch, u)
	}
	return batch
}

// apply applies a batch, and returns its results.
func (p *faked) apply(text string) (errs []error) {
	p.Helper()
	batch := batchOf(text)
	must.Succeed(p, p.Apply(p.Context(), batch))
	for _, u := range batch {
		errs = append(errs, u.Err)
	}
	return errs
}

// does applies a batch without an error, and checks what it does.
func (p *faked) does(text, want string) {
	p.Helper()
	must.Succeed(p, errors.Join(p.apply(text)...), text)
	expect.Equal(p, strings.ReplaceAll(p.k.took(), "/tcp", ""), want, text)
}

// reads returns what Actual finds: "10.96.0.1:80 (damage)", where an orphan has no port.
func (p *faked) reads() string {
	p.Helper()
	var out []string
	for o, err := range p.Actual(p.Context()) {
		must.Succeed(p, err)
		expect.Equal(p, o.Orphan, o.Value.Key.Whole() && o.Value.Forward != vip.ForwardHost, "%s: orphan", o.Value.Key)
		out = append(out, fmt.Sprint(strings.TrimSuffix(o.Value.Key.String(), "/tcp"), o.Damage))
	}
	return strings.Join(out, " ")
}

// The rules of a frontend come before its address and go after it. A batch costs one message for each address that comes or
// goes, and a change none.
func TestRulesComeBeforeAddresses(t *testing.T) {
	p := newFaked(t, newFakeKernel(), Options{})
	expect.Equal(t, p.reads(), "", "at first")
	p.does("", "apply ")
	p.does("+10.96.0.2:80 +10.96.0.1:80 +10.96.0.1:81", "apply +10.96.0.2:80 +10.96.0.1:80 +10.96.0.1:81, make the device, add 10.96.0.1, add 10.96.0.2")
	p.does("+10.96.0.1:80", "apply +10.96.0.1:80")
	p.does("+10.96.0.1:82", "apply +10.96.0.1:82")
	p.does("!10.96.0.1:80", "apply +10.96.0.1:80, add 10.96.0.1")
	p.does("-10.96.0.1:80 -10.96.0.1:82", "apply -10.96.0.1:80 -10.96.0.1:82")
	p.does("-10.96.0.1:81", "remove 10.96.0.1, apply -10.96.0.1:81")
	p.does("-10.96.0.2:80 +10.96.0.2:81", "apply -10.96.0.2:80 +10.96.0.2:81")
	expect.Equal(t, p.reads(), "10.96.0.2:81[]", "in the end")
	p.does("-10.96.0.2:81 -10.96.0.1:80", "remove 10.96.0.2, apply -10.96.0.2:81 -10.96.0.1:80")
	expect.Equal(t, p.Writes(), 5, "addresses added and removed")
}

// Sockets listen before their address comes, and end before it goes. Addresses that the host has anyway need no route.
func TestSocketsListenBeforeTheirAddress(t *testing.T) {
	p := newFaked(t, newFakeKernel(), Options{Sockets: true})
	own := netip.MustParseAddr("192.0.2.1")
	p.binds = func(a netip.Addr) bool { return a == own || p.k.routes[a] }
	p.does("+192.0.2.1:80 !192.0.2.1:81", "apply +192.0.2.1:80 +192.0.2.1:81")
	p.does("-192.0.2.1:80", "apply -192.0.2.1:80")
	select {
	case <-p.UsesDevice():
		t.Error("the device is in use")
	default:
	}
	p.does("+10.96.0.1:80", "apply +10.96.0.1:80, make the device, add 10.96.0.1")
	<-p.UsesDevice()
	p.does("+10.96.0.1:81", "apply +10.96.0.1:81")
	p.does("-10.96.0.1:80", "apply -10.96.0.1:80")
	p.does("-10.96.0.1:81", "apply -10.96.0.1:81, remove 10.96.0.1")
}

// A new process adopts frontends with their addresses, and writes nothing. It is a user of the device at once.
func TestAdoption(t *testing.T) {
	for _, sockets := range []bool{false, true} {
		a, stray := netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("10.96.0.2")
		p := newFaked(t, newFakeKernel().with(a, stray), Options{Sockets: sockets}, "10.96.0.1:80", "10.96.0.1:81")
		expect.Equal(t, p.reads(), "10.96.0.1:80[] 10.96.0.1:81[] 10.96.0.2[address 10.96.0.2 belongs to no service]", "read")
		<-p.UsesDevice()
		p.does("+10.96.0.1:80", "apply +10.96.0.1:80")
		p.does("-10.96.0.1:80", "apply -10.96.0.1:80")
		p.does("+10.96.0.2:80", "apply +10.96.0.2:80")
		expect.Equal(t, p.Writes(), 0, "writes")
		expect.Equal(t, p.reads(), "10.96.0.1:81[] 10.96.0.2:80[]", "read again")
	}
}

// An address that can't be removed keeps its rules, and other updates of the batch are applied.
func TestAddressThatStaysKeepsItsRules(t *testing.T) {
	p := newFaked(t, newFakeKernel(), Options{})
	p.apply("+10.96.0.1:80 +10.96.0.2:80 +10.96.0.3:80")
	p.k.took()
	for _, fails := range []string{"remove 10.96.0.1", "send"} {
		p.k.fails = func(what string) error {
			if what == fails {
				return unix.ENOBUFS
			}
			return nil
		}
		errs := p.apply("-10.96.0.1:80 +10.96.0.2:81")
		expect.True(t, errors.Is(errs[0], unix.ENOBUFS) && errs[1] == nil, "%s: %v", fails, errs)
		expect.Contains(t, p.k.took(), "apply +10.96.0.2:81/tcp")
	}
	p.k.fails = nil
	p.does("-10.96.0.1:80", "remove 10.96.0.1, apply -10.96.0.1:80")
}

// The address of a frontend that the dataplane refuses isn't added. A frontend that serves without a part gets its address.
// If the only new frontend at an address is refused, the address goes with the old one.
func TestRefusedFrontends(t *testing.T) {
	p := newFaked(t, newFakeKernel(), Options{})
	refused, partly := errors.New("refused"), usage.Partly{Err: errors.New("a backend is rejected")}
	p.inner.errs[keyAt("10.96.0.1:80")], p.inner.errs[keyAt("10.96.0.2:80")], p.inner.errs[keyAt("10.96.0.3:81")] = refused, partly, refused
	errs := p.apply("+10.96.0.1:80 +10.96.0.2:80 +10.96.0.3:80")
	expect.True(t, errs[0] == refused && errs[1] == partly && errs[2] == nil, "%v", errs)
	expect.True(t, strings.HasSuffix(p.k.took(), "make the device, add 10.96.0.2, add 10.96.0.3"), "added")
	errs = p.apply("-10.96.0.3:80 +10.96.0.3:81")
	expect.True(t, errs[0] == nil && errs[1] == refused, "%v", errs)
	expect.Equal(t, p.k.took(), "apply -10.96.0.3:80/tcp +10.96.0.3:81/tcp, remove 10.96.0.3", "the replacement is refused")
	p.inner.errs[keyAt("10.96.0.2:80")] = refused // also the removal
	expect.True(t, p.apply("-10.96.0.2:80")[0] == refused, "the removal")
	p.inner.errs = nil
	p.k.took()
	p.does("+10.96.0.2:80", "apply +10.96.0.2:80, add 10.96.0.2")
}

// The failure of an address is that of every update there, and the next update tries again.
func TestFailureOfAnAddress(t *testing.T) {
	p := newFaked(t, newFakeKernel(), Options{})
	p.k.fails = func(what string) error {
		if what == "add 10.96.0.1" {
			return unix.ENOBUFS
		}
		return nil
	}
	errs := p.apply("+10.96.0.1:80 +10.96.0.2:80 +10.96.0.1:81")
	expect.True(t, errors.Is(errs[0], unix.ENOBUFS) && errs[1] == nil && errors.Is(errs[2], unix.ENOBUFS), "%v", errs)
	expect.Equal(t, p.reads(), "10.96.0.1:80[address 10.96.0.1 missing from ironvip0] 10.96.0.1:81[address 10.96.0.1 missing from ironvip0] 10.96.0.2:80[]", "read")
	p.k.fails = nil
	p.k.took()
	p.does("+10.96.0.1:81", "apply +10.96.0.1:81, add 10.96.0.1")
}

// A device that another program has deleted is made again with all addresses. If one of them fails that no update of the
// batch is about, the batch has failed.
func TestDeletedDevice(t *testing.T) {
	p := newFaked(t, newFakeKernel(), Options{})
	p.apply("+10.96.0.1:80 +10.96.0.2:80")
	p.k.delete()
	p.k.took()
	p.does("+10.96.0.3:80", "apply +10.96.0.3:80, add 10.96.0.3, make the device, add 10.96.0.1, add 10.96.0.2, add 10.96.0.3")
	for _, fails := range []string{"add 10.96.0.1", "link add"} {
		p.k.delete()
		p.k.fails = func(what string) error {
			if what == fails {
				return unix.ENOBUFS
			}
			return nil
		}
		expect.Is(t, p.Apply(t.Context(), batchOf("!10.96.0.3:80")), unix.ENOBUFS, "%s fails", fails)
		p.k.fails = nil
		must.Succeed(t, errors.Join(p.apply("!10.96.0.3:80")...))
		expect.Equal(t, len(p.k.routes), 3, "%s failed: routes in the end", fails)
	}
}

// Routes of no frontend are removed, and are one orphan with what the inner plane has at the address.
func TestOrphans(t *testing.T) {
	for _, sockets := range []bool{false, true} {
		p := newFaked(t, newFakeKernel().with(netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("10.96.0.2")), Options{Sockets: sockets})
		p.inner.orphans = []observed{usage.Orphan(netip.MustParseAddr("10.96.0.2"), "an element"), usage.Orphan(netip.MustParseAddr("10.96.0.4"), "a tunnel")}
		const want = "10.96.0.1[address 10.96.0.1 belongs to no service] 10.96.0.2[an element address 10.96.0.2 belongs to no service] 10.96.0.4[a tunnel]"
		expect.Equal(t, p.reads(), want, "read")
		must.Succeed(t, errors.Join(p.apply("-10.96.0.1 -10.96.0.2 -10.96.0.4")...))
		p.inner.orphans = nil
		expect.Equal(t, p.reads(), "", "in the end")
		expect.True(t, len(p.k.routes) == 0 && len(p.k.addrs) == 1, "left: %v %v", p.k.routes, p.k.addrs)
	}
}

// After an error of the inner plane, the next batch does what is left to do.
func TestFailedBatch(t *testing.T) {
	p := newFaked(t, newFakeKernel(), Options{})
	p.apply("+10.96.0.1:80 +10.96.0.2:80")
	p.k.took()
	p.inner.err = unix.EBUSY
	if err := p.Apply(context.Background(), batchOf("-10.96.0.1:80 +10.96.0.3:80")); err != unix.EBUSY {
		t.Fatal(err)
	}
	p.inner.err = nil
	p.k.took()
	p.does("+10.96.0.1:80 +10.96.0.3:80", "apply +10.96.0.1:80 +10.96.0.3:80, add 10.96.0.1, add 10.96.0.3")
	var changed reconcile.Plane = p.Plane
	select {
	case <-changed.Changed():
		t.Error("own changes are seen")
	default:
	}
}

// Addresses that an earlier process left on the device remain until every source has synced,
// however long that takes. Until then, nothing is logged about them, whether or not a frontend uses
// them again. Afterwards, the unused ones are removed.
func TestAddressesLeftBehindWaitInSilence(t *testing.T) {
	used, unused := netip.MustParseAddr("127.96.0.1"), netip.MustParseAddr("127.96.0.2")
	k := newFakeKernel().with(used, unused)
	var log logbuffer.Buffer
	logger := slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))
	p := newPlane(t, Options{Kernel: k.device(), Log: logger})
	desired := table.New(&table.Clock{}, vip.KeyOfFrontend, nil)
	ready := desired.Initializer()
	applied := table.New(&table.Clock{}, reconcile.KeyOfApplied, nil)
	r := reconcile.New(reconcile.Options[vip.FrontendKey, vip.Frontend]{Desired: desired, Target: p.Plane, Applied: applied,
		Resync: 5 * time.Millisecond, Log: logger})
	stop := scope.Go(t, r.Run)

	f := proxytest.OnVIP(proxytest.FreeKey(t, used.String(), vip.TCP))
	desired.Set(*f)
	wait.Until(t, "the frontend listens", func() bool { _, _, tried := applied.Get(f.Key); return tried })
	for range 3 {
		last := r.Stats().LastResync
		wait.Until(t, "a resync", func() bool { return r.Stats().LastResync.After(last) })
	}
	expect.Equal(t, applied.Len(), 1, "applied rows for one frontend")
	ready()
	select {
	case <-r.Synced():
	case <-time.After(time.Minute):
		t.Fatal("never ready")
	}
	stop()
	expect.SameList(t, slices.Collect(maps.Keys(k.routes)), []netip.Addr{used}, "on the device, calls %v", k.trace)
	if s := r.Stats(); s.Failing != 0 || s.DriftRepairs != 0 || log.String() != "" {
		t.Errorf("%+v, log: %s", s, &log)
	}
}

// A whole VIP is an address for the host's own programs: an orphan becomes one without a write, the
// dataplane has no rules there, and what it has left there goes.
func TestWholeVIPs(t *testing.T) {
	for _, sockets := range []bool{false, true} {
		p := newFaked(t, newFakeKernel().with(netip.MustParseAddr("10.96.0.2")), Options{Sockets: sockets})
		p.inner.orphans = []observed{usage.Orphan(netip.MustParseAddr("10.96.0.2"), "an element")}
		expect.Equal(t, p.reads(), "10.96.0.2[an element address 10.96.0.2 belongs to no service]", "an earlier process's")
		p.does("+10.96.0.2", "apply -10.96.0.2")
		expect.Equal(t, p.reads(), "10.96.0.2[an element]", "left by the dataplane")
		p.inner.orphans = nil
		expect.Equal(t, p.reads(), "10.96.0.2[]", "adopted")
		p.does("+10.96.0.1", "apply -10.96.0.1, add 10.96.0.1")
		delete(p.k.routes, netip.MustParseAddr("10.96.0.1"))
		expect.Equal(t, p.reads(), "10.96.0.1[address 10.96.0.1 missing from ironvip0] 10.96.0.2[]", "another program deletes it")
		p.does("!10.96.0.1", "apply -10.96.0.1, add 10.96.0.1")
		if !sockets {
			p.does("-10.96.0.1", "remove 10.96.0.1, apply -10.96.0.1")
			p.does("-10.96.0.2 +10.96.0.2:80", "apply -10.96.0.2 +10.96.0.2:80")
		} else {
			p.does("-10.96.0.1", "apply -10.96.0.1, remove 10.96.0.1")
		}
		expect.True(t, p.Same(&vip.Frontend{Key: keyAt("10.96.0.2")}, &vip.Frontend{Key: keyAt("10.96.0.2"), Service: vip.ServiceKey{Name: "db"}}), "the dataplane has only the address")
	}
}
