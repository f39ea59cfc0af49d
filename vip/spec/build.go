package spec

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"
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
	b := builder{service: s.Title(), place: origin}
	out := vip.Service{Source: source, Origin: origin, Pool: s.Pool, ShareKey: s.ShareKey}
	out.Key = b.key(s)
	out.Labels = b.labels(s.Labels)
	if s.Pool != "" {
		b.label("pool", s.Pool)
	}
	if s.ShareKey != "" {
		b.label("share_key", s.ShareKey)
	}
	families := b.families(s.Families)
	out.Families, out.VIPs = vip.FamiliesOf(families...), b.vips(s.VIPs, families)
	out.Hostnames = b.hostnames(s.Hostnames)
	out.Ports = b.ports(s.Ports)
	out.Scheduler = choice(&b, "scheduler", s.Scheduler, vip.DefaultScheduler, vip.Schedulers()...)
	b.schedulerFlags(s.SchedulerFlags, &out)
	out.Forward = choice(&b, "forward", s.Forward, vip.ForwardNAT, forwards...)
	out.InternalTraffic = choice(&b, "internal_traffic", s.InternalTraffic, vip.Cluster, vip.Cluster, vip.Local)
	out.ExternalTraffic = choice(&b, "external_traffic", s.ExternalTraffic, vip.Cluster, vip.Cluster, vip.Local)
	out.Distribution = choice(&b, "traffic_distribution", s.Distribution, vip.DistributeAny,
		vip.DistributeAny, vip.PreferSameZone, vip.PreferSameNode)
	out.HealthPort = b.nodePort("health_check_node_port", s.HealthPort)
	out.Masquerade = choice(&b, "masquerade", s.Masquerade, vip.MasqueradeAuto,
		vip.MasqueradeAuto, vip.MasqueradeAlways, vip.MasqueradeNever)
	out.SourceRanges = b.ranges("source_ranges", s.SourceRanges, statedFamilies(out))
	out.Affinity = b.affinity(s.Affinity)
	out.Check = b.healthCheck(s.Health)
	out.ResetUnhealthy = b.onUnhealthy(s.OnUnhealthy)
	out.PanicThreshold = b.panicThreshold(s.PanicThreshold)
	out.SlowStart = b.slowStart(s.SlowStart)
	out.DrainTimeout = b.duration("drain_timeout", s.DrainTimeout, vip.DefaultDrainTimeout, 0, vip.MaxDrainTimeout)
	out.Relay = vip.RelayOf(vip.ProxySettings{
		ConnectTimeout:   b.duration("connect_timeout", s.ConnectTimeout, vip.DefaultConnectTimeout, vip.MinConnectTimeout, vip.MaxConnectTimeout),
		IdleTimeout:      b.duration("idle_timeout", s.IdleTimeout, vip.DefaultIdleTimeout, vip.MinIdleTimeout, vip.MaxIdleTimeout),
		HalfCloseTimeout: b.duration("half_close_timeout", s.HalfCloseTimeout, vip.DefaultHalfCloseTimeout, vip.MinIdleTimeout, vip.MaxIdleTimeout),
		MaxConnections:   b.limit("max_connections", s.MaxConnections, vip.MaxMaxConnections),
		MaxQueue:         b.limit("max_queue", s.MaxQueue, vip.MaxMaxQueue),
		QueueTimeout:     b.duration("queue_timeout", s.QueueTimeout, vip.DefaultQueueTimeout, vip.MinQueueTimeout, vip.MaxQueueTimeout),
		ProxyProtocol:    choice(&b, "proxy_protocol", s.ProxyProtocol, 0, vip.ProxyV1, vip.ProxyV2),
		AcceptProxyFrom:  b.ranges("accept_proxy_from", s.AcceptProxyFrom, statedFamilies(out)),
	})
	out.Backends = b.backends(s.Backends, len(s.Ports))
	if len(out.Backends) == len(s.Backends) {
		b.servedPorts(s.Backends, out.Ports)
		b.twice(out)
		b.wrongFamily(s.Backends, out.Forward, statedFamilies(out))
	}
	b.combinations(s, &out)
	b.unprobed(&out)
	slices.SortFunc(out.Backends, compareBackends)
	return out, b.problems.List()
}

