package spec

import (
	"net/netip"
	"reflect"

	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// thisHost is the only backend of a service with forward host: whichever host looks at it.
var thisHost = vip.Backend{Address: netip.AddrFrom4([4]byte{127, 0, 0, 1}), Weight: vip.DefaultWeight}

// onHost completes a service with forward host, and reports settings without an effect: each host gives the VIP to its own
// programs, and their packets stay as they are. Without a stated check, the first TCP port is probed.
func (b *builder) onHost(s *Service, out *vip.Service) {
	var none, usual Service
	plain := vip.Service{Relay: &vip.ProxySettings{}}
	given, unset, built, stated := reflect.ValueOf(s).Elem(), reflect.ValueOf(&none).Elem(), reflect.ValueOf(&plain).Elem(), reflect.ValueOf(&usual).Elem()
	for i := range Fields {
		f := &Fields[i]
		if f.Host || f.in == nil {
			continue
		}
		v := given.FieldByIndex(f.in)
		if v.IsZero() {
			continue
		}
		(&builder{}).build(f, unset, built) // the default
		f.write(built, stated)
		if !reflect.DeepEqual(v.Interface(), stated.FieldByIndex(f.in).Interface()) {
			b.bad(f.Key, "remove it", "has no effect with forward host: the programs of the host that has the VIP serve the clients")
		}
	}
	for i := range out.Ports {
		p, field := &out.Ports[i], strict.Index("ports", i)
		if p.NodePort.Wanted() {
			b.bad(field+".node_port", "remove it", "forward host needs none: the program listens on the host's own addresses, too")
		}
		if p.TargetPort != p.Port && p.TargetPort != 0 {
			b.bad(field+".target_port", "remove it", "forward host does not change the port: %d is not that of %s", p.TargetPort, p.Key())
		}
	}
	out.Backends = []vip.Backend{thisHost}
	if out.Check == nil && s.Health == nil {
		out.Check = b.healthCheck("health", &HealthCheck{Type: hostCheck(out.Ports).String()})
	}
}

// hostCheck returns the type of the check that a service with forward host has by default.
func hostCheck(ports []vip.Port) vip.CheckType {
	for _, p := range ports {
		if p.Protocol == vip.TCP && p.LastPort == 0 {
			return vip.CheckTCP
		}
	}
	return vip.CheckNone
}
