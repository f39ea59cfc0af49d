package spec

import (
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// ports reads the ports. A service may have none if its whole VIP is for one host.
func (b *builder) ports(in []Port, whole bool) []vip.Port {
	if len(in) == 0 {
		if whole {
			return nil
		}
		b.bad("ports", "write at least one in ports", "a service needs a port")
		return nil
	}
	if len(in) > MaxPorts {
		b.bad("ports", "split the service", "%d ports are more than %d", len(in), MaxPorts)
		return nil
	}
	out := make([]vip.Port, 0, len(in))
	names := map[string]int{}
	for i := range in {
		w, field := &in[i], strict.Index("ports", i)
		p := vip.Port{Name: w.Name}
		p.Protocol = b.protocol(field+".protocol", w.Protocol)
		p.Port, p.LastPort = b.portRange(field+".port", w.Port)
		p.TargetPort = b.port(field+".target_port", int(w.TargetPort))
		if p.TargetPort == 0 && p.LastPort == 0 {
			p.TargetPort = p.Port
		}
		p.NodePort = b.nodePort(field+".node_port", w.NodePort)
		if p.LastPort != 0 && p.NodePort.Wanted() {
			b.bad(field+".node_port", "remove it, or write a port of its own for each that needs a node port",
				"%s is a range, which can't have a node port", p.Key())
		}
		b.ownPorts(field, &p, out)
		if w.Name == "" {
			p.Name = p.Key().String()
		} else if b.label(field+".name", w.Name) {
			if j, taken := names[w.Name]; taken {
				b.bad(field+".name", "give each port its own name", "%q is the name of ports[%d], too", w.Name, j)
			} else {
				names[w.Name] = i
			}
		}
		out = append(out, p)
	}
	return out
}

// ownPorts reports a VIP port or node port that an earlier port of the service has. It compares
// with each, because a service has at most MaxPorts.
func (b *builder) ownPorts(field string, p *vip.Port, earlier []vip.Port) {
	const hint = "change one of the two"
	if p.Protocol == 0 {
		return
	}
	taken, nodePort := p.Port == 0, p.NodePort.Number == 0
	for j := range earlier {
		other, at := &earlier[j], strict.Index("ports", j)
		if other.Protocol != p.Protocol {
			continue
		}
		if !taken && other.Port != 0 && p.Key().Overlaps(other.Key()) {
			taken = true
			if p.Key() == other.Key() {
				b.bad(field+".port", hint, "%s is that of %s, too", p.Key(), at)
			} else {
				b.bad(field+".port", hint, "%s overlaps %s of %s", p.Key(), other.Key(), at)
			}
		}
		if !nodePort && other.NodePort.Number == p.NodePort.Number {
			nodePort = true
			b.bad(field+".node_port", hint, "%s is that of %s, too", vip.PortKey{Port: p.NodePort.Number, Protocol: p.Protocol}, at)
		}
	}
}

// invalidPort is the message for a port number out of bounds.
const invalidPort = "invalid port %d: must be 1 to 65535"

// port checks a number that FromTree has not checked, because a program built the spec.
func (b *builder) port(field string, n int) uint16 {
	if n < 0 || n > 65535 {
		b.bad(field, "", invalidPort, n)
		return 0
	}
	return uint16(n)
}

// portRange is like port for a range; last is 0 for a single port.
func (b *builder) portRange(field string, r PortRange) (first, last uint16) {
	switch {
	case r.IsZero():
		b.bad(field, "give it a port", "a port number is needed")
	case r.Last == 0:
		return b.port(field, r.First), 0
	default:
		if why, hint := r.check(); why != "" {
			b.bad(field, hint, "%d-%d %s", r.First, r.Last, why)
			break
		}
		return uint16(r.First), uint16(r.Last)
	}
	return 0, 0
}

func (b *builder) portNumber(field string, n PortNumber) uint16 { return b.port(field, int(n)) }

func (b *builder) nodePort(field string, n NodePort) vip.NodePort {
	return vip.NodePort{Auto: n.Auto, Number: b.port(field, n.Number)}
}

func (b *builder) protocol(field, text string) vip.Protocol {
	if text == "" {
		return vip.TCP
	}
	var p vip.Protocol
	if err := p.UnmarshalText([]byte(text)); err != nil {
		b.bad(field, strict.OneOf(text, "tcp", "udp", "sctp"), "%s is not a protocol", strict.Quote(text))
		return 0
	}
	return p
}

// writePort returns the spec of a port.
func writePort(p *vip.Port) Port {
	w := Port{Name: p.Name, Protocol: p.Protocol.String(), Port: PortRange{First: int(p.Port), Last: int(p.LastPort)},
		TargetPort: PortNumber(p.TargetPort), NodePort: writeNodePort(p.NodePort)}
	if p.Name == p.Key().String() { // the name of a port without one
		w.Name = ""
	}
	return w
}

func writeNodePort(n vip.NodePort) NodePort { return NodePort{Auto: n.Auto, Number: int(n.Number)} }
