package compile

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

func compareBackends(a, b vip.Backend) int {
	return cmp.Or(a.Address.Compare(b.Address), cmp.Compare(a.Port, b.Port))
}

// inputs draws a service with everything that affects its frontends.
func inputs(t *rapid.T) Input {
	s := service()
	s.ExternalTraffic = rapid.SampledFrom([]vip.TrafficPolicy{0, vip.Cluster, vip.Local}).Draw(t, "external")
	s.InternalTraffic = rapid.SampledFrom([]vip.TrafficPolicy{0, vip.Cluster, vip.Local}).Draw(t, "internal")
	s.Distribution = rapid.SampledFrom([]vip.TrafficDistribution{0, vip.DistributeAny, vip.PreferSameZone, vip.PreferSameNode}).Draw(t, "distribution")
	s.Forward = rapid.SampledFrom([]vip.Forward{vip.ForwardNAT, vip.ForwardDirect}).Draw(t, "forward")
	s.Ports = []vip.Port{
		{Name: "a", Protocol: vip.TCP, Port: 80, TargetPort: 8080, NodePort: vip.NodePort{Auto: rapid.Bool().Draw(t, "node port")}},
		{Name: "b", Protocol: vip.UDP, Port: 100, LastPort: 199},
	}
	addrs := sorted("10.9.0.1", "10.1.0.1", "10.1.0.2", "10.1.0.3", "2001:db8::1", "2001:db8::2")
	s.Backends = nil
	for _, a := range rapid.SliceOfDistinct(rapid.SampledFrom(addrs), func(a netip.Addr) netip.Addr { return a }).Draw(t, "backends") {
		s.Backends = append(s.Backends, vip.Backend{
			Address: a, Weight: uint32(rapid.IntRange(0, 2).Draw(t, "weight")),
			State: rapid.SampledFrom([]vip.State{0, vip.Ready, vip.Drain, vip.Maint, vip.Terminating}).Draw(t, "state"),
			Node:  rapid.SampledFrom([]string{"", "n1", "n2"}).Draw(t, "node"),
			Zone:  rapid.SampledFrom([]string{"", "za", "zb"}).Draw(t, "zone"),

			Ports:    rapid.SampledFrom([]vip.Names{"", "", "a", "a b"}).Draw(t, "ports"),
			ForZones: rapid.SampledFrom([]vip.Names{"", "za", "za zb", "zb"}).Draw(t, "for zones"),
			ForNodes: rapid.SampledFrom([]vip.Names{"", "", "n1", "n2 n3"}).Draw(t, "for nodes"),
			Backup:   rapid.IntRange(0, 3).Draw(t, "backup") == 0,
			Health:   rapid.SampledFrom([]vip.Health{0, 0, vip.Healthy, vip.Unhealthy}).Draw(t, "health"),
		})
	}
	s.PanicThreshold, s.ResetUnhealthy = rapid.SampledFrom([]uint8{0, 0, 1, 50, 100}).Draw(t, "panic threshold"), rapid.Bool().Draw(t, "reset")
	s.SlowStart = rapid.SampledFrom([]vip.Seconds{0, 0, 60}).Draw(t, "slow start")
	slices.SortFunc(s.Backends, compareBackends)
	in := input(s, "192.0.2.10", "2001:db8:f::10")
	in.Allocation.NodePorts = map[vip.PortKey]uint16{{Port: 80, Protocol: vip.TCP}: 30080}
	if rapid.Bool().Draw(t, "checked") {
		rows := map[netip.Addr]*vip.BackendHealth{}
		for _, b := range s.Backends {
			if checks := rapid.SampledFrom([]string{"", "healthy", "unknown", "unhealthy", "unhealthy@a", "healthy@a unhealthy@b"}).Draw(t, "checks"); checks != "" {
				last := b.Address.AsSlice()
				rows[b.Address] = observed(map[byte]string{last[len(last)-1]: checks})(b.Key(s.Key))
			}
		}
		in.Health = func(k vip.BackendKey) *vip.BackendHealth { return rows[k.Address] }
	}
	in.Node = Node{
		Name: rapid.SampledFrom([]string{"n1", "n3"}).Draw(t, "name"), Zone: rapid.SampledFrom([]string{"", "za", "zb"}).Draw(t, "this zone"),
		Addrs: sorted("10.9.0.1", "2001:db8::2"), NodePortAddrs: sorted("10.9.0.1", "2001:db8::2"),
		RealServer: rapid.Bool().Draw(t, "real server"),
	}
	return in
}

