package spec

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// Limits on the size of one service. The limits of single values are in vip.
const (
	MaxPorts      = 256
	MaxBackends   = 10_000
	MaxEndpoints  = 100_000 // ports x backends: the status of such a service takes 0.3 s
	MaxRanges     = 1024    // in each list
	MaxLabels     = 64
	MaxLabelKey   = 253  // bytes
	MaxLabelValue = 1024 // bytes
	MaxHints      = 64   // zones or nodes in the topology hints of one backend
)

// Build validates the service, fills in the defaults and returns the result with its source and
// origin. It returns all problems at once. With any problem, the caller may use only the returned
// Key, if the name is valid. Build keeps no reference to s.
func (s *Service) Build(source, origin string) (vip.Service, []vip.Problem) {
	b := builder{spec: s, service: s.Title(), place: origin}
	out := vip.Service{Source: source, Origin: origin, Relay: &vip.ProxySettings{}}
	out.Key = b.key(s)
	from, to := reflect.ValueOf(s).Elem(), reflect.ValueOf(&out).Elem()
	for i := range Fields {
		b.build(&Fields[i], from, to)
	}
	out.Relay = vip.RelayOf(*out.Relay)
	b.schedulerFlags(s.SchedulerFlags, &out)
	out.Ports = b.ports(s.Ports, out.Forward == vip.ForwardHost)
	out.Groups = b.groups(s)
	backends := s.flat()
	out.Backends = b.backends(backends, len(s.Ports))
	if len(out.Backends) == len(backends) {
		b.servedPorts(backends, out.Ports)
		b.twice(out)
		b.wrongFamily(backends, out.Forward, b.families)
	}
	if out.Forward == vip.ForwardHost {
		b.onHost(s, &out)
	} else {
		b.combinations(s, &out)
	}
	b.unprobed(&out)
	slices.SortFunc(out.Backends, compareBackends)
	return out, b.problems.List()
}

// Build validates a single backend and fills in its defaults.
func (w *Backend) Build() (vip.Backend, []vip.Problem) {
	var b builder
	out := b.backend(w)
	return out, b.problems.List()
}

func compareBackends(a, b vip.Backend) int {
	return cmp.Or(a.Address.Compare(b.Address), cmp.Compare(a.Port, b.Port))
}

// builder collects the problems of one service.
type builder struct {
	spec           *Service
	service, place string
	within         func() string // the field that fields belong to; nil: they are the service's own
	families       []vip.Family  // that the service requests through families or vips; nil leaves them to the pool
	problems       vip.Problems
}

func (b *builder) add(p vip.Problem) {
	p.Service, p.Place = b.service, b.place
	b.problems.Add(p)
}

func (b *builder) bad(field, hint, format string, args ...any) {
	if b.within != nil {
		field = b.within() + "." + field
	}
	b.add(vip.Problem{Code: vip.CodeInvalid, Field: field, Message: fmt.Sprintf(format, args...), Hint: hint})
}

func (b *builder) label(field, value string) bool {
	err := vip.CheckLabel(value)
	if err != nil {
		b.bad(field, `use 1 to 63 of a-z, 0-9 and inner "-"`, "%s", err)
	}
	return err == nil
}

func (b *builder) key(s *Service) vip.ServiceKey {
	k := vip.ServiceKey{Namespace: s.Namespace, Name: s.Name}
	good := b.label("name", s.Name)
	if s.Namespace == "" {
		k.Namespace = vip.DefaultNamespace
	} else if !b.label("namespace", s.Namespace) {
		good = false
	}
	if !good {
		return vip.ServiceKey{}
	}
	return k
}

func (b *builder) labels(_ string, in map[string]string) map[string]string {
	if len(in) == 0 {
		return nil
	}
	if len(in) > MaxLabels {
		b.bad("labels", "remove some", "%d labels are more than %d", len(in), MaxLabels)
		return nil
	}
	for _, k := range slices.Sorted(maps.Keys(in)) {
		field := strict.Join("labels", k)
		if k == "" || len(k) > MaxLabelKey || !printable(k) {
			b.bad(field, "", "a label's name has 1 to %d printable characters", MaxLabelKey)
		}
		if len(in[k]) > MaxLabelValue || !printable(in[k]) {
			b.bad(field, "", "a label's value has up to %d printable characters", MaxLabelValue)
		}
	}
	return maps.Clone(in)
}

func printable(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
}

