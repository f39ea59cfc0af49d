package compile

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"

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
		})
	}
	slices.SortFunc(s.Backends, compareBackends)
	in := input(s, "192.0.2.10", "2001:db8:f::10")
	in.Allocation.NodePorts = map[vip.PortKey]uint16{{Port: 80, Protocol: vip.TCP}: 30080}
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

func TestProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := inputs(t)
		got, problems := Service(in)
		if len(problems) > 0 {
			t.Fatal(problems)
		}
		external, internal := Policies(in.Service)
		keys := map[vip.FrontendKey]bool{}
		for i := range got {
			f := &got[i]
			keys[f.Key] = true
			policy := policyOf(&in, f)
			if (f.Kind == vip.OnRealServer) != in.Node.RealServer {
				t.Fatalf("%s is %s", f.Key, f.Kind)
			}
			for _, e := range f.Backends {
				if b := backendOf(&in, e); f.Kind != vip.OnRealServer && policy == vip.Local && !isHere(&in, b) {
					t.Fatalf("%s has %s by the policy local, which is elsewhere", f.Key, e.Addr)
				}
				if b := backendOf(&in, e); !b.Serves(f.Port) {
					t.Fatalf("%s has %s, which serves %s", f.Key, e.Addr, b.Ports)
				}
				if vip.FamilyOf(e.Addr.Addr()) != vip.FamilyOf(f.Key.Addr) {
					t.Fatalf("%s has %s", f.Key, e.Addr)
				}
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

// A frontend is usable if and only if its policy allows a backend that is ready or, without ready
// ones, terminating. It then uses only backends of that state.
func checkUsable(t *rapid.T, in *Input, f *vip.Frontend, policy vip.TrafficPolicy) {
	var ready, terminating int
	for i := range in.Service.Backends {
		b := &in.Service.Backends[i]
		if b.Weight == 0 || !b.Serves(f.Port) || vip.FamilyOf(b.Address) != vip.FamilyOf(f.Key.Addr) || policy == vip.Local && !isHere(in, b) {
			continue
		}
		switch b.State {
		case 0, vip.Ready:
			ready++
		case vip.Terminating:
			terminating++
		}
	}
	if want := ready+terminating > 0; f.Usable() != want {
		t.Fatalf("%s usable %t: %d ready, %d terminating are allowed", f.Key, f.Usable(), ready, terminating)
	}
	for _, e := range f.Backends {
		b := backendOf(in, e)
		if e.Weight != 0 && e.Weight != b.Weight {
			t.Fatalf("%s: %s has weight %d of %d", f.Key, e.Addr, e.Weight, b.Weight)
		}
		if ready > 0 && e.Weight > 0 && b.State != 0 && b.State != vip.Ready {
			t.Fatalf("%s: %s is %s and takes new connections beside ready ones", f.Key, e.Addr, b.State)
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
