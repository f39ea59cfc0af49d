package status

import (
	"cmp"

	"github.com/ironvip/ironvip/dns/zone"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/pipeline"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/sources"
	"github.com/ironvip/ironvip/vip"
)

// NewRevisions returns a table with a row for each service. The row gets a new revision whenever a part
// of the service's status begins, changes or ends; the parts that remain don't say that a part has ended.
// A reader that sees the new revision also sees the change. A change costs O(1), and memory is
// O(services). The table follows t from now on.
func NewRevisions(t *Tables) table.Reader[vip.ServiceKey, vip.ServiceKey] {
	out := table.New(t.Clock, func(k *vip.ServiceKey) vip.ServiceKey { return *k }, nil)
	touch := func(k vip.ServiceKey) { out.Touch(k) } // without a row: the status of no service depends on it
	follow(t.Allocations, func(a *vip.Allocation) { touch(a.Asked.Key) })
	follow(t.Compiled, func(c *pipeline.Compiled) { touch(c.Service.Key) })
	follow(t.Frontends, func(f *vip.Frontend) { touch(f.Service) })
	follow(t.Applied, func(a *reconcile.AppliedFrontend) {
		touch(a.Tried.Value.Service)
		if f := t.Frontends.Row(a.Tried.Value.Key); f != nil && f.Value.Service != a.Tried.Value.Service {
			touch(f.Value.Service)
		}
	})
	follow(t.Overrides, func(s *vip.BackendState) { touch(s.Backend.Service) })
	follow(t.Health, func(h *vip.BackendHealth) { touch(h.Backend.Service) })
	follow(t.Passive, func(h *vip.PassiveHealth) { touch(h.Service) })
	follow(t.Refused, func(r *sources.Refused) { touch(r.Service) })
	if t.Naming != nil {
		follow(t.Naming.Conflicts(), func(c *zone.Conflict) { touch(c.Service) })
		t.Naming.TrackNames(touch)
	}
	// Last, so that it makes a row with the highest revision of each service that is there.
	t.Services.Track(func(before, after *vip.Service) {
		if after == nil {
			out.Delete(before.Key)
		} else {
			out.Set(after.Key)
		}
	})
	return out
}

// follow calls changed with each row of t that is put or deleted. t may be nil.
func follow[K comparable, V any](t table.Reader[K, V], changed func(*V)) {
	if t != nil {
		t.Track(func(before, after *V) { changed(cmp.Or(after, before)) })
	}
}
