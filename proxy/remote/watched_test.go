package remote

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/scope"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

// loop is a Plane with its Reconciler.
type loop struct {
	*bench
	r       *reconcile.Reconciler[vip.FrontendKey, vip.Frontend]
	desired *table.Table[vip.FrontendKey, vip.Frontend]
	applied *table.Table[vip.FrontendKey, reconcile.AppliedFrontend]
	events  *event.Log
}

// newLoop runs a Reconciler without resyncs.
func newLoop(t *testing.T) *loop {
	l := &loop{bench: newPlane(t, Options{Device: "ironvip0", Owns: func(netip.Addr) bool { return true }}),
		desired: table.New(&table.Clock{}, vip.KeyOfFrontend, nil), applied: table.New(&table.Clock{}, reconcile.KeyOfApplied, nil), events: event.NewLog(1000, time.Now)}
	l.r = reconcile.New(reconcile.Options[vip.FrontendKey, vip.Frontend]{Desired: l.desired, Target: l.Plane, Applied: l.applied, Resync: -1, Events: l.events})
	scope.Go(t, l.r.Run)
	return l
}

func (l *loop) serve(addrs ...netip.Addr) {
	for _, a := range addrs {
		for _, port := range []uint16{80, 443} {
			l.desired.Set(*onVIP(vip.FrontendKey{Addr: a, Port: port, Protocol: vip.TCP}))
		}
	}
	for _, a := range addrs {
		l.returns("the first time", a)
	}
}

// returns waits until an address is on the device, and accepts clients.
func (l *loop) returns(when string, a netip.Addr) {
	l.Helper()
	wait.For(l, fmt.Sprintf("%s is on the device %s", a, when), func() error {
		d := &kernelDevice{name: "ironvip0"}
		list, err := d.list()
		d.close()
		for _, on := range list {
			if on == a {
				c, err := net.Dial("tcp", netip.AddrPortFrom(a, 80).String())
				if err == nil {
					c.Close()
				}
				return err
			}
		}
		return errors.Join(fmt.Errorf("on the device: %v", list), err)
	})
}

func command(t testing.TB, line string) {
	t.Helper()
	if out, err := exec.Command("sh", "-c", line).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", line, err, out)
	}
}

// Without any resync, an address that another program removes returns, every time, also if the frontend that was known to use
// it has ended. The time is logged.
func TestRemovedAddressReturnsAtOnce(t *testing.T) {
	need.Program(t, "ip")
	if !inNamespace(t) {
		return
	}
	makeDevice(t, "ironvip0")
	l := newLoop(t)
	v4, v6 := netip.MustParseAddr("203.0.113.10"), netip.MustParseAddr("2001:db8::10")
	l.serve(v4, v6)
	link := must.Get(netlink.LinkByName("ironvip0"))(t)
	for i := range 3 {
		for _, a := range []netip.Addr{v4, v6} {
			began := time.Now()
			must.Succeed(t, netlink.RouteDel(localRoute(link, a)))
			l.returns(fmt.Sprintf("again after removal %d", i+1), a)
			t.Logf("%s returned after %v", a, time.Since(began))
		}
	}
	for _, a := range []netip.Addr{v4, v6} {
		l.desired.Delete(vip.FrontendKey{Addr: a, Port: 443, Protocol: vip.TCP})
	}
	wait.Until(t, "frontends end", func() bool { return len(l.target.Keys()) == 2 })
	for _, line := range []string{
		"ip route flush table local dev ironvip0",
		"ip addr flush dev ironvip0",
		"ip link set ironvip0 down",
		"ip link del ironvip0",
	} {
		command(t, line)
		l.returns("after "+line, v4)
		l.returns("after "+line, v6)
	}
	events, _ := l.events.Since(0) // the latest ones of each frontend
	if !slices.ContainsFunc(events, func(e event.Event) bool {
		return e.Kind == "drift_repaired" && strings.HasPrefix(e.Message, "address 203.0.113.10 missing from ironvip0, repaired")
	}) {
		t.Errorf("events %+v", events)
	}
}

// Addresses that the Plane itself adds and removes cause no repair.
func TestOwnAddressesAreNoDrift(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	makeDevice(t, "ironvip0")
	l := newLoop(t)
	v4, v6 := netip.MustParseAddr("203.0.113.10"), netip.MustParseAddr("2001:db8::10")
	for range 3 {
		l.serve(v4, v6)
		for _, a := range []netip.Addr{v4, v6} {
			for _, port := range []uint16{80, 443} {
				l.desired.Delete(vip.FrontendKey{Addr: a, Port: port, Protocol: vip.TCP})
			}
		}
		wait.Until(t, "frontends end", func() bool { return len(l.target.Keys()) == 0 })
	}
	expect.Equal(t, l.r.Stats().DriftRepairs, 0, "repairs")
}

// An address that is removed while the Plane can't add it comes back with the retries.
func TestRemovedAddressIsRetried(t *testing.T) {
	d := &fakeDevice{}
	a := newAddresses(d, "ironvip0", nil)
	a.binds = func(netip.Addr) bool { return true } // the route of a removed address stays for a moment
	addr := netip.MustParseAddr("203.0.113.10")
	must.Succeed(t, errors.Join(a.add(addr), a.refresh()))
	delete(a.there, addr) // as Look does
	d.err = unix.ENOBUFS
	if err := a.ensure(addr); err == nil {
		t.Error("restored without the address")
	}
	d.err = nil
	if err := a.ensure(addr); err != nil || !a.there[addr] {
		t.Errorf("%v, there %v", err, a.there)
	}
}
