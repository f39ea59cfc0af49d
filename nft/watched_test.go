package nft

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/netlink"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/plane/kernel/host"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/scope"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

// whole returns an error if the kernel lacks a part of these frontends, as a restarted Target would read it.
func (p *planeIn) whole(ctx context.Context, all []vip.Frontend) error {
	var found []observed
	var device host.DeviceState
	var err error
	p.Node.Do(func() {
		fresh := open(p.opt)
		defer fresh.Close()
		if found, err = fresh.readState(ctx); err != nil {
			return
		}
		var d *host.Device
		if d, err = host.OpenDevice(DefaultDevice, new(atomic.Uint64)); err == nil {
			defer d.Close()
			device, err = d.Read(ctx)
		}
	})
	if err != nil {
		return err
	}
	vips := map[netip.Addr]struct{}{}
	for _, f := range all {
		vips[f.Key.Addr] = struct{}{}
	}
	if device.Fault != "" || !maps.Equal(device.Addrs, vips) {
		return fmt.Errorf("the device is %+v", device)
	}
	same := 0
	for _, o := range found {
		if len(o.Damage) > 0 {
			return fmt.Errorf("%s: %v", o.Value.Key, o.Damage)
		}
		if slices.ContainsFunc(all, func(f vip.Frontend) bool { return p.Same(&o.Value, &f) }) {
			same++
		}
	}
	if len(found) != len(all) || same != len(all) {
		return fmt.Errorf("%d frontends, %d of them as they should be", len(found), same)
	}
	return nil
}

// repairing is a plane whose loop has no resync.
type repairing struct {
	*testing.T
	*planeIn
	all    []vip.Frontend
	loop   *reconcile.Reconciler[vip.FrontendKey, vip.Frontend]
	events *event.Log
}

func newRepairing(t *testing.T) *repairing {
	need.Root(t)
	need.Program(t, "nft")
	p := newPlane(t, netlab.New(t).Director)
	desired, applied := table.New(&table.Clock{}, vip.KeyOfFrontend, nil), table.New(&table.Clock{}, reconcile.KeyOfApplied, nil)
	events := event.NewLog(1000, time.Now)
	r := reconcile.New(reconcile.Options[vip.FrontendKey, vip.Frontend]{Desired: desired, Target: p, Applied: applied, Resync: -1, Events: events})
	all := []vip.Frontend{
		frontend("10.96.0.1", 80, vip.TCP, vip.Endpoint{Addr: backendAt(1), Weight: 1}, vip.Endpoint{Addr: backendAt(2), Weight: 1}),
		frontend("10.96.0.1", 53, vip.UDP, vip.Endpoint{Addr: backendAt(3), Weight: 1}),
		frontend("fd96::1", 80, vip.TCP),
	}
	desired.Initializer()()
	scope.Go(t, r.Run)
	for range 5 {
		for _, f := range all {
			desired.Set(f)
		}
		wait.Until(t, "programmed", func() bool { return applied.Len() == len(all) })
		for _, f := range all {
			desired.Delete(f.Key)
		}
		wait.Until(t, "removed", func() bool { return applied.Len() == 0 })
	}
	for _, f := range all {
		desired.Set(f)
	}
	wait.Until(t, "programmed", func() bool { return applied.Len() == len(all) })
	expect.Equal(t, r.Stats().DriftRepairs, 0, "repairs of own changes")
	return &repairing{t, p, all, r, events}
}

// restored runs a command of another program, and waits until everything is as it should be.
func (r *repairing) restored(command string) {
	r.Helper()
	r.Node.Run("sh", "-c", command)
	began := time.Now()
	wait.For(r.T, command, func() error { return r.whole(r.Context(), r.all) })
	r.Logf("%s: repaired after %v", command, time.Since(began))
}

// Without any resync, every change of the device by another program is repaired at once, and nothing else is read.
func TestChangesByOthersAreRepairedAtOnce(t *testing.T) {
	r := newRepairing(t)
	started := r.loop.Stats()
	for _, address := range []string{"10.96.0.1", "fd96::1"} {
		r.restored("ip route del local " + address + " table local dev ironvip0")
	}
	r.restored("ip link del ironvip0")
	r.restored("ip link set ironvip0 down")
	r.restored("ip link del ironvip0; ip link add ironvip0 type bridge; ip link set ironvip0 up")
	r.restored("ip link set ironvip0 arp on; ip addr flush dev ironvip0")
	expect.Equal(t, r.loop.Stats().LastResync, started.LastResync, "the last read of everything")
	for _, setting := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
		r.restored("echo 0 > /proc/sys/net/" + setting)
		wait.Until(t, setting, func() bool { return strings.TrimSpace(r.Node.Run("cat", "/proc/sys/net/"+setting)) == "1" })
	}
}

