package consul

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
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
	ports, protocols, targets, nodePorts []string
}

// metaKey is one metadata key.
type metaKey struct {
	field string // of spec.Service, as in its problems
	read  func(d *definition, text string) error
}

// metaKeys are all keys without their prefix. docs/consul.md has a row for each.
var metaKeys = map[string]metaKey{
	"name":                   {"name", draft.Text(func(d *definition) *string { return &d.Name })},
	"namespace":              {"namespace", draft.Text(func(d *definition) *string { return &d.Namespace })},
	"labels":                 {"labels", readLabels},
	"pool":                   {"pool", draft.Text(func(d *definition) *string { return &d.Pool })},
	"vips":                   {"vips", draft.List(func(d *definition) *[]string { return &d.VIPs })},
	"families":               {"families", draft.List(func(d *definition) *[]string { return &d.Families })},
	"share-key":              {"share_key", draft.Text(func(d *definition) *string { return &d.ShareKey })},
	"hostnames":              {"hostnames", draft.List(func(d *definition) *[]string { return &d.Hostnames })},
	"port":                   {"port", draft.List(func(d *definition) *[]string { return &d.ports })},
	"protocol":               {"protocol", draft.List(func(d *definition) *[]string { return &d.protocols })},
	"target-port":            {"target_port", draft.List(func(d *definition) *[]string { return &d.targets })},
	"node-port":              {"node_port", draft.List(func(d *definition) *[]string { return &d.nodePorts })},
	"scheduler":              {"scheduler", draft.Text(func(d *definition) *string { return &d.Scheduler })},
	"scheduler-flags":        {"scheduler_flags", draft.List(func(d *definition) *[]string { return &d.SchedulerFlags })},
	"forward":                {"forward", draft.Text(func(d *definition) *string { return &d.Forward })},
	"affinity":               {"affinity", readAffinity},
	"internal-traffic":       {"internal_traffic", draft.Text(func(d *definition) *string { return &d.InternalTraffic })},
	"external-traffic":       {"external_traffic", draft.Text(func(d *definition) *string { return &d.ExternalTraffic })},
	"traffic-distribution":   {"traffic_distribution", draft.Text(func(d *definition) *string { return &d.Distribution })},
	"health-check-node-port": {"health_check_node_port", readHealthPort},
	"masquerade":             {"masquerade", draft.Text(func(d *definition) *string { return &d.Masquerade })},
	"source-ranges":          {"source_ranges", draft.List(func(d *definition) *[]string { return &d.SourceRanges })},
	"proxy-protocol":         {"proxy_protocol", draft.Text(func(d *definition) *string { return &d.ProxyProtocol })},
	"accept-proxy-from":      {"accept_proxy_from", draft.List(func(d *definition) *[]string { return &d.AcceptProxyFrom })},
	"drain-timeout":          {"drain_timeout", draft.Time(func(d *definition) **spec.Duration { return &d.DrainTimeout })},
	"health":                 {"health", draft.HealthCheck(func(d *definition) **spec.HealthCheck { return &d.Health })},
	"on-unhealthy":           {"on_unhealthy", draft.Text(func(d *definition) *string { return &d.OnUnhealthy })},
	"panic-threshold":        {"panic_threshold", draft.Number(func(d *definition) *int { return &d.PanicThreshold })},
	"slow-start":             {"slow_start", draft.Time(func(d *definition) **spec.Duration { return &d.SlowStart })},
	"connect-timeout":        {"connect_timeout", draft.Time(func(d *definition) **spec.Duration { return &d.ConnectTimeout })},
	"idle-timeout":           {"idle_timeout", draft.Time(func(d *definition) **spec.Duration { return &d.IdleTimeout })},
	"max-connections":        {"max_connections", draft.Number(func(d *definition) *int { return &d.MaxConnections })},
	"max-queue":              {"max_queue", draft.Number(func(d *definition) *int { return &d.MaxQueue })},
	"queue-timeout":          {"queue_timeout", draft.Time(func(d *definition) **spec.Duration { return &d.QueueTimeout })},
	"half-close-timeout":     {"half_close_timeout", draft.Time(func(d *definition) **spec.Duration { return &d.HalfCloseTimeout })},
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

func readLabels(d *definition, text string) error {
	d.Labels = map[string]string{}
	for _, word := range draft.Split(text) {
		name, value, has := strings.Cut(word, "=")
		if _, twice := d.Labels[name]; twice || !has {
			return vip.Problem{Message: fmt.Sprintf("%s is no list of labels", strict.Quote(text)), Hint: `write "team=shop,tier=front", each name once`}
		}
		d.Labels[name] = value
	}
	return nil
}

func readAffinity(d *definition, text string) error {
	if text = strings.TrimSpace(text); text == "none" {
		return nil
	}
	timeout, err := draft.Duration(text)
	if err == nil {
		d.Affinity = &spec.Affinity{Timeout: &timeout}
	}
	return err
}

func readHealthPort(d *definition, text string) error { return d.HealthPort.FromTree(number(text)) }

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
func (d *definition) readPorts(own []port, bad func(key string, err error)) {
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
