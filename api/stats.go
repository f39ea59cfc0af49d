package api

import (
	"cmp"
	"context"
	"net/http"
	"net/netip"
	"slices"
	"time"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/internal/reconcile"
	"github.com/ironvip/ironvip/internal/status"
	"github.com/ironvip/ironvip/vip"
)

func (s *Server) statsRoutes() {
	register(s, operation{method: http.MethodGet, path: v1.PathStats, id: "list-stats", tag: "services", summary: "Read the traffic of every service",
		description: "Connections, bytes and packets from one read of the dataplane's counters. Services without frontends are missing."}, s.listStats)
	register(s, operation{method: http.MethodGet, path: v1.PathServices + "/{namespace}/{name}/stats", id: "service-stats", tag: "services",
		summary: "Read a service's traffic, by frontend and backend"}, s.serviceStats)
}

// countingTime bounds a read of the dataplane's counters. Those of 50,000 backends take a tenth of
// a second.
const countingTime = 20 * time.Second

type statsListOutput struct{ Body v1.StatsList }

// listStats costs O(frontends) and one read of the dataplane.
func (s *Server) listStats(ctx context.Context, _ *struct{}) (*statsListOutput, error) {
	if s.Statistics == nil {
		return nil, unavailable("dataplane with counters")
	}
	ctx, cancel := context.WithTimeout(ctx, countingTime)
	defer cancel()
	totals, err := s.Statistics.Totals(ctx, s.wanted)
	if err != nil {
		return nil, unreadable("read the counters of", err)
	}
	of := map[vip.ServiceKey]reconcile.Traffic{}
	for f, t := range s.counted(totals) {
		sum := of[f.Service]
		sum.Add(t)
		of[f.Service] = sum
	}
	counted := s.Statistics.Counted()
	out := &statsListOutput{Body: v1.StatsList{Items: make([]v1.ServiceTotal, 0, len(of))}}
	keys := make([]vip.ServiceKey, 0, len(of))
	for key := range of {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, compareKeys)
	for _, key := range keys {
		out.Body.Items = append(out.Body.Items, v1.ServiceTotal{Service: key.String(), Traffic: traffic(of[key], counted)})
	}
	return out, nil
}

// wanted reports whether the dataplane should have a frontend.
func (s *Server) wanted(key vip.FrontendKey) bool { return s.Frontends.Row(key) != nil }

// counted yields the desired frontends that the dataplane has, each once, with its traffic.
func (s *Server) counted(totals map[vip.FrontendKey]reconcile.Traffic) func(yield func(*vip.Frontend, reconcile.Traffic) bool) {
	return func(yield func(*vip.Frontend, reconcile.Traffic) bool) {
		for key, f := range s.Frontends.All() {
			t, ok := totals[key]
			if !ok {
				continue
			}
			delete(totals, key) // All may yield a changing row twice
			if !yield(&f, t) {
				return
			}
		}
	}
}

type serviceStatsOutput struct{ Body v1.ServiceStats }

// serviceStats costs O(the service's frontends and backends).
func (s *Server) serviceStats(ctx context.Context, in *ServicePath) (*serviceStatsOutput, error) {
	if s.Statistics == nil {
		return nil, unavailable("dataplane with counters")
	}
	svc := s.tables().Input(in.key(), time.Now())
	if svc.Service == nil {
		return nil, noService(in.key())
	}
	ctx, cancel := context.WithTimeout(ctx, countingTime)
	defer cancel()
	counted := s.Statistics.Counted()
	out := &serviceStatsOutput{Body: v1.ServiceStats{Service: in.key().String(), Frontends: make([]v1.FrontendStats, 0, len(svc.Frontends))}}
	slices.SortFunc(svc.Frontends, func(a, b status.Frontend) int { return vip.CompareFrontendKeys(a.Frontend.Key, b.Frontend.Key) })
	var sum reconcile.Traffic
	for i := range svc.Frontends {
		f := &svc.Frontends[i].Frontend
		row := v1.FrontendStats{Frontend: f.Key.String(), Kind: f.Kind.String(), Port: f.Port, Backends: []v1.BackendStats{}}
		one, there, err := s.Statistics.Breakdown(ctx, f.Key)
		if err != nil {
			return nil, unreadable("read the counters of", err)
		}
		if there {
			sum.Add(one.Traffic)
			t := traffic(one.Traffic, counted)
			row.Traffic = &t
			row.Backends = backendStats(one.Endpoints, counted)
		}
		out.Body.Frontends = append(out.Body.Frontends, row)
	}
	out.Body.Traffic = traffic(sum, counted)
	return out, nil
}

func backendStats(in map[netip.AddrPort]reconcile.Traffic, counted reconcile.Counted) []v1.BackendStats {
	addrs := make([]netip.AddrPort, 0, len(in))
	for a := range in {
		addrs = append(addrs, a)
	}
	slices.SortFunc(addrs, func(a, b netip.AddrPort) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Port(), b.Port()))
	})
	out := make([]v1.BackendStats, 0, len(in))
	for _, a := range addrs {
		out = append(out, v1.BackendStats{Address: endpointID(a), Traffic: traffic(in[a], counted)})
	}
	return out
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