// A table that another program changes is read, and what differs is repaired at once.
func TestTableOfOthersIsRepairedAtOnce(t *testing.T) {
	r := newRepairing(t)
	o := originOf(r.all[0].Key)
	for _, command := range []string{
		"nft delete table inet ironvip_nft",
		"nft flush ruleset",
		"nft flush table inet ironvip_nft",
		"nft flush chain inet ironvip_nft arriving",
		"nft flush map inet ironvip_nft shards",
		"nft add table inet ironvip_nft '{ flags dormant; }'",
		"nft add chain inet ironvip_nft arriving '{ policy drop; }'",
		"nft flush chain inet ironvip_nft " + class{choice: chooseAny, slots: 2, masquerade: vip.MasqueradeAuto, scheduler: vip.WeightedRoundRobin}.chain(o),
		fmt.Sprintf("nft delete element inet ironvip_nft services4_%s { 10.96.0.1 . tcp . 80 }", o),
		fmt.Sprintf("nft flush map inet ironvip_nft slots4_%s", o),
		"nft flush set inet ironvip_nft vips4",
		"nft add element inet ironvip_nft vips4 { 192.0.2.1 }",
		"nft add element inet ironvip_nft pods4 '{ 10.9.0.0/16 }'",
	} {
		r.restored(command)
	}
	found, _ := r.events.Since(0)
	for _, message := range []string{
		"nftables table inet ironvip_nft is missing or not as it should be, repaired; changed by nft (pid ",
		"missing: 10.96.0.1 in set vips4, repaired; changed by nft (pid ",
	} {
		expect.True(t, slices.ContainsFunc(found, func(e event.Event) bool { return e.Kind == "drift_repaired" && strings.Contains(e.Message, message) }), "%q is missing in the events %+v", message, found)
	}
}

// The kernel makes no events of a large transaction: none arrive, and the table isn't read.
func TestLargeTransactionsMakeNoEvents(t *testing.T) {
	need.Root(t)
	need.Program(t, "nft")
	lab := netlab.New(t)
	p := newPlane(t, lab.Director)
	asides := 0
	aside := p.fw.Muted
	p.fw.Muted = func(generation func() (uint32, error), send func() error) error {
		asides++
		return aside(generation, send)
	}
	all := fleet(200)
	p.Put(t, all...)
	expect.Equal(t, asides, 1, "large transactions")
	last := all[0].New
	changed := *last
	changed.Backends = changed.Backends[1:]
	p.Put(t, updateOf{Key: last.Key, Old: last, New: &changed})
	expect.Equal(t, asides, 1, "a small transaction is treated as a large one")
	select {
	case <-p.Changed():
		t.Error("own transactions are seen")
	default:
	}
}

// A resync of a table that nobody has changed since the last one is one request, whatever it has.
func TestReadOfAnUnchangedTable(t *testing.T) {
	w := newWorld(t)
	all := fleet(200)
	w.Put(t, all...)
	read := func() (sent int) {
		t.Helper()
		ctx := netlink.Intercept(t.Context(), func(b []byte, _ bool, send func([]byte) error) error {
			sent++
			return send(b)
		})
		w.Director.Do(func() {
			n := 0
			for o, err := range w.Target.Actual(ctx) {
				must.Succeed(t, err)
				expect.Empty(t, o.Damage)
				n++
			}
			expect.Equal(t, n, len(all), "frontends")
		})
		return sent
	}
	read() // own transactions
	for k, f := range w.records.Frontends {
		i := slices.IndexFunc(all, func(u updateOf) bool { return u.Key == k })
		must.True(t, f == all[i].New, "%s is kept twice", k)
	}
	expect.Equal(t, read(), 1, "requests")
	w.run("nft add table ip theirs")
	expect.True(t, read() > 1, "the table is not read after a transaction")

	// A transaction that fails is not a part of the table, and a retry makes it.
	added := frontend("10.96.9.9", 80, vip.TCP)
	fails := netlink.Intercept(t.Context(), func(b []byte, write bool, send func([]byte) error) error {
		if write {
			return unix.ENOBUFS
		}
		return send(b)
	})
	w.Director.Do(func() {
		expect.True(t, w.Target.Apply(fails, []updateOf{{Key: added.Key, New: &added}}) != nil, "no failure")
	})
	w.Put(t, updateOf{Key: added.Key, New: &added})
	all = append(all, updateOf{Key: added.Key, New: &added})
	w.Target = newPlane(t, w.Director).Target
	read()
}