var forwards = []vip.Forward{vip.ForwardNAT, vip.ForwardDirect, vip.ForwardTunnel}

// Build validates a single backend and fills in its defaults.
func (w *Backend) Build() (vip.Backend, []vip.Problem) {
	var b builder
	out := b.backend(w)
	return out, b.problems.List()
}

func compareBackends(a, b vip.Backend) int {
	return cmp.Or(a.Address.Compare(b.Address), cmp.Compare(a.Port, b.Port))
}

// statedFamilies returns the families that the service requests through families or vips; nil
// leaves them to the pool.
func statedFamilies(s vip.Service) []vip.Family {
	if s.Families != 0 {
		return s.Families.List()
	}
	var out []vip.Family
	for _, a := range s.VIPs {
		out = append(out, vip.FamilyOf(a))
	}
	return out
}

// builder collects the problems of one service.
type builder struct {
	service, place string
	list           string // the list that fields belong to: "backends"; "" for the service's own
	index          int    // the index in list
	problems       vip.Problems
}

func (b *builder) add(p vip.Problem) {
	p.Service, p.Place = b.service, b.place
	b.problems.Add(p)
}

func (b *builder) bad(field, hint, format string, args ...any) {
	if b.list != "" {
		field = strict.Index(b.list, b.index) + "." + field
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

func (b *builder) labels(in map[string]string) map[string]string {
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

func (b *builder) families(in []string) []vip.Family {
	var out []vip.Family
	for i, text := range in {
		var f vip.Family
		switch err := f.UnmarshalText([]byte(text)); {
		case err != nil:
			b.bad(strict.Index("families", i), "use ipv4 or ipv6", "%s is not an address family", strict.Quote(text))
		case slices.Contains(out, f):
			b.bad(strict.Index("families", i), "remove it", "%s comes twice", f)
		default:
			out = append(out, f)
		}
	}
	return out
}

func (b *builder) vips(in []string, families []vip.Family) []netip.Addr {
	var out []netip.Addr
	for i, text := range in {
		field := strict.Index("vips", i)
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
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out
}

func (b *builder) hostnames(in []string) vip.Hostnames {
	if len(in) > vip.MaxHostnames {
		b.bad("hostnames", "remove some", "%d hostnames are more than %d", len(in), vip.MaxHostnames)
		return vip.Hostnames{}
	}
	for i, name := range in {
		field := strict.Index("hostnames", i)
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

func (b *builder) affinity(in *Affinity) time.Duration {
	if in == nil {
		return 0
	}
	if in.Timeout == nil {
		return vip.DefaultAffinity
	}
	d := time.Duration(*in.Timeout)
	if d < time.Second || d > vip.MaxAffinity || d%time.Second != 0 {
		b.bad("affinity.timeout", `use "1s" to "24h" in whole seconds`, "%s is out of bounds", Duration(d))
	}
	return d
}

// duration reads a time span from least to most. The default is for nil.
func (b *builder) duration(field string, in *Duration, def, least, most time.Duration) time.Duration {
	if in == nil {
		return def
	}
	d := time.Duration(*in)
	if d < least || d > most {
		b.bad(field, fmt.Sprintf("use %q to %q", Duration(least), Duration(most)), "%s is out of bounds", *in)
	}
	return d
}

// limit reads a limit from 1 to most, or 0 for none.
func (b *builder) limit(field string, n, most int) uint32 {
	if n < 0 || n > most {
		b.bad(field, fmt.Sprintf("use 1 to %d, or 0 for none", most), "%d is out of bounds", n)
		return 0
	}
	return uint32(n)
}

// choice reads one of a set of values by their names. The default is for an empty text.
func choice[T any](b *builder, field, text string, def T, all ...T) (none T) {
	if text == "" {
		return def
	}
	use := make([]string, len(all))
	for i := range all {
		if use[i] = fmt.Sprint(all[i]); use[i] == text {
			return all[i]
		}
	}
	b.bad(field, strict.OneOf(text, use...), "%s is not a known value", strict.Quote(text))
	return none
}
