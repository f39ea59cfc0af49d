package pipeline

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/pipelinetest"
	"github.com/ironvip/ironvip/vip"
)

// oracle computes the expected frontends in the simplest way: all of them again after every step.
type oracle struct {
	rows map[vip.FrontendKey]oracleRow
}

type oracleRow struct {
	service vip.ServiceKey
	drain   time.Duration
	live    map[netip.AddrPort]uint32
	leaving map[netip.AddrPort]time.Time
}

// step updates the oracle to a world's inputs.
func (o *oracle) step(w *world) {
	now := time.Now()
	next := map[vip.FrontendKey]oracleRow{}
	for k, s := range w.Services.All() {
		granted, _, _ := w.Allocations.Get(k)
		if slices.ContainsFunc(s.Ports, func(p vip.Port) bool { return p.Protocol == pipelinetest.UnknownProtocol }) {
			continue
		}
		for _, p := range s.Ports {
			live := map[netip.AddrPort]uint32{}
			for _, b := range s.Backends {
				weight := b.Weight
				state := b.State
				if word, _, ok := w.Overrides.Get(vip.OverrideKey{BackendKey: vip.BackendKey{Service: k, Address: b.Address}}); ok {
					state = word.State
				}
				if state != vip.Ready {
					weight = 0
				}
				if weight > 0 || p.Protocol != vip.UDP {
					live[netip.AddrPortFrom(b.Address, p.TargetPort)] = weight
				}
			}
			listen := map[netip.AddrPort]bool{netip.AddrPortFrom(granted.VIPs[0], p.Port): true}
			if host, _, ok := w.Host.Get(struct{}{}); ok && p.NodePort.Wanted() {
				for _, a := range host.Addrs {
					listen[netip.AddrPortFrom(a.Prefix.Addr(), granted.NodePorts[portKey(p)])] = true
				}
			}
			for at := range listen {
				key := vip.FrontendKey{Addr: at.Addr(), Port: at.Port(), Protocol: p.Protocol}
				next[key] = oracleRow{service: k, drain: s.DrainTimeout, live: live, leaving: map[netip.AddrPort]time.Time{}}
			}
		}
	}
	for key, was := range o.rows {
		if key.Protocol == vip.UDP {
			continue
		}
		is, wanted := next[key]
		if !wanted {
			is = oracleRow{service: was.service, drain: was.drain, leaving: map[netip.AddrPort]time.Time{}}
		}
		keep := func(a netip.AddrPort, until time.Time) {
			if _, lives := is.live[a]; !lives && until.After(now) {
				is.leaving[a] = until
			}
		}
		for a := range was.live {
			keep(a, now.Add(is.drain))
		}
		for a, until := range was.leaving {
			keep(a, until)
		}
		if wanted || len(is.leaving) > 0 {
			next[key] = is
		}
	}
	o.rows = next
}

// show formats rows so that two lists of them can be compared.
func (o *oracle) show() map[string]string {
	out := map[string]string{}
	for key, row := range o.rows {
		endpoints := map[string]string{}
		for a, weight := range row.live {
			endpoints[a.String()] = fmt.Sprint(weight)
		}
		for a, until := range row.leaving {
			endpoints[a.String()] = "leaving in " + time.Until(until).String()
		}
		out[key.String()] = fmt.Sprint(row.service, endpoints)
	}
	return out
}

func showWorld(w *world) map[string]string {
	out := map[string]string{}
	for key, f := range w.Frontends.All() {
		endpoints := map[string]string{}
		for _, e := range f.Backends {
			endpoints[e.Addr.String()] = fmt.Sprint(e.Weight)
			if e.IsLeaving() && e.Weight == 0 {
				endpoints[e.Addr.String()] = "leaving in " + time.Until(e.Leaving.Time()).String()
			}
		}
		out[key.String()] = fmt.Sprint(f.Service, endpoints)
	}
	return out
}

