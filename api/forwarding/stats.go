package forwarding

import (
	"context"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"github.com/ironvip/ironvip/api/request"
	"github.com/ironvip/ironvip/api/server"
	"github.com/ironvip/ironvip/api/status"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/vip"
)

// countingTime bounds a read of the dataplane's counters. The counters of 50,000 backends take a
// tenth of a second.
const countingTime = 20 * time.Second

var statsOrder = request.Order[vip.ServiceKey]{List: "stats", Compare: vip.ServiceKey.Compare}

// listStats costs O(frontends) and one read of the dataplane per page.
func (h *Handlers) listStats(ctx context.Context, in *request.LongPaging) (out v1.StatsList, err error) {
	of, err := h.serviceTotals(ctx)
	if err != nil {
		return out, unreadable("read the counters of", err)
	}
	counted := h.Statistics.Counted()
	out.Items, out.Next, err = request.Page(request.Paging(*in), statsOrder, maps.Keys(of), func(key vip.ServiceKey) (v1.ServiceTotal, bool) {
		return v1.ServiceTotal{Service: key.String(), Traffic: traffic(of[key], counted)}, true
	})
	return out, err
}

// serviceTotals reads the traffic of every service, at a cost of O(frontends).
func (h *Handlers) serviceTotals(ctx context.Context) (map[vip.ServiceKey]reconcile.Traffic, error) {
	totals, err := h.Totals(ctx)
	if err != nil {
		return nil, err
	}
	of := make(map[vip.ServiceKey]reconcile.Traffic, h.Tables.Services.Len())
	for key, f := range h.Tables.Frontends.All() { // without traffic, a dataplane may report nothing
		sum := of[f.Service]
		sum.Add(totals[key])
		of[f.Service] = sum
		delete(totals, key) // All may yield a changing row twice
	}
	return of, nil
}

// Totals reads the traffic of every frontend that the dataplane should have. Frontends without traffic may be missing.
func (h *Handlers) Totals(ctx context.Context) (map[vip.FrontendKey]reconcile.Traffic, error) {
	ctx, cancel := context.WithTimeout(ctx, countingTime)
	defer cancel()
	return h.Statistics.Totals(ctx, func(key vip.FrontendKey) bool { return h.Frontends.Row(key) != nil })
}

// serviceStats costs O(the service's frontends and backends).
func (h *Handlers) serviceStats(ctx context.Context, in *request.ServicePath) (v1.ServiceStats, error) {
	out := v1.ServiceStats{Service: in.Key().String(), Frontends: []v1.FrontendStats{}}
	svc := h.Tables.Input(in.Key(), time.Now())
	if svc.Service == nil {
		return out, request.NoService(in.Key())
	}
	ctx, cancel := context.WithTimeout(ctx, countingTime)
	defer cancel()
	counted := h.Statistics.Counted()
	slices.SortFunc(svc.Frontends, func(a, b status.Frontend) int { return vip.CompareFrontendKeys(a.Frontend.Key, b.Frontend.Key) })
	var sum reconcile.Traffic
	for i := range svc.Frontends {
		f := &svc.Frontends[i].Frontend
		row := v1.FrontendStats{Frontend: f.Key.String(), Kind: f.Kind.String(), Port: f.Port}
		one, there, err := h.Statistics.Breakdown(ctx, f.Key)
		if err != nil {
			return out, unreadable("read the counters of", err)
		}
		if there {
			sum.Add(one.Traffic)
			t := traffic(one.Traffic, counted)
			row.Traffic = &t
		}
		addrs := slices.SortedFunc(maps.Keys(one.Endpoints), netip.AddrPort.Compare)
		row.Backends = request.Convert(addrs, func(a netip.AddrPort) v1.BackendStats {
			return v1.BackendStats{Address: request.EndpointID(a), Traffic: traffic(one.Endpoints[a], counted)}
		})
		out.Frontends = append(out.Frontends, row)
	}
	out.Traffic = traffic(sum, counted)
	return out, nil
}

// backendConnections costs O(the service's frontends and backends).
func (h *Handlers) backendConnections(ctx context.Context, in *request.BackendPath) (out v1.BackendConnections, err error) {
	key, err := in.Existing(h.Tables.Services)
	if err != nil {
		return out, err
	}
	out = v1.BackendConnections{Service: key.Service.String(), Backend: key.ID(), Frontends: []v1.FrontendConnections{}}
	svc := h.Tables.Input(key.Service, time.Now())
	if svc.Service == nil {
		return out, request.NoService(key.Service)
	}
	i := slices.IndexFunc(svc.Service.Backends, func(b vip.Backend) bool { return b.Key(key.Service) == key })
	if i >= 0 {
		out.State = svc.StateOf(&svc.Service.Backends[i]).String()
	}
	// at returns the position of the backend's endpoint of a frontend, or -1.
	at := func(f *vip.Frontend) int {
		if i < 0 {
			return slices.IndexFunc(f.Backends, func(e vip.Endpoint) bool {
				return e.IsLeaving() && e.Addr.Addr() == key.Address && (key.Port == 0 || e.Addr.Port() == key.Port)
			})
		}
		p := slices.IndexFunc(svc.Service.Ports, func(p vip.Port) bool { return p.Name == f.Port })
		if p < 0 {
			return -1
		}
		addr := svc.Service.Backends[i].Endpoint(svc.Service.Ports[p].TargetPort)
		return slices.IndexFunc(f.Backends, func(e vip.Endpoint) bool { return e.Addr == addr })
	}
	ctx, cancel := context.WithTimeout(ctx, countingTime)
	defer cancel()
	slices.SortFunc(svc.Frontends, func(a, b status.Frontend) int { return vip.CompareFrontendKeys(a.Frontend.Key, b.Frontend.Key) })
	found := i >= 0
	for j := range svc.Frontends {
		f := &svc.Frontends[j].Frontend
		if f.Kind == vip.OnRealServer {
			return out, server.Refuse(http.StatusServiceUnavailable, v1.CodeUnavailable, "connections not known on a real server: the host's own listener has them", "ask a director")
		}
		own := at(f)
		if own < 0 {
			continue
		}
		found = true
		open, err := h.Connections.Connections(ctx, f.Key)
		if err != nil {
			return out, unreadable("count the connections of", err)
		}
		if n := open[f.Backends[own].Addr]; n > 0 {
			out.Connections += uint64(n)
			out.Frontends = append(out.Frontends, v1.FrontendConnections{Frontend: f.Key.String(), Connections: uint64(n)})
		}
	}
	if !found {
		return out, request.NoBackend(key)
	}
	return out, nil
}

// traffic converts t to the API's form, without values that are not counted.
func traffic(t reconcile.Traffic, counted reconcile.Counted) v1.Traffic {
	volume := func(v reconcile.Volume) v1.Volume {
		out := v1.Volume{Bytes: v.Bytes}
		if counted.Packets {
			out.Packets = &v.Packets
		}
		return out
	}
	out := v1.Traffic{Connections: t.Connections, Active: t.Active, In: volume(t.In), Out: volume(t.Out)}
	if counted.Inactive {
		out.Inactive = &t.Inactive
	}
	if counted.Rates {
		out.Rates = &v1.Rates{Connections: t.Rates.Connections, In: volume(t.Rates.In), Out: volume(t.Rates.Out)}
	}
	return out
}
