package consul

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// metaPrefix is the prefix of our metadata keys.
const metaPrefix = "ironvip-"

// draft is a service as the metadata define it.
type draft struct {
	spec.Service
	ports, protocols, targets, nodePorts []string
}

// metaKey is one metadata key.
type metaKey struct {
	field string // of spec.Service, as in its problems
	read  func(d *draft, text string) error
}

// metaKeys are all keys without their prefix. docs/consul.md has a row for each.
var metaKeys = map[string]metaKey{
	"name":                   {"name", text(func(d *draft) *string { return &d.Name })},
	"namespace":              {"namespace", text(func(d *draft) *string { return &d.Namespace })},
	"labels":                 {"labels", readLabels},
	"pool":                   {"pool", text(func(d *draft) *string { return &d.Pool })},
	"vips":                   {"vips", list(func(d *draft) *[]string { return &d.VIPs })},
	"families":               {"families", list(func(d *draft) *[]string { return &d.Families })},
	"share-key":              {"share_key", text(func(d *draft) *string { return &d.ShareKey })},
	"port":                   {"port", list(func(d *draft) *[]string { return &d.ports })},
	"protocol":               {"protocol", list(func(d *draft) *[]string { return &d.protocols })},
	"target-port":            {"target_port", list(func(d *draft) *[]string { return &d.targets })},
	"node-port":              {"node_port", list(func(d *draft) *[]string { return &d.nodePorts })},
	"scheduler":              {"scheduler", text(func(d *draft) *string { return &d.Scheduler })},
	"scheduler-flags":        {"scheduler_flags", list(func(d *draft) *[]string { return &d.SchedulerFlags })},
	"forward":                {"forward", text(func(d *draft) *string { return &d.Forward })},
	"affinity":               {"affinity", readAffinity},
	"internal-traffic":       {"internal_traffic", text(func(d *draft) *string { return &d.InternalTraffic })},
	"external-traffic":       {"external_traffic", text(func(d *draft) *string { return &d.ExternalTraffic })},
	"traffic-distribution":   {"traffic_distribution", text(func(d *draft) *string { return &d.Distribution })},
	"health-check-node-port": {"health_check_node_port", readHealthPort},
	"masquerade":             {"masquerade", text(func(d *draft) *string { return &d.Masquerade })},
	"source-ranges":          {"source_ranges", list(func(d *draft) *[]string { return &d.SourceRanges })},
	"drain-timeout":          {"drain_timeout", readDrainTimeout},
}

// instanceKeys apply to single instances. The instances need not agree on them.
var instanceKeys = []string{"zone"}

// keyNames are all keys with their prefix, sorted.
var keyNames = func() []string {
	var out []string
	for name := range metaKeys {
		out = append(out, metaPrefix+name)
	}
	for _, name := range instanceKeys {
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

func text(field func(*draft) *string) func(*draft, string) error {
	return func(d *draft, text string) error {
		*field(d) = strings.TrimSpace(text)
		return nil
	}
}

func list(field func(*draft) *[]string) func(*draft, string) error {
	return func(d *draft, text string) error {
		*field(d) = split(text)
		return nil
	}
}

// split splits a list at its commas.
func split(text string) []string {
	var out []string
	for word := range strings.SplitSeq(text, ",") {
		if word = strings.TrimSpace(word); word != "" {
			out = append(out, word)
		}
	}
	return out
}

func readLabels(d *draft, text string) error {
	d.Labels = map[string]string{}
	for _, word := range split(text) {
		name, value, has := strings.Cut(word, "=")
		if _, twice := d.Labels[name]; twice || !has {
			return vip.Problem{Message: fmt.Sprintf("%s is no list of labels", strict.Quote(text)), Hint: `write "team=shop,tier=front", each name once`}
		}
		d.Labels[name] = value
	}
	return nil
}

func readAffinity(d *draft, text string) error {
	if text = strings.TrimSpace(text); text == "none" {
		return nil
	}
	timeout, err := duration(text)
	if err == nil {
		d.Affinity = &spec.Affinity{Timeout: &timeout}
	}
	return err
}

func readDrainTimeout(d *draft, text string) error {
	timeout, err := duration(text)
	if err == nil {
		d.DrainTimeout = &timeout
	}
	return err
}

// duration parses seconds, or a duration with a unit.
func duration(text string) (spec.Duration, error) {
	if n, err := strconv.ParseUint(text, 10, 31); err == nil {
		return spec.Duration(time.Duration(n) * time.Second), nil
	}
	var d spec.Duration
	if err := d.FromTree(text); err != nil {
		return 0, vip.Problem{Message: strict.Quote(text) + " is not a time span", Hint: `write seconds, or a unit with them: "90", "5m"`}
	}
	return d, nil
}

func readHealthPort(d *draft, text string) error { return d.HealthPort.FromTree(number(text)) }

// number returns text as a tree value, which is a number if text is one.
func number(text string) any {
	if _, err := strconv.ParseUint(text, 10, 31); err == nil {
		return json.Number(text)
	}
	return text
}

// readPorts converts the four keys of ports to the service's ports. Own are the ports of the
// instances, used if ironvip-port is not set. The other keys have one value for all ports, or one
// value for each port.
func (d *draft) readPorts(own []port, bad func(key string, err error)) {
	for _, word := range d.ports {
		var p spec.Port
		if name, rest, named := strings.Cut(word, "="); named {
			p.Name, word = strings.TrimSpace(name), strings.TrimSpace(rest)
		}
		if number, protocol, with := strings.Cut(word, "/"); with {
			p.Protocol, word = protocol, number
		}
		if err := p.Port.FromTree(number(word)); err != nil {
			bad("port", err)
			return
		}
		for _, o := range own {
			if o.name == p.Name && p.Name != "" && len(d.targets) == 0 {
				p.TargetPort = spec.PortNumber(o.number)
			}
		}
		d.Ports = append(d.Ports, p)
	}
	if len(d.ports) == 0 {
		for _, o := range own {
			d.Ports = append(d.Ports, spec.Port{Name: o.name, Port: spec.PortRange{First: o.number}})
		}
	}
	each := func(key string, values []string, set func(p *spec.Port, text string) error) {
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
	each("protocol", d.protocols, func(p *spec.Port, text string) error {
		if p.Protocol != "" && p.Protocol != text {
			return vip.Problem{Message: fmt.Sprintf("says %s of port %s, and ironvip-port says %s", strict.Quote(text), p.Port, p.Protocol), Hint: "keep one of them"}
		}
		p.Protocol = text
		return nil
	})
	each("target-port", d.targets, func(p *spec.Port, text string) error { return p.TargetPort.FromTree(number(text)) })
	each("node-port", d.nodePorts, func(p *spec.Port, text string) error { return p.NodePort.FromTree(number(text)) })
}

// keyOf returns the key of a field in a service's problem, or "" if no key sets the field.
func keyOf(field string) string {
	if rest, isPort := strings.CutPrefix(field, "ports"); isPort {
		key := "port"
		if _, of, deeper := strings.Cut(rest, "]."); deeper {
			for _, k := range []string{"protocol", "target_port", "node_port"} {
				if of == k {
					key = strings.ReplaceAll(k, "_", "-")
				}
			}
		}
		return metaPrefix + key
	}
	for name, k := range metaKeys {
		if rest, is := strings.CutPrefix(field, k.field); is && (rest == "" || rest[0] == '[' || rest[0] == '.') {
			return metaPrefix + name
		}
	}
	return ""
}
