//go:build linux

package scenario

import (
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/ironvip/ironvip/health"
	"github.com/ironvip/ironvip/health/probe"
	"github.com/ironvip/ironvip/pipeline"
	"github.com/ironvip/ironvip/vip"
)

// verdicts is a health.Store that outlives the director's agent.
type verdicts struct {
	mu   sync.Mutex
	rows map[string]health.Row
}

// Write implements health.Store.
func (v *verdicts) Write(put map[string]health.Row, remove []string) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	for name, row := range put {
		v.rows[name] = row
	}
	for _, name := range remove {
		delete(v.rows, name)
	}
	return nil
}

// All implements health.Store.
func (v *verdicts) All() (map[string]health.Row, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	out := map[string]health.Row{}
	for name, row := range v.rows {
		out[name] = row
	}
	return out, nil
}

// newHealth returns the health checks of a director, with the agent's default check. Without paths,
// Mark is nil.
func (h *hub) newHealth(tables pipeline.Tables, mark func(vip.ProbePath) (uint32, error)) *health.Stage {
	o := health.Options{
		Rules:    health.Rules{Default: true},
		Services: tables.Services, Health: tables.Health, Results: probe.NewResults(tables.Clock), Store: h.verdicts,
	}
	if mark != nil {
		o.Allocations, o.Complete = tables.Allocations, tables.ProbePaths.Initializer()
	}
	o.Prober = probe.New(probe.Options{Results: o.Results, Paths: tables.ProbePaths, Mark: mark})
	return health.New(o)
}

// checkPort is the port of the servers that checked probes.
const checkPort = 7091

// checked is a service whose backends are probed at a port of their own, so that a scenario decides
// what a probe finds while the backend goes on serving. On a busy host, only a long timeout is
// evidence: the first result decides, and a late answer would be one.
func checked(fields, backends string) string {
	return service("web", bothPorts, backends, `scheduler = "rr"`, fields,
		fmt.Sprintf(`health = { type = "http", port = %d, interval = "200ms", fast_interval = "100ms", timeout = "5s" }`, checkPort))
}

// weighted is checked with a scheduler with weights.
func weighted(fields, backends string) string {
	return strings.Replace(checked(fields, backends), `"rr"`, `"wrr"`, 1)
}

const third = `{ address = "{backend3}" }`

// checkServer answers the probes of one place.
type checkServer struct {
	server http.Server
}

// answers starts a server for probes that answers with a status. It replaces the server that the place has.
func answers(p place, status int) step {
	return func(r *run) error {
		if err := refuses(p)(r); err != nil {
			return err
		}
		s := &checkServer{}
		s.server.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
		l := r.nodes[p].For(r).Listen(netip.AddrPortFrom(r.addr(p, r.family), checkPort))
		served := make(chan struct{})
		go func() { defer close(served); s.server.Serve(l) }()
		r.Cleanup(func() { s.server.Close(); <-served })
		r.probed[p] = s
		return nil
	}
}

// refuses ends the server for probes of a place: its connections are refused.
func refuses(p place) step {
	return func(r *run) error {
		if s := r.probed[p]; s != nil {
			delete(r.probed, p)
			return s.server.Close()
		}
		return nil
	}
}

// observed waits until a check of the backend at a place has a result.
func observed(p place, want vip.Health) step {
	return eventually(func(r *run) error {
		row, _, ok := r.host.health.Get(vip.BackendKey{Service: key("web"), Address: r.addr(p, r.family)})
		if !ok || !slices.ContainsFunc(row.Checks, func(c vip.CheckResult) bool { return c.Health == want }) {
			return fmt.Errorf("%s is %v (%v)", p, row.Checks, ok)
		}
		return nil
	})
}

// takes waits until exactly these backends of the service get new connections.
func takes(places ...place) step {
	return func(r *run) error {
		return until(r, func() error {
			return r.host.settled(key("web"), func(f *vip.Frontend) bool {
				n := 0
				for _, e := range f.Backends {
					if e.Weight > 0 {
						n++
					}
				}
				return n == len(places) && !slices.ContainsFunc(places, func(p place) bool {
					return !slices.ContainsFunc(f.Backends, func(e vip.Endpoint) bool { return e.Weight > 0 && e.Addr.Addr() == r.addr(p, r.family) })
				})
			})
		})
	}
}

// failing waits until a check of the backend at a place has failed with a reason that contains a
// text.
func failing(p place, reason string) step {
	return eventually(func(r *run) error {
		row, _, _ := r.host.health.Get(vip.BackendKey{Service: key("web"), Address: r.addr(p, r.family)})
		if !slices.ContainsFunc(row.Checks, func(c vip.CheckResult) bool {
			return c.Health == vip.Unhealthy && strings.Contains(c.Reason, reason)
		}) {
			return fmt.Errorf("%s is %v, want unhealthy with %q", p, row.Checks, reason)
		}
		return nil
	})
}

// losesVIP stops a real server from taking packets for the VIP of a service; getsVIP ends that. The agent of the real
// server would restore its route at once, so another one comes before it.
func losesVIP(p place) step { return vipOf(p, "add") }
func getsVIP(p place) step  { return vipOf(p, "del") }

func vipOf(p place, change string) step {
	return func(r *run) error {
		_, at, err := r.at("web")
		if err == nil && r.dataplane != userspace {
			r.nodes[p].For(r).Run("ip", "route", change, "blackhole", at.Addr().String(), "table", "local", "metric", "1")
		}
		return err
	}
}

