package forwarding

import (
	"testing"
	"time"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/vip"
)

func serviceKey(name string) vip.ServiceKey {
	return vip.ServiceKey{Namespace: vip.DefaultNamespace, Name: name}
}

func carriedBytes(connections, active, in, out uint64) reconcile.Traffic {
	return reconcile.Traffic{Connections: connections, Active: active, In: reconcile.Volume{Bytes: in}, Out: reconcile.Volume{Bytes: out}}
}

// Rates are differences of counters per second, also after a counter has restarted at 0.
func TestTopRates(t *testing.T) {
	last := map[vip.ServiceKey]reconcile.Traffic{
		serviceKey("steady"): carriedBytes(100, 0, 1000, 5000),
		serviceKey("again"):  carriedBytes(900, 0, 900, 0),
		serviceKey("idle"):   carriedBytes(7, 3, 0, 0),
	}
	now := map[vip.ServiceKey]reconcile.Traffic{
		serviceKey("steady"): carriedBytes(110, 2, 3000, 15000),
		serviceKey("again"):  carriedBytes(40, 0, 100, 0),
		serviceKey("idle"):   carriedBytes(7, 3, 0, 0),
		serviceKey("new"):    carriedBytes(1, 0, 10, 0),
	}
	for by, want := range map[string][]string{
		"connections": {"again", "steady", "new", "idle"}, "active": {"idle", "steady", "again", "new"}, "in": {"steady", "again", "new", "idle"},
		"out": {"steady", "idle", "again", "new"}, "bytes": {"steady", "again", "new", "idle"},
	} {
		got := top(v1.Top{}, last, now, 2*time.Second, &topInput{By: by, Limit: 10})
		for i, s := range got.Items {
			if len(got.Items) != 4 || s.Service != want[i] {
				t.Errorf("by %s: %+v, want %q", by, got.Items, want)
				break
			}
		}
		if got.Services != 4 || got.Seconds != 2 || got.Sum != (v1.TopService{Active: 5, Connections: 25.5, In: 1055, Out: 5000}) {
			t.Errorf("by %s: %+v", by, got)
		}
	}
	got := top(v1.Top{}, last, now, 2*time.Second, &topInput{By: "connections", Limit: 1})
	if len(got.Items) != 1 || got.Items[0] != (v1.TopService{Service: "again", Connections: 20, In: 50}) || got.Services != 4 {
		t.Errorf("%+v", got)
	}
}
