package consul

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/ironvip/ironvip/internal/text"
	"github.com/ironvip/ironvip/sources/draft"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// settings are the service's metadata as its instances set it, by key. Keys that apply to single
// instances are not included.
type settings map[string]string

// built is the result of a build.
type built struct {
	service  vip.Service
	good     bool     // the service is valid
	settings settings // used for this build
	problems []vip.Problem
}

// build builds a service from its instances. If the settings are invalid, it uses the last valid
// ones, if any. Thus a mistake in the settings does not prevent the service from following its
// instances. An instance that can't be used is left out and becomes a problem. The function is
// pure: the same answer results in the same service on every host.
func (o *Options) build(name string, instances []instance, last settings) built {
	instances = slices.DeleteFunc(slices.Clone(instances), func(i instance) bool { return i.mesh() })
	sortInstances(instances)
	b := builder{o: o, name: name, place: o.place(name)}
	wanted := b.agree(instances)
	out := b.make(wanted, instances)
	usable := func(r built) bool { return r.good && (len(r.service.Backends) > 0 || len(instances) == 0) }
	if !usable(out) && last != nil && !maps.Equal(last, wanted) {
		again := builder{o: o, name: name, place: b.place}
		if former := again.make(last, instances); usable(former) {
			former.problems = out.problems
			draft.KeepsFormer(former.problems)
			out = former
		}
	}
	for i := range out.problems {
		p := &out.problems[i]
		p.Place, p.Service = b.place, strict.Name(name)
		if out.service.Key != (vip.ServiceKey{}) {
			p.Service = out.service.Key.String()
		}
	}
	return out
}

// place returns where a Consul service is found, for messages.
func (o *Options) place(name string) string {
	name = cmp.Or(name, `""`)
	if o.Datacenter != "" {
		return fmt.Sprintf("consul service %s in %s", strict.Name(name), o.Datacenter)
	}
	return "consul service " + strict.Name(name)
}

// builder collects the problems with one service.
type builder struct {
	o           *Options
	name, place string
	problems    []vip.Problem
	failed      bool // its settings can't be used
}

// bad records that a key of the settings is invalid.
func (b *builder) bad(key string, err error) {
	b.problems, b.failed = append(b.problems, vip.FieldProblem(strict.Name(key), err)), true
}

// warn records a problem that does not make the service invalid.
func (b *builder) warn(key, hint, message string) {
	b.problems = append(b.problems, vip.Problem{Code: vip.CodeInvalid, Field: strict.Name(key), Message: message, Hint: hint})
}

// agree returns the service's settings. Each key has the value that most instances have. A missing
// key counts as a value. On a tie the first instance wins, in the order of nodes and IDs.
func (b *builder) agree(instances []instance) settings {
	keys := map[string]bool{}
	for i := range instances {
		for key := range instances[i].Service.Meta {
			if name := strings.TrimPrefix(key, metaPrefix); isOurs(key) && !slices.Contains(instanceKeys, name) {
				keys[key] = true
			}
		}
	}
	out := settings{}
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		value, disagree := vote(instances, func(i *instance) string { return i.Service.Meta[key] })
		if value != "" {
			out[key] = value
		}
		if disagree != "" {
			b.warn(key, "register all instances with the same value", disagree)
		}
	}
	return out
}

// vote returns the value that most instances have. If values differ, it also describes which
// instances have which value.
func vote(instances []instance, value func(*instance) string) (winner, disagree string) {
	var values []string
	who := map[string][]string{}
	for i := range instances {
		v := value(&instances[i])
		if who[v] == nil {
			values = append(values, v)
		}
		who[v] = append(who[v], strict.Name(instances[i].id()))
	}
	if len(values) == 0 {
		return "", ""
	}
	winner = values[0]
	for _, v := range values {
		if len(who[v]) > len(who[winner]) {
			winner = v
		}
	}
	if len(values) == 1 {
		return winner, ""
	}
	var parts []string
	for _, v := range values {
		parts = append(parts, fmt.Sprintf("%s on %s", shown(v), text.First(fewIDs, who[v], " ")))
	}
	return winner, fmt.Sprintf("instances disagree: %s; %s is used", strings.Join(parts, ", "), shown(winner))
}

func shown(value string) string {
	if value == "" {
		return "nothing"
	}
	return strict.Quote(value)
}

// fewIDs is the maximum number of instances in a message for one cause.
const fewIDs = 3

