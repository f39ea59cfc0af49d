package api

import (
	"iter"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ironvip/ironvip/internal/pipeline/compile"
	"github.com/ironvip/ironvip/internal/status"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/vip"
)

// tally contains the metrics of one service.
type tally struct {
	source string
	state  status.State
	// Backends by their effective state, including those that are removed and still drain, and how
	// many of them accept new connections.
	ready, drain, maint, usable int
}

// tallies yields the tally of each service once. It doesn't read the status of healthy services,
// usually most of them.
func (s *Server) tallies() iter.Seq2[vip.ServiceKey, tally] {
	return func(yield func(vip.ServiceKey, tally) bool) {
		rows := make(map[vip.ServiceKey]*table.Row[vip.Service], s.Services.Len())
		for key := range s.Services.All() {
			if row := s.Services.Row(key); row != nil {
				rows[key] = row
			}
		}
		// The states are read after the rows, so that a newly added service doesn't count as
		// healthy.
		states, leave := s.unhealthy.notHealthy()
		for key, row := range rows {
			n := len(row.Value.Backends)
			t := tally{source: row.Value.Source, state: status.Healthy, ready: n, usable: n}
			state, unwell := states[key]
			if _, leaves := leave[key]; unwell || leaves {
				in := s.tables().Input(key, time.Time{})
				if in.Service == nil {
					continue
				}
				t = tallyOf(&in)
				if unwell {
					t.state = state
				}
			}
			if !yield(key, t) {
				return
			}
		}
	}
}

// tallyOf counts the backends of a service. It sets the state to Healthy.
func tallyOf(in *status.Input) tally {
	t := tally{source: in.Service.Source, state: status.Healthy, drain: len(removed(in))}
	for i := range in.Service.Backends {
		b := &in.Service.Backends[i]
		switch compile.EffectiveState(in.Key, b, in.Override) {
		case vip.Ready:
			t.ready++
			if b.Weight > 0 {
				t.usable++
			}
		case vip.Drain:
			t.drain++
		case vip.Maint:
			t.maint++
		}
	}
	return t
}

func (c *tableCollector) services(gauge func(*prometheus.Desc, float64, ...string)) {
	type kind struct {
		source string
		state  status.State
	}
	count := map[kind]int{}
	for key, t := range c.s.tallies() {
		count[kind{t.source, t.state}]++
		service := key.String()
		gauge(descBackends, float64(t.ready), service, vip.Ready.String())
		gauge(descBackends, float64(t.drain), service, vip.Drain.String())
		gauge(descBackends, float64(t.maint), service, vip.Maint.String())
		gauge(descUsable, float64(t.usable), service)
	}
	for k, n := range count {
		gauge(descServices, float64(n), k.source, string(k.state))
	}
}