func (b *builder) readFamilies(key string, in []string) vip.Families {
	for i, text := range in {
		var f vip.Family
		switch err := f.UnmarshalText([]byte(text)); {
		case err != nil:
			b.bad(strict.Index(key, i), "use ipv4 or ipv6", "%s is not an address family", strict.Quote(text))
		case slices.Contains(b.families, f):
			b.bad(strict.Index(key, i), "remove it", "%s comes twice", f)
		default:
			b.families = append(b.families, f)
		}
	}
	return vip.FamiliesOf(b.families...)
}

// vips reads the requested addresses after the families.
func (b *builder) vips(key string, in []string) []netip.Addr {
	var out []netip.Addr
	families := b.families
	for i, text := range in {
		field := strict.Index(key, i)
		a, ok := b.address(field, text)
		if !ok {
			continue
		}
		same := func(o netip.Addr) bool { return o.Is4() == a.Is4() }
		switch {
		case slices.ContainsFunc(out, same):
			b.bad(field, "keep one address a family", "%s is the second %s address", a, vip.FamilyOf(a))
		case len(families) > 0 && !slices.Contains(families, vip.FamilyOf(a)):
			b.bad(field, "add its family to families, or leave families out", "%s is %s, which families leaves out", a, vip.FamilyOf(a))
		default:
			out = append(out, a)
			if len(families) == 0 {
				b.families = append(b.families, vip.FamilyOf(a))
			}
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out
}

func (b *builder) hostnames(key string, in []string) vip.Hostnames {
	if len(in) > vip.MaxHostnames {
		b.bad(key, "remove some", "%d hostnames are more than %d", len(in), vip.MaxHostnames)
		return vip.Hostnames{}
	}
	for i, name := range in {
		field := strict.Index(key, i)
		switch err := vip.CheckHostname(name); {
		case err == nil && slices.Contains(in[:i], name):
			b.bad(field, "remove it", "%s comes twice", name)
		case err != nil:
			hint := `use a full name: "shop.example.com"`
			if plain := strings.TrimSuffix(strings.ToLower(name), "."); vip.CheckHostname(plain) == nil {
				hint = "write it as " + plain
			}
			b.bad(field, hint, "%s", err)
		}
	}
	return vip.HostnamesOf(in...)
}

// address reads a routable unicast address.
func (b *builder) address(field, text string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(text)
	if err != nil {
		hint := "write an IPv4 or IPv6 address; names are not looked up"
		if ap, err := netip.ParseAddrPort(text); err == nil {
			hint = fmt.Sprintf("write the address alone (%s) and give the port in a key of its own", ap.Addr())
		} else if p, err := netip.ParsePrefix(text); err == nil {
			hint = fmt.Sprintf("write the address alone: %s", p.Addr())
		}
		if text == "" {
			b.bad(field, hint, "an address is needed")
		} else {
			b.bad(field, hint, "%s is not an address", strict.Quote(text))
		}
		return a, false
	}
	switch {
	case a.Is4In6():
		b.bad(field, "write it as "+a.Unmap().String(), "%s is an IPv4 address in IPv6 form", a)
	case a.Zone() != "" || a.Is6() && a.IsLinkLocalUnicast():
		b.bad(field, "use a global or unique local address", "%s is link-local, which no route leads to", a)
	case a.IsUnspecified(), a.IsMulticast(), a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		b.bad(field, "use a unicast address", "%s is not a unicast address", a)
	default:
		return a, true
	}
	return a, false
}

// The values of scheduler_flags.
const (
	flagFallback  = "fallback"
	flagPort      = "port"
	flagOnePacket = "one-packet"
)

// schedulerFlags reads the flags into out. The scheduler of out must be set.
func (b *builder) schedulerFlags(in []string, out *vip.Service) {
	hashes := out.Scheduler == 0 || out.Scheduler == vip.SourceHash || out.Scheduler == vip.MaglevHash
	for i, text := range in {
		field := strict.Index("scheduler_flags", i)
		switch text {
		case flagFallback:
			out.SchedulerFallback = true
		case flagPort:
			out.SchedulerPort = true
		case flagOnePacket:
			out.OnePacket = true
		default:
			b.bad(field, strict.OneOf(text, flagFallback, flagPort, flagOnePacket), "%s is not a scheduler flag", strict.Quote(text))
			continue
		}
		if !hashes && text != flagOnePacket {
			b.bad(field, "use scheduler mh or sh, or remove the flag", "scheduler %s has no flag %q", out.Scheduler, text)
		}
		if slices.Contains(in[:i], text) {
			b.bad(field, "remove it", "%q comes twice", text)
		}
	}
}