// policyOf returns the policy for a frontend's clients.
func policyOf(in *Input, f *vip.Frontend) vip.TrafficPolicy {
	external, internal := Policies(in.Service)
	if f.Key.Audience == vip.InternalClients {
		return internal
	}
	return external
}

// backendOf returns the listed backend of an endpoint. Addresses of these services are distinct.
func backendOf(in *Input, e vip.Endpoint) *vip.Backend {
	i := slices.IndexFunc(in.Service.Backends, func(b vip.Backend) bool { return b.Address == e.Addr.Addr() })
	return &in.Service.Backends[i]
}

// isHere is a naive definition of a backend on this node.
func isHere(in *Input, b *vip.Backend) bool {
	return b.Node == in.Node.Name || b.Node == "" && slices.Contains(in.Node.Addrs, b.Address)
}

// isThisDirector is a naive definition of a backend that a director can't send clients to.
func isThisDirector(in *Input, b *vip.Backend) bool {
	bypassed := in.Service.Forward == vip.ForwardDirect || in.Service.Forward == vip.ForwardTunnel
	return bypassed && !in.Node.RealServer && slices.Contains(in.Node.Addrs, b.Address)
}

func TestProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := inputs(t)
		got, problems := Service(in)
		must.Empty(t, problems)
		external, internal := Policies(in.Service)
		keys := map[vip.FrontendKey]bool{}
		for i := range got {
			f := &got[i]
			keys[f.Key] = true
			policy := policyOf(&in, f)
			must.Equal(t, f.Kind == vip.OnRealServer, in.Node.RealServer, "%s is %s", f.Key, f.Kind)
			for _, e := range f.Backends {
				if b := backendOf(&in, e); f.Kind != vip.OnRealServer && policy == vip.Local && !isHere(&in, b) {
					t.Fatalf("%s has %s by the policy local, which is elsewhere", f.Key, e.Addr)
				}
				if isThisDirector(&in, backendOf(&in, e)) {
					t.Fatalf("%s has %s, which is this host", f.Key, e.Addr)
				}
				if b := backendOf(&in, e); !b.Serves(f.Port) {
					t.Fatalf("%s has %s, which serves %s", f.Key, e.Addr, b.Ports)
				}
				must.Equal(t, vip.FamilyOf(e.Addr.Addr()), vip.FamilyOf(f.Key.Addr), "%s has %s", f.Key, e.Addr)
			}
			if !slices.IsSortedFunc(f.Backends, vip.CompareEndpoints) {
				t.Fatalf("%s: unsorted %v", f.Key, f.Backends)
			}
			if f.Kind == vip.OnRealServer {
				if len(f.Backends) == 0 {
					t.Fatalf("%s without a backend here", f.Key)
				}
				continue
			}
			checkUsable(t, &in, f, policy)
		}
		for i := range got {
			internalKey := got[i].Key
			internalKey.Audience = vip.InternalClients
			if want := got[i].Kind == vip.OnVIP && internal != external; keys[internalKey] != want {
				t.Fatalf("%s has a frontend for internal clients: %t, want %t", got[i].Key, keys[internalKey], want)
			}
		}
	})
}

// isUnhealthy is a naive definition of an unhealthy backend at a port. An unhealthy check of some
// ports counts at those only.
func isUnhealthy(in *Input, b *vip.Backend, port string) bool {
	if b.Health == vip.Unhealthy || in.Health == nil {
		return b.Health == vip.Unhealthy
	}
	if h := in.Health(b.Key(in.Service.Key)); h != nil {
		for _, c := range h.Checks {
			if c.Health == vip.Unhealthy && (c.Ports == "" || slices.Contains(c.Ports.List(), port)) {
				return true
			}
		}
	}
	return false
}

