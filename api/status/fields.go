package status

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/ironvip/ironvip/internal/text"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// none is the text of a missing value.
const none = "none"

// fields collects the differences.
type fields []fieldChange

func (f *fields) compare(field, before, after string) {
	if before != after {
		*f = append(*f, fieldChange{Field: field, Before: cmp.Or(before, none), After: cmp.Or(after, none)})
	}
}

// compareSpecs compares two specs, or parts of specs, by the names and values that a user writes. An omitted
// value is missing.
func (f *fields) compareSpecs(was, is any) {
	if reflect.DeepEqual(was, is) { // the usual case
		return
	}
	before, after := map[string]string{}, map[string]string{}
	flatten("", asWritten(was), before)
	flatten("", asWritten(is), after)
	both := maps.Clone(before)
	maps.Copy(both, after)
	for _, field := range slices.Sorted(maps.Keys(both)) {
		f.compare(field, before[field], after[field])
	}
}

// asWritten returns a spec in JSON's terms.
func asWritten(v any) (out any) {
	document, _ := json.Marshal(v) // a spec has a JSON form
	numbers := json.NewDecoder(bytes.NewReader(document))
	numbers.UseNumber() // not 1e+07
	_ = numbers.Decode(&out)
	return out
}

// flatten adds the values of a spec, those of a table with the path to them.
func flatten(path string, v any, to map[string]string) {
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			flatten(strict.Join(path, key), value, to)
		}
	case []any:
		to[path] = text.Join(v, " ", word)
	default:
		to[path] = word(v)
	}
}

// word quotes a value that a reader could not tell from two values.
func word(v any) string {
	plain := fmt.Sprint(v)
	if q := strconv.Quote(plain); plain == "" || strings.Contains(plain, " ") || q != `"`+plain+`"` {
		return q
	}
	return plain
}

// changedFields returns the differences between two versions of a service, without its backends.
func changedFields(was, is *Planned) []fieldChange {
	a, b := was.Service, is.Service
	a.Backends, b.Backends = nil, nil
	var f fields
	f.compare("source", a.Source, b.Source)
	// A change of the addresses that the service holds affects clients. A changed request without
	// that changes only the spec.
	if before, after := list(was.Allocation.VIPs), list(is.Allocation.VIPs); before != after {
		f.compare("vips", before, after)
	} else {
		f.compare("requested vips", list(a.VIPs), list(b.VIPs))
	}
	f.ports(was, is)
	f.compare("health_check_node_port", nodePortText(a.HealthPort, vip.HealthPortKey, &was.Allocation), nodePortText(b.HealthPort, vip.HealthPortKey, &is.Allocation))
	if a.Check == nil || b.Check == nil {
		f.compare("health", checkText(a.Check), checkText(b.Check))
		a.Check, b.Check = nil, nil
	}
	f.groups(a.Groups, b.Groups)
	a.Groups, b.Groups = nil, nil
	before, after := spec.FromService(a), spec.FromService(b)
	for _, s := range []*spec.Service{&before, &after} {
		s.VIPs, s.Ports, s.HealthPort = nil, nil, spec.NodePort{} // compared above
	}
	f.compareSpecs(before, after)
	return f
}

// groups compares groups by their names.
func (f *fields) groups(before, after []vip.Group) {
	weight := func(in []vip.Group, name string) string {
		if i := slices.IndexFunc(in, func(g vip.Group) bool { return g.Name == name }); i >= 0 {
			return fmt.Sprintf("weight %d", in[i].Weight)
		}
		return ""
	}
	var done []string
	for _, g := range slices.Concat(before, after) {
		if !slices.Contains(done, g.Name) {
			done = append(done, g.Name)
			f.compare("groups["+g.Name+"]", weight(before, g.Name), weight(after, g.Name))
		}
	}
}

// checkText writes the appearance of a check, or its end.
func checkText(c *vip.HealthCheck) string {
	if c == nil {
		return "default"
	}
	return strings.TrimSpace(c.Type.String() + " " + c.Path)
}

// ports compares ports by their numbers and protocol.
func (f *fields) ports(was, is *Planned) {
	before, after := portsByKey(was.Service.Ports), portsByKey(is.Service.Ports)
	both := maps.Clone(before)
	maps.Copy(both, after)
	for _, k := range slices.SortedFunc(maps.Keys(both), comparePorts) {
		field := fmt.Sprintf("ports[%s]", k)
		a, b := before[k], after[k]
		switch {
		case a == nil:
			f.compare(field, "", "target_port "+targetText(b))
		case b == nil:
			f.compare(field, "target_port "+targetText(a), "")
		default:
			f.compare(field+".name", a.Name, b.Name)
			f.compare(field+".target_port", targetText(a), targetText(b))
			f.compare(field+".node_port", nodePortText(a.NodePort, k, &was.Allocation), nodePortText(b.NodePort, k, &is.Allocation))
		}
	}
}

func backendFields(a, b *vip.Backend) []fieldChange {
	var f fields
	f.compare("group", a.Group, b.Group)
	f.compareSpecs(spec.FromBackend(*a), spec.FromBackend(*b))
	return f
}

// backendText describes a new backend.
func backendText(b *vip.Backend) string {
	t := fmt.Sprintf("weight %d", b.Weight)
	if b.State != 0 && b.State != vip.Ready {
		t += fmt.Sprintf(", %s", b.State)
	}
	if b.Group != "" {
		t += ", group " + b.Group
	}
	if b.Backup {
		t += ", backup"
	}
	if b.Ports != "" {
		t += fmt.Sprintf(", for %s", strings.Join(b.Ports.List(), ", "))
	}
	return t
}

func portsByKey(ports []vip.Port) map[vip.PortKey]*vip.Port {
	m := make(map[vip.PortKey]*vip.Port, len(ports))
	for i := range ports {
		m[ports[i].Key()] = &ports[i]
	}
	return m
}

func comparePorts(a, b vip.PortKey) int {
	return cmp.Or(cmp.Compare(a.Port, b.Port), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.LastPort, b.LastPort))
}

// targetText describes a port's target. A range may keep the client's port.
func targetText(p *vip.Port) string {
	if p.TargetPort == 0 {
		return "as the client's"
	}
	return strconv.Itoa(int(p.TargetPort))
}

// portsText formats ports as in "80,443,10000-10099/tcp 443/udp".
func portsText(ports []vip.Port) string {
	var texts []string
	for _, protocol := range []vip.Protocol{vip.TCP, vip.UDP, vip.SCTP} {
		var numbers []string
		for i := range ports {
			if number, of, _ := strings.Cut(ports[i].Key().String(), "/"); of == protocol.String() {
				numbers = append(numbers, number)
			}
		}
		if len(numbers) > 0 {
			texts = append(texts, fmt.Sprintf("%s/%s", strings.Join(numbers, ","), protocol))
		}
	}
	return strings.Join(texts, " ")
}

// nodePortText writes a node port as it was granted, else as it was asked for.
func nodePortText(asked vip.NodePort, k vip.PortKey, granted *vip.Allocation) string {
	if !asked.Wanted() {
		return "off"
	}
	if number := granted.NodePorts[k]; number != 0 {
		return strconv.Itoa(int(number))
	}
	if asked.Number != 0 {
		return strconv.Itoa(int(asked.Number))
	}
	return "auto"
}

func list[T fmt.Stringer](items []T) string { return text.Join(items, " ", T.String) }
