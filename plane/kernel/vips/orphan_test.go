package vips

import (
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/scope"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

// Addresses that an earlier process left on the device remain until every source has synced,
// however long that takes. Until then, nothing is logged about them, whether or not a frontend uses
// them again. Afterwards, the unused ones are removed.
func TestAddressesLeftBehindWaitInSilence(t *testing.T) {
	used, unused := netip.MustParseAddr("127.96.0.1"), netip.MustParseAddr("127.96.0.2")
	k := newFakeKernel().with(used, unused)
	var log syncBuffer
	logger := slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))
	p := newPlane(t, Options{Kernel: k.device(), Log: logger})
	desired := table.New(&table.Clock{}, vip.KeyOfFrontend, nil)
	ready := desired.Initializer()
	applied := table.New(&table.Clock{}, reconcile.KeyOfApplied, nil)
	r := reconcile.New(reconcile.Options[vip.FrontendKey, vip.Frontend]{Desired: desired, Target: p.Plane, Applied: applied,
		Resync: 5 * time.Millisecond, Log: logger})
	stop := scope.Go(t, r.Run)

	f := onVIP(freeKey(t, used.String(), vip.TCP))
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
