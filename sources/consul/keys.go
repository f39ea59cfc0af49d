package consul

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ironvip/ironvip/sources/draft"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// metaPrefix is the prefix of our metadata keys.
const metaPrefix = "ironvip-"

// definition is a service as the metadata define it.
type definition struct {
	spec.Service
	ports map[string][]string // the lists of portKeys
}

// portKeys are the keys that define the ports. Each other key sets the field of its name.
var portKeys = []string{"port", "protocol", "target-port", "node-port"}

// instanceKeys apply to single instances. The instances need not agree on them.
var instanceKeys = []string{"zone"}

// keyNames are all keys with their prefix, sorted.
var keyNames = func() []string {
	var out []string
	for _, name := range slices.Concat(slices.Collect(maps.Keys(draft.Fields)), portKeys, instanceKeys) {
		out = append(out, metaPrefix+name)
	}
	slices.Sort(out)
	return out
}()

// isOurs reports whether a metadata key is meant for ironvip. Keys with an underscore count too, so
// that this mistake becomes a problem.
func isOurs(key string) bool {
	return strings.HasPrefix(key, metaPrefix) || strings.HasPrefix(key, "ironvip_")
}

// readPorts converts the four keys of ports to the service's ports. Own are the ports of the
// instances, used if ironvip-port is not set. The other keys have one value for all ports, or one
// value for each port.
func (d *definition) readPorts(own []port, bad func(key string, err error)) {
	for _, word := range d.ports["port"] {
		var p spec.Port
		if name, rest, named := strings.Cut(word, "="); named {
			p.Name, word = strings.TrimSpace(name), strings.TrimSpace(rest)
		}
		if number, protocol, with := strings.Cut(word, "/"); with {
			p.Protocol, word = protocol, number
		}
		if err := p.Port.FromTree(draft.Number(word)); err != nil {
			bad("port", err)
			return
		}
		for _, o := range own {
			if o.name == p.Name && p.Name != "" && len(d.ports["target-port"]) == 0 {
				p.TargetPort = spec.PortNumber(o.number)
			}
		}
		d.Ports = append(d.Ports, p)
	}
	if len(d.ports["port"]) == 0 {
		for _, o := range own {
			d.Ports = append(d.Ports, spec.Port{Name: o.name, Port: spec.PortRange{First: o.number}})
		}
	}
	each := func(key string, set func(p *spec.Port, text string) error) {
		values := d.ports[key]
		if len(values) > 1 && len(values) != len(d.Ports) {
			bad(key, vip.Problem{Message: fmt.Sprintf("has %d values for %d ports", len(values), len(d.Ports)), Hint: "write one for all, or one for each, in the order of ironvip-port"})
			return
		}
		for i := range d.Ports {
			if len(values) == 0 {
				return
			}
			if err := set(&d.Ports[i], values[min(i, len(values)-1)]); err != nil {
				bad(key, err)
				return
			}
		}
	}
	each("protocol", func(p *spec.Port, text string) error {
		if p.Protocol != "" && p.Protocol != text {
			return vip.Problem{Message: fmt.Sprintf("says %s of port %s, and ironvip-port says %s", strict.Quote(text), p.Port, p.Protocol), Hint: "keep one of them"}
		}
		p.Protocol = text
		return nil
	})
	each("target-port", func(p *spec.Port, text string) error { return p.TargetPort.FromTree(draft.Number(text)) })
	each("node-port", func(p *spec.Port, text string) error { return p.NodePort.FromTree(draft.Number(text)) })
}

// keyOf returns the key of a field in a service's problem, or "" if no key sets the field.
func keyOf(field string) string {
	name := draft.Name(field)
	if at := strings.IndexAny(name, "[."); at >= 0 {
		name = name[:at]
	}
	if name == "ports" {
		name = "port"
		if _, of, deeper := strings.Cut(field, "]."); deeper && slices.Contains(portKeys, draft.Name(of)) {
			name = draft.Name(of)
		}
	} else if draft.Fields[name] == nil {
		return ""
	}
	return metaPrefix + name
}