// A frontend is usable if and only if its policy allows a usable backend. It then uses only the
// best: ready ones, else those that terminate, else backups. An unhealthy backend has a weight only
// in panic, and is reset only without.
func checkUsable(t *rapid.T, in *Input, f *vip.Frontend, policy vip.TrafficPolicy) {
	usable, best, unhealthy := 0, 0, 0
	order := func(b *vip.Backend) int { // 4 is best, 0 serves nobody
		out := map[vip.State]int{0: 4, vip.Ready: 4, vip.Terminating: 3}[b.State]
		if out > 0 && b.Backup {
			out -= 2
		}
		return out
	}
	for i := range in.Service.Backends {
		b := &in.Service.Backends[i]
		if b.Weight == 0 || !b.Serves(f.Port) || vip.FamilyOf(b.Address) != vip.FamilyOf(f.Key.Addr) || policy == vip.Local && !isHere(in, b) || isThisDirector(in, b) {
			continue
		}
		if isUnhealthy(in, b, f.Port) {
			unhealthy++
		} else if order(b) > 0 {
			usable, best = usable+1, max(best, order(b))
		}
	}
	panics := false
	for _, e := range f.Backends {
		b := backendOf(in, e)
		if e.Weight > 0 && isUnhealthy(in, b, f.Port) {
			panics = true
		}
	}
	if panics && (in.Service.PanicThreshold == 0 || unhealthy == 0) {
		t.Fatalf("%s sends clients to an unhealthy backend: %v", f.Key, f.Backends)
	}
	if usable > 0 && !f.Usable() {
		t.Fatalf("%s refuses clients: %d usable backends are allowed", f.Key, usable)
	}
	if usable == 0 && f.Usable() && !panics {
		t.Fatalf("%s is usable without a usable backend", f.Key)
	}
	for _, e := range f.Backends {
		b := backendOf(in, e)
		scale := uint32(1)
		if in.Service.SlowStart > 0 {
			scale = vip.SlowStartSteps
		}
		if e.Weight != 0 && uint32(e.Weight) != scale*b.Weight {
			t.Fatalf("%s: %s has weight %d of %d", f.Key, e.Addr, e.Weight, b.Weight)
		}
		if e.Weight > 0 && order(b) < best {
			t.Fatalf("%s: %s is %s (backup %t) and takes new connections beside better ones", f.Key, e.Addr, b.State, b.Backup)
		}
		if e.Reset && (panics || e.Weight > 0 || !in.Service.ResetUnhealthy || !isUnhealthy(in, b, f.Port)) {
			t.Fatalf("%s: %s is reset", f.Key, e.Addr)
		}
		if in.Service.ResetUnhealthy && in.Service.PanicThreshold == 0 && isUnhealthy(in, b, f.Port) && !e.Reset {
			t.Fatalf("%s: %s is not reset", f.Key, e.Addr)
		}
	}
}

// The order of a source's lists has no effect.
func TestOrderMeansNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := inputs(t)
		shuffled := in
		shuffled.Service, shuffled.Allocation = new(*in.Service), new(*in.Allocation)
		shuffled.Service.Backends = rapid.Permutation(in.Service.Backends).Draw(t, "backend order")
		shuffled.Service.Ports = rapid.Permutation(in.Service.Ports).Draw(t, "port order")
		shuffled.Allocation.VIPs = rapid.Permutation(in.Allocation.VIPs).Draw(t, "vip order")
		shuffled.Node.NodePortAddrs = rapid.Permutation(in.Node.NodePortAddrs).Draw(t, "address order")
		a, _ := Service(in)
		b, _ := Service(shuffled)
		if !slices.EqualFunc(a, b, SameFrontend) {
			t.Fatalf("%s\n%s", fmt.Sprint(show(a)), fmt.Sprint(show(b)))
		}
		if x, y := LocalReady(&in), LocalReady(&shuffled); x != y {
			t.Fatalf("%d ready here, or %d", x, y)
		}
	})
}

// Other addresses of the host change nothing that doesn't depend on them.
func TestDependsOnHostIsComplete(t *testing.T) {
	independent := rapid.Custom(inputs).Filter(func(in Input) bool { return !DependsOnHost(in.Service, in.Node.RealServer) })
	rapid.Check(t, func(t *rapid.T) {
		in := independent.Draw(t, "input")
		moved := in
		moved.Node.Addrs = sorted("10.1.0.1", "2001:db8::1")
		moved.Node.NodePortAddrs = moved.Node.Addrs
		a, _ := Service(in)
		b, _ := Service(moved)
		if !slices.EqualFunc(a, b, SameFrontend) {
			t.Fatalf("%v\n%v", show(a), show(b))
		}
	})
}