// make builds the service from the settings.
func (b *builder) make(with settings, instances []instance) built {
	d := b.read(with, instances)
	own, disagree := b.ownPorts(instances)
	if disagree != "" && (len(d.ports["port"]) == 0 || own[0].name != "") {
		b.warn(metaPrefix+"port", "add "+metaPrefix+`port, the VIP's port: "80"`, disagree)
	}
	d.readPorts(own, func(key string, err error) { b.bad(metaPrefix+key, err) })
	// With a single port, each backend uses its instance's own port. Job schedulers often assign a
	// different port to each instance.
	ownPort := len(d.Ports) == 1 && len(d.ports["target-port"]) == 0 && d.Ports[0].TargetPort == 0 && d.Ports[0].Port.Last == 0
	service, problems := b.fit(&d.Service, instances, ownPort)
	for _, p := range problems {
		key := keyOf(p.Field)
		if p.Field == "ports" && len(d.Ports) == 0 {
			if b.failed { // ironvip-port is invalid, which is a problem already
				continue
			}
			p.Message, p.Hint = "is not there, and the instances have no port", "add "+metaPrefix+`port = "80", or register instances with a port`
		}
		if key == metaPrefix+"name" && with[key] == "" {
			p.Hint = "add " + metaPrefix + "name, with 1 to 63 of a-z, 0-9 and inner \"-\""
		}
		b.bad(cmp.Or(key, p.Field), p)
	}
	return built{service: service, good: !b.failed, settings: with, problems: b.problems}
}

// read converts the settings to a draft.
func (b *builder) read(with settings, instances []instance) definition {
	d := definition{Service: spec.Service{Name: b.name, Namespace: b.o.ServiceNamespace, Pool: b.o.Pool}, ports: map[string][]string{}}
	if d.Namespace == "" && len(instances) > 0 {
		d.Namespace = instances[0].Service.Namespace // the same in all instances of one answer
	}
	for _, key := range slices.Sorted(maps.Keys(with)) {
		name, ours := strings.CutPrefix(key, metaPrefix)
		field, isField := draft.Fields[name]
		switch {
		case ours && isField:
			if err := draft.Set(&d.Service, field, with[key]); err != nil {
				b.bad(key, err)
			}
		case ours && slices.Contains(portKeys, name):
			d.ports[name] = draft.Split(with[key])
		default:
			hint := "docs/consul.md describes the keys"
			if near := strict.Nearest(draft.Name(key), keyNames); near != "" {
				hint = fmt.Sprintf("did you mean %q?", near)
			}
			b.bad(key, vip.Problem{Code: vip.CodeUnknownKey, Message: "is no key of ours", Hint: hint})
		}
	}
	return d
}

// ownPorts returns the ports of the instances. If ports differ, it also describes which instances
// have which ports.
func (b *builder) ownPorts(instances []instance) (own []port, disagree string) {
	ports := map[string][]port{}
	winner, disagree := vote(instances, func(i *instance) string {
		of := i.ports(b.o.TaggedAddress)
		words := make([]string, 0, len(of))
		for _, p := range of {
			words = append(words, strings.TrimPrefix(p.name+"="+strconv.Itoa(p.number), "="))
		}
		text := strings.Join(words, ",")
		ports[text] = of
		return text
	})
	if own = ports[winner]; own == nil {
		disagree = ""
	}
	return own, disagree
}

// fit builds the service with the usable instances and returns the service's other problems.
func (b *builder) fit(s *spec.Service, instances []instance, ownPort bool) (vip.Service, []vip.Problem) {
	// Of two instances with one address and port, the healthier one is used.
	order := slices.Clone(instances)
	slices.SortStableFunc(order, func(x, y instance) int { return rank(&x) - rank(&y) })
	for i := range order {
		s.Backends = append(s.Backends, b.backend(&order[i], ownPort))
	}
	out, problems, more := draft.Fit(s, func() (vip.Service, []vip.Problem) {
		out, problems := s.Build(b.o.Name, b.place)
		return out, append(problems, spec.CheckAgainstPools(s, b.o.Pools())...)
	}, func(i int, field string, p vip.Problem) {
		if field == "" {
			address, _ := order[i].address(b.o.TaggedAddress)
			p.Message = address + ": another instance is the same server"
		}
		b.warn(cmp.Or(field, "address"), p.Hint, fmt.Sprintf("instance %s is left out: %s", strict.Name(order[i].id()), p.Message))
	})
	if more > 0 {
		b.warn("backends", "", fmt.Sprintf("%d instances more are left out", more))
	}
	return out, problems
}

// backend returns an instance as a backend, without names that a service can't have: they only say which hosts and zones
// prefer it.
func (b *builder) backend(i *instance, own bool) spec.Backend {
	out := i.backend(b.o.TaggedAddress, own)
	for _, name := range []struct {
		of    string
		value *string
	}{{"node", &out.Node}, {"zone", &out.Zone}} {
		if *name.value != "" && !spec.IsWord(*name.value) {
			b.warn(name.of, "", fmt.Sprintf("instance %s has no %s here: %s isn't of up to %d printable characters without spaces", strict.Name(i.id()), name.of, strict.Quote(*name.value), spec.MaxLabelKey))
			*name.value = ""
		}
	}
	return out
}

// rank orders instances, the healthiest first.
func rank(i *instance) int {
	switch state, health, _ := i.health(); {
	case state != vip.Ready:
		return 2
	case health == vip.Unhealthy:
		return 1
	}
	return 0
}
