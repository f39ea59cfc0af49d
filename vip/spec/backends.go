package spec

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

func (b *builder) backends(in []Backend) []vip.Backend {
	if len(in) > MaxBackends {
		b.bad("backends", "split the service", "%d backends are more than %d", len(in), MaxBackends)
		return nil
	}
	out := make([]vip.Backend, 0, len(in))
	for i := range in {
		out = append(out, b.backend(strict.Index("backends", i)+".", &in[i]))
	}
	return out
}

// backend builds one backend; prefix is its path with the dot, or "". The
// address of one that has none worth using is the zero Addr.
func (b *builder) backend(prefix string, w *Backend) vip.Backend {
	out := vip.Backend{Weight: vip.DefaultWeight, State: vip.Ready, Node: w.Node, Zone: w.Zone}
	if a, ok := b.address(prefix+"address", w.Address); ok {
		out.Address = a
	}
	out.Port = b.port(prefix+"port", int(w.Port))
	if w.Weight != nil {
		if *w.Weight < 0 || *w.Weight > vip.MaxWeight {
			b.bad(prefix+"weight", "use 0 to 65535", "%d is out of bounds", *w.Weight)
		} else {
			out.Weight = uint32(*w.Weight)
		}
	}
	if w.State != "" {
		out.State = vip.State(w.State)
		if !slices.Contains([]vip.State{vip.Ready, vip.Drain, vip.Maint}, out.State) {
			b.bad(prefix+"state", oneOf(w.State, []string{"ready", "drain", "maint"}), "%s is not a state", strict.Quote(w.State))
		}
	}
	for _, word := range []struct{ field, value string }{{"node", w.Node}, {"zone", w.Zone}} {
		if len(word.value) > MaxLabelKey || !printable(word.value) || strings.ContainsAny(word.value, " \t") {
			b.bad(prefix+word.field, "", "wants up to %d printable characters without spaces", MaxLabelKey)
		}
	}
	return out
}

// twice reports backends that are the same server: written twice, or once with
// the port that they would have anyway. Out's backends are in the order of in.
func (b *builder) twice(in []Backend, out vip.Service) {
	if len(out.Backends) != len(in) {
		return
	}
	type server struct {
		addr netip.Addr
		port uint16
	}
	first := make(map[server]int, len(in))
	for i, be := range out.Backends {
		if !be.Address.IsValid() {
			continue
		}
		key := server{be.Address, be.Port}
		if j, twice := first[key]; twice {
			b.bad(strict.Index("backends", i), "keep one of them", "%s is that of backends[%d], too", be.ID(), j)
			continue
		}
		first[key] = i
	}
	for i, be := range out.Backends {
		follower, has := first[server{be.Address, 0}]
		if !has || be.Port == 0 {
			continue
		}
		for _, p := range out.Ports {
			if p.TargetPort == be.Port {
				b.bad(strict.Index("backends", max(i, follower)), "keep one of them", "%s is the same server as backends[%d] on port %s",
					out.Backends[max(i, follower)].ID(), min(i, follower), vip.PortKey{Port: p.Port, Protocol: p.Protocol})
				break
			}
		}
	}
}

// wrongFamily reports backends that NAT can't reach from any VIP of the
// service: it doesn't translate between families.
func (b *builder) wrongFamily(in []Backend, families []vip.Family) {
	if len(families) == 0 {
		return
	}
	for i, w := range in {
		a, err := netip.ParseAddr(w.Address)
		if err == nil && !slices.Contains(families, vip.FamilyOf(a.Unmap())) {
			var names []string
			for _, f := range families {
				names = append(names, f.String())
			}
			b.bad(strict.Index("backends", i)+".address", "use a backend of the VIP's family, or add the family to the service",
				"%s is %s and the service's VIP is %s: nat does not translate between families",
				w.Address, vip.FamilyOf(a.Unmap()), strings.Join(names, " and "))
		}
	}
}