// drawService returns a service that is likely to differ a little from another one with its name.
func drawService(t *rapid.T, name string) vip.Service {
	var backends []string
	for i := range 4 {
		if rapid.Bool().Draw(t, "has") {
			backends = append(backends, fmt.Sprintf("10.0.0.%d", i+1))
		}
	}
	s := service(name, backends)
	for i := range s.Backends {
		s.Backends[i].Weight = rapid.Uint32Range(0, 2).Draw(t, "weight")
		s.Backends[i].State = rapid.SampledFrom([]vip.State{vip.Ready, vip.Ready, vip.Drain}).Draw(t, "state")
	}
	if rapid.Bool().Draw(t, "second port") {
		port(443)(&s)
	}
	for i := range s.Ports {
		s.Ports[i].Protocol = rapid.SampledFrom([]vip.Protocol{vip.TCP, vip.TCP, vip.UDP}).Draw(t, "protocol")
		s.Ports[i].NodePort.Auto = rapid.Bool().Draw(t, "node port")
	}
	s.DrainTimeout = time.Duration(rapid.SampledFrom([]int{0, 10, 60}).Draw(t, "drain")) * time.Second
	if rapid.IntRange(0, 9).Draw(t, "unsupported") == 0 {
		unsupported(&s)
	}
	return s
}

// Frontends equal those of a naive oracle after any sequence of changes to services, overrides and
// the host, with drains under way and restarts of the agent.
func TestFrontendsAreWhatTheOracleSays(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		// Not a *testing.T, because rapid would use its deadline, which a bubble doesn't have.
		rapid.Check(struct{ rapid.TB }{t}, func(t *rapid.T) {
			w := newWorld(t, nil).run()
			o := &oracle{}
			names := rapid.SampledFrom([]string{"a", "b", "c"})
			for range rapid.IntRange(1, 25).Draw(t, "steps") {
				switch op := rapid.IntRange(0, 9).Draw(t, "op"); op {
				case 0, 1, 2, 3:
					w.put(drawService(t, names.Draw(t, "service")))
				case 4:
					w.remove(names.Draw(t, "service"))
				case 5:
					backend := vip.BackendKey{
						Service: key(names.Draw(t, "service")),
						Address: netip.AddrFrom4([4]byte{10, 0, 0, byte(rapid.IntRange(1, 4).Draw(t, "backend"))}),
					}
					if rapid.Bool().Draw(t, "set") {
						w.Overrides.Set(vip.BackendState{Backend: backend, State: rapid.SampledFrom([]vip.State{vip.Ready, vip.Drain, vip.Maint}).Draw(t, "word")})
					} else {
						w.Overrides.Delete(vip.OverrideKey{BackendKey: backend})
					}
					w.put()
				case 6:
					var prefixes []string
					for _, p := range []string{"10.9.0.1/24", "10.9.0.2/24"} {
						if rapid.Bool().Draw(t, p) {
							prefixes = append(prefixes, p)
						}
					}
					w.Host.Set(hostAddrs(prefixes...))
					w.put()
				case 7, 8:
					w.pass(time.Duration(rapid.IntRange(1, 70).Draw(t, "seconds")) * time.Second)
				case 9:
					w = restart(t, w)
				}
				o.step(w)
				must.NoDiff(t, cmp.Diff(o.show(), showWorld(w)), "frontends (-oracle +stage)")
				if k, former := w.former(); former != nil {
					t.Fatalf("the compiled row of %s keeps a former row of %s", k, former.Value.Key)
				}
			}
			w.stop()
		})
	})
}

// restart ends an agent and starts another one with the same inputs.
func restart(t *rapid.T, w *world) *world {
	w.stop()
	again := newWorld(t, w)
	for _, s := range w.Services.All() {
		again.Services.Set(s)
	}
	for _, s := range w.Overrides.All() {
		again.Overrides.Set(s)
	}
	for _, s := range maps.Collect(w.Host.All()) {
		again.Host.Set(s)
	}
	again.run().put()
	return again
}