// probedAtVIP is a service without a port for UDP, with frequent checks at the VIP. On a busy host,
// only a long timeout is evidence.
func probedAtVIP(forward string) string {
	return service("web", `{ port = 7080 }`, firstTwo, `scheduler = "rr"`, fmt.Sprintf("forward = %q", forward),
		`health = { type = "tcp", interval = "200ms", fast_interval = "100ms", timeout = "5s", fall = 1 }`)
}

// lostVIP returns the steps for backends that serve the VIP only. Their own addresses refuse
// connections.
func lostVIP(forward string) []step {
	return []step{
		realServers(b1, b2),
		put(probedAtVIP(forward)),
		serveVIP("web", b1, b2),
		observed(b1, vip.Healthy), observed(b2, vip.Healthy),
		takes(b1, b2), ask(client, "web", 4, by(counts{b1: 2, b2: 2})),
		losesVIP(b1),
		failing(b1, "as clients, at "),
		observed(b2, vip.Healthy),
		takes(b2), ask(client, "web", 3, only(b2)),
		getsVIP(b1),
		observed(b1, vip.Healthy),
		takes(b1, b2), ask(client, "web", 4, by(counts{b1: 2, b2: 2})),
	}
}

// The effects of health checks on direct routing and tunnels.
var pathChecks = []scenario{
	{name: "a backend of direct routing loses its VIP", shows: []*feature{healthChecks, dr}, families: both, isolated: true, steps: lostVIP("dr")},
	{name: "a backend of a tunnel loses its VIP", shows: []*feature{healthChecks, tunnel}, isolated: true, modules: []string{"ipip"}, steps: lostVIP("tunnel")},
	{name: "a backend of an IPv6 tunnel loses its VIP", shows: []*feature{healthChecks, tunnel6}, families: onlyIPv6, isolated: true, modules: []string{"ip6_tunnel"}, steps: lostVIP("tunnel")},
}

// The effects of health checks. The results of probes and their rules are tested in health.
var checks = []scenario{
	{
		name: "a backend fails and recovers", shows: []*feature{healthChecks}, families: both,
		steps: []step{
			answers(b1, 200), answers(b2, 204),
			put(checked("", first)),
			hold("x", client, "web", only(b1)),
			put(checked("", firstTwo)),
			ask(client, "web", 4, by(counts{b1: 2, b2: 2})),
			answers(b1, 503),
			takes(b2), ask(client, "web", 3, only(b2)),
			held("x", only(b1)),
			answers(b1, 200),
			takes(b1, b2), ask(client, "web", 4, by(counts{b1: 2, b2: 2})),
		},
	},
	{
		name: "connections of a failed backend are reset", shows: []*feature{resetUnhealthy}, families: both,
		steps: []step{
			answers(b1, 200), answers(b2, 200),
			put(checked(`on_unhealthy = "reset"`, first)),
			hold("x", client, "web", only(b1)),
			put(checked(`on_unhealthy = "reset"`, firstTwo)),
			refuses(b1),
			ended("x"),
			ask(client, "web", 2, only(b2)),
		},
	},
	{
		name: "panic threshold", shows: []*feature{panicThreshold}, families: both,
		steps: []step{
			answers(b1, 200), answers(b2, 200), answers(b3, 200),
			put(checked("panic_threshold = 50", firstTwo+","+third)),
			refuses(b1),
			takes(b2, b3), ask(client, "web", 4, by(counts{b2: 2, b3: 2})),
			refuses(b2), // one of three is below half
			takes(b1, b2, b3), ask(client, "web", 3, by(counts{b1: 1, b2: 1, b3: 1})),
		},
	},
	{
		name: "backups", shows: []*feature{backups}, families: both,
		steps: []step{
			answers(b1, 200), answers(b2, 200), answers(b3, 200),
			put(checked("", firstTwo+`, { address = "{backend3}", backup = true }`)),
			ask(client, "web", 4, by(counts{b1: 2, b2: 2})),
			refuses(b1),
			takes(b2), ask(client, "web", 2, only(b2)),
			refuses(b2),
			takes(b3), ask(client, "web", 2, only(b3)),
		},
	},
	{
		name: "a backend that recovers starts slowly", shows: []*feature{slowStart}, families: both,
		steps: []step{
			answers(b1, 200), answers(b2, 200), answers(b3, 200),
			put(weighted(`slow_start = "1h"`, firstTwo)),
			observed(b1, vip.Healthy), observed(b2, vip.Healthy),
			ask(client, "web", 4, by(counts{b1: 2, b2: 2})), // not at the start
			refuses(b2),
			takes(b1), ask(client, "web", 3, only(b1)),
			answers(b2, 200),
			takes(b1, b2), eventually(ask(client, "web", 11, by(counts{b1: 10, b2: 1}))),
			ask(client, "web", 80, onAverage(counts{b1: 10, b2: 1})),
			put(weighted(`slow_start = "1h"`, firstTwo+","+third)), // b3 is new
			takes(b1, b2, b3), eventually(ask(client, "web", 12, by(counts{b1: 10, b2: 1, b3: 1}))),
			restart(),
			ask(client, "web", 6, by(counts{b1: 2, b2: 2, b3: 2})),
		},
	},
}
