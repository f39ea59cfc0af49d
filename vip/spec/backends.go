package spec

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// backends builds the backends of a service with a number of ports; nil if there are too many.
func (b *builder) backends(in []Backend, ports int) []vip.Backend {
	if len(in) > MaxBackends {
		b.bad("backends", "split the service", "%d backends are more than %d", len(in), MaxBackends)
		return nil
	}
	if n := len(in) * ports; n > MaxEndpoints {
		b.bad("backends", "split the service, or use ranges of ports", "%d backends x %d ports are %d, more than %d", len(in), ports, n, MaxEndpoints)
		return nil
	}
	out := make([]vip.Backend, len(in))
	i := 0
	b.within = func() string { return b.spec.pathOf(i) }
	for ; i < len(in); i++ {
		out[i] = b.backend(&in[i])
	}
	b.within = nil
	return out
}

// backend builds one backend. An invalid or missing address becomes the zero Addr. A service may
// have many backends, so field names are built only for problems.
func (b *builder) backend(w *Backend) vip.Backend {
	out := vip.Backend{Weight: vip.DefaultWeight, Group: w.Group, State: vip.Ready, Health: w.Health, Reason: w.Reason, Backup: w.Backup, Node: w.Node, Zone: w.Zone}
	if a, ok := b.address("address", w.Address); ok {
		out.Address = a
	}
	out.Port = b.port("port", int(w.Port))
	if w.Weight != nil {
		out.Weight = uint32(b.number("weight", *w.Weight, 0, vip.MaxWeight, weights))
	}
	if w.State != "" && out.State.UnmarshalText([]byte(w.State)) != nil {
		b.bad("state", strict.OneOf(w.State, "ready", "drain", "maint", "terminating"), "%s is not a state", strict.Quote(w.State))
	}
	if w.Node != "" && !IsWord(w.Node) {
		b.badWord("node")
	}
	if w.Zone != "" && !IsWord(w.Zone) {
		b.badWord("zone")
	}
	out.MaxConnections = backendLimit.read(b, "max_connections", w.MaxConnections)
	out.Ports = b.names("ports", w.Ports, MaxPorts)
	out.ForZones = b.names("for_zones", w.ForZones, MaxHints)
	out.ForNodes = b.names("for_nodes", w.ForNodes, MaxHints)
	return out
}

var backendLimit = limit[uint32](vip.MaxMaxConnections, oneOrNone).(kind[int, uint32])

// weights are the values of a weight.
const weights = "0 to 65535"

// IsWord reports whether s is a valid name of a node, a zone or a port of a service.
func IsWord(s string) bool {
	return s != "" && len(s) <= MaxLabelKey && printable(s) && !strings.ContainsAny(s, " \t")
}

func (b *builder) badWord(field string) {
	b.bad(field, "", "wants up to %d printable characters without spaces", MaxLabelKey)
}

// names reads a list of names without duplicates.
func (b *builder) names(field string, in []string, most int) vip.Names {
	if len(in) > most {
		b.bad(field, "", "%d names are more than %d", len(in), most)
		return ""
	}
	for i, name := range in {
		switch {
		case !IsWord(name):
			b.badWord(strict.Index(field, i))
		case slices.Contains(in[:i], name):
			b.bad(strict.Index(field, i), "remove it", "%s comes twice", strict.Quote(name))
		}
	}
	return vip.NamesOf(in...)
}

// servedPorts reports ports that a backend names and the service doesn't have. It reports nothing
// if the service's own ports are invalid.
func (b *builder) servedPorts(in []Backend, ports []vip.Port) {
	names := make([]string, len(ports))
	for i := range ports {
		if ports[i].Port == 0 || ports[i].Protocol == 0 {
			return
		}
		names[i] = ports[i].Name
	}
	for i := range in {
		for j, name := range in[i].Ports {
			if name == "" || len(names) == 0 || slices.Contains(names, name) {
				continue
			}
			hint := "the service's ports are " + strings.Join(names[:min(len(names), 10)], ", ")
			if near := strict.Nearest(name, names); near != "" {
				hint = fmt.Sprintf("did you mean %q? %s", near, hint)
			}
			b.bad(strict.Index(b.spec.pathOf(i)+".ports", j), hint, "the service has no port %s", strict.Quote(name))
		}
	}
}

// twice reports backends that are the same server: defined twice, or once more with the port that
// they have by default. The backends of out have the order of the spec's.
func (b *builder) twice(out vip.Service) {
	type server struct {
		addr netip.Addr
		port uint16
	}
	first := make(map[server]int, len(out.Backends))
	for i, be := range out.Backends {
		if !be.Address.IsValid() {
			continue
		}
		key := server{be.Address, be.Port}
		if j, twice := first[key]; twice {
			b.bad(b.spec.pathOf(i), "keep one of them", "%s is that of %s, too", be.ID(), b.spec.pathOf(j))
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
			if p.TargetPort == be.Port && be.Serves(p.Name) && out.Backends[follower].Serves(p.Name) {
				b.bad(b.spec.pathOf(max(i, follower)), "keep one of them", "%s is the same server as %s on port %s",
					out.Backends[max(i, follower)].ID(), b.spec.pathOf(min(i, follower)), p.Key())
				break
			}
		}
	}
}

// wrongFamily reports backends that no VIP of the service can reach, because no forwarding method
// translates between families. families are those of the VIP, if known.
func (b *builder) wrongFamily(in []Backend, forward vip.Forward, families []vip.Family) {
	if len(families) == 0 || forward == 0 {
		return
	}
	for i, w := range in {
		a, err := netip.ParseAddr(w.Address)
		if err == nil && !slices.Contains(families, vip.FamilyOf(a.Unmap())) {
			b.bad(b.spec.pathOf(i)+".address", "use a backend of the VIP's family, or add the family to the service",
				"%s is %s and the service's VIP is %s: %s does not translate between families",
				w.Address, vip.FamilyOf(a.Unmap()), familyNames(families), forward)
		}
	}
}

func familyNames(families []vip.Family) string {
	names := make([]string, len(families))
	for i, f := range families {
		names[i] = f.String()
	}
	return strings.Join(names, " and ")
}
