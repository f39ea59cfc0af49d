package migrate

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

// Listener is what another load balancer listens on, with its backends. It becomes one service.
type Listener struct {
	Place
	// Name is the name in the input, if it has one. Another listener may have the same.
	Name string
	// Addr is where clients connect to. The zero Addr stands for all addresses of the host: the
	// service then gets an address from the pool.
	Addr     netip.Addr
	Ports    []spec.Port
	Backends []Backend
	// Service has everything else: the scheduler, the check.
	Service spec.Service
}

// Backend is a backend with the line that it comes from.
type Backend struct {
	Place
	spec.Backend
}

// Add makes services of the listeners. Listeners on one address share it, as services with the same
// share key. It also fills in Addresses. A note says what is left out so that a service is valid.
func (r *Result) Add(listeners []Listener) {
	listeners = r.withoutTwins(listeners)
	count := map[netip.Addr]int{}
	for _, l := range listeners {
		if count[l.Addr]++; l.Addr.IsValid() {
			r.Addresses = append(r.Addresses, l.Addr)
		}
	}
	slices.SortFunc(r.Addresses, netip.Addr.Compare)
	r.Addresses = slices.Compact(r.Addresses)
	names := map[string]int{}
	for i := range listeners {
		l := &listeners[i]
		s := Service{Place: l.Place, Service: l.Service}
		s.Name = uniqueName(names, cmp.Or(label(l.Name), l.defaultName()))
		s.Ports = l.Ports
		s.Pool = PoolName
		if l.Addr.IsValid() {
			s.VIPs = []string{l.Addr.String()}
			if count[l.Addr] > 1 {
				s.ShareKey = PoolName
			}
		} else {
			r.Note(l.Place, "service %s: it listened on all addresses of the host: it gets an address from the pool %q, to which you have to add a range", s.Name, PoolName)
		}
		r.keepValid(&s, l.Backends)
		s.commonTargetPort()
		r.Services = append(r.Services, s)
	}
}

// span is a range of ports of one listener.
type span struct {
	first, last int
	Place
}

// spans are ranges in order that don't overlap.
type spans []span

// find returns where a range belongs, and whether it overlaps the one there.
func (s spans) find(p spec.PortRange) (i int, overlaps bool) {
	i, _ = slices.BinarySearchFunc(s, p.First, func(in span, first int) int { return cmp.Compare(in.last, first) })
	return i, i < len(s) && s[i].first <= max(p.First, p.Last)
}

// withoutTwins returns the listeners without those that listen where an earlier one does, each with every port once.
func (r *Result) withoutTwins(listeners []Listener) (out []Listener) {
	type at struct {
		addr     netip.Addr
		protocol string
	}
	taken := map[at]spans{}
	for _, l := range listeners {
		var ports []spec.Port
		var twin *span
		own := map[string]spans{}
		for _, p := range l.Ports {
			others := taken[at{l.Addr, p.Protocol}]
			if i, is := others.find(p.Port); is && twin == nil {
				twin = &others[i]
			}
			i, is := own[p.Protocol].find(p.Port)
			if is {
				r.Note(l.Place, "port %s of %s overlaps another one of the same service: not converted", p.Port, l.Addr)
				continue
			}
			own[p.Protocol] = slices.Insert(own[p.Protocol], i, span{p.Port.First, max(p.Port.First, p.Port.Last), l.Place})
			ports = append(ports, p)
		}
		if twin != nil {
			r.Note(l.Place, "%s port %s is also that of %s, which is converted: this one is not", l.Addr, l.Ports[0].Port, twin.From(l.Place))
			continue
		}
		for protocol, mine := range own {
			if k := (at{l.Addr, protocol}); l.Addr.IsValid() {
				taken[k] = append(taken[k], mine...)
				slices.SortFunc(taken[k], func(a, b span) int { return cmp.Compare(a.first, b.first) })
			}
		}
		l.Ports = ports
		out = append(out, l)
	}
	return out
}

// keepValid gives a service the backends and the scheduler flags with which it is valid, and notes the others. A problem that is left makes the result
// invalid.
func (r *Result) keepValid(s *Service, backends []Backend) {
	pool := spec.Pool{Name: PoolName} // with the addresses that matter here
	for _, b := range backends {
		if a, err := netip.ParseAddr(b.Address); err == nil {
			if _, found := slices.BinarySearchFunc(r.Addresses, a, netip.Addr.Compare); !found {
				continue
			}
			pool.CIDRs = append(pool.CIDRs, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	for {
		s.Backends = nil
		for _, b := range backends {
			s.Backends = append(s.Backends, b.Backend)
		}
		_, problems := s.Service.Build("import", s.Place.String())
		problems = append(problems, spec.CheckAgainstPools(&s.Service, []spec.Pool{pool})...)
		refused, flags := map[int]vip.Problem{}, map[int]vip.Problem{}
		for _, p := range problems {
			var i int
			if n, _ := fmt.Sscanf(p.Field, "backends[%d]", &i); n == 1 && i < len(backends) {
				refused[i] = p
			} else if n, _ := fmt.Sscanf(p.Field, "scheduler_flags[%d]", &i); n == 1 {
				flags[i] = p
			}
		}
		for i := len(s.SchedulerFlags) - 1; i >= 0; i-- {
			if p, is := flags[i]; is {
				r.Note(s.Place, "service %s: the scheduler flag %s is not converted: %s", s.Name, s.SchedulerFlags[i], p.Message)
				s.SchedulerFlags = slices.Delete(slices.Clone(s.SchedulerFlags), i, i+1)
			}
		}
		if len(refused)+len(flags) == 0 {
			for _, p := range problems {
				p.Place = "" // Note has it
				r.Refused++
				r.Note(s.Place, "%s", withHint(p))
			}
			return
		}
		for i := len(backends) - 1; i >= 0; i-- {
			if p, is := refused[i]; is {
				r.Note(backends[i].Place, "service %s: the backend %s is not converted: %s", s.Name, backends[i].Address, p.Message)
				backends = slices.Delete(slices.Clone(backends), i, i+1)
			}
		}
	}
}

// withHint returns a problem and its hint as one sentence.
func withHint(p vip.Problem) string {
	if p.Hint == "" {
		return p.Error()
	}
	return p.Error() + ": " + p.Hint
}

// commonTargetPort moves the port that all backends have to the service's port. A port equal to the
// service's own is the default, so it is not written at all.
func (s *Service) commonTargetPort() {
	if len(s.Ports) != 1 || s.Ports[0].Port.Last != 0 || len(s.Backends) == 0 {
		return
	}
	common := s.Backends[0].Port
	for _, b := range s.Backends {
		if b.Port != common {
			return
		}
	}
	for i := range s.Backends {
		s.Backends[i].Port = 0
	}
	if int(common) != s.Ports[0].Port.First {
		s.Ports[0].TargetPort = common
	}
}

// defaultName returns a name made of address, port and protocol: "vip-10-0-0-1-80-tcp".
func (l *Listener) defaultName() string {
	at := "any"
	if l.Addr.IsValid() {
		at = l.Addr.String()
	}
	name := "vip-" + at
	if len(l.Ports) > 0 {
		name += fmt.Sprintf("-%s-%s", l.Ports[0].Port, cmp.Or(l.Ports[0].Protocol, vip.TCP.String()))
	}
	return label(name)
}

// label turns a text into a DNS label, or into "" if nothing of it can be in one.
func label(text string) string {
	var b strings.Builder
	for _, c := range strings.ToLower(text) {
		if c >= 'a' && c <= 'z' || c >= '0' && c <= '9' {
			b.WriteRune(c)
		} else if s := b.String(); s != "" && !strings.HasSuffix(s, "-") {
			b.WriteByte('-')
		}
	}
	name := b.String()
	return strings.Trim(name[:min(len(name), 63)], "-")
}

// uniqueName returns name, or name with a number if it was used before.
func uniqueName(used map[string]int, name string) string {
	for {
		used[name]++
		n := used[name]
		if n == 1 {
			return name
		}
		suffix := fmt.Sprintf("-%d", n)
		numbered := strings.TrimRight(name[:min(len(name), 63-len(suffix))], "-") + suffix
		if used[numbered] == 0 {
			used[numbered] = 1
			return numbered
		}
	}
}

// Weight returns a backend's weight as written: nil for the default.
func Weight(n int) *int {
	if n == vip.DefaultWeight {
		return nil
	}
	return &n
}

// Scheduler sets the scheduler of a service, or notes that ironvip doesn't have it.
func (r *Result) Scheduler(at Place, s *spec.Service, name string) {
	var known vip.Scheduler
	if name == "" || known.UnmarshalText([]byte(name)) != nil {
		r.Note(at, "the scheduler %s is not available: %s is used", cmp.Or(name, `""`), s.Scheduler)
		return
	}
	s.Scheduler = name
}

// Affinity returns an affinity, bounded.
func (r *Result) Affinity(at Place, timeout time.Duration) *spec.Affinity {
	if timeout > vip.MaxAffinity {
		r.Note(at, "an affinity of %s is too long: %s is used", timeout, vip.MaxAffinity)
		timeout = vip.MaxAffinity
	}
	return &spec.Affinity{Timeout: new(spec.Duration(timeout))}
}

// Number reads a number within bounds. It notes anything else, and what takes its place.
func (r *Result) Number(at Place, what, text string, least, most int, instead string) (n int, ok bool) {
	n, err := strconv.Atoi(text)
	if err != nil || n < least || n > most {
		r.Note(at, "%s %q is not a number from %d to %d: %s", what, text, least, most, instead)
		return 0, false
	}
	return n, true
}

// Bounded returns a time within bounds, and notes that it was not.
func (r *Result) Bounded(at Place, what string, d, least, most time.Duration) *spec.Duration {
	bounded := min(max(d, least), most)
	if bounded != d {
		r.Note(at, "%s of %s is out of bounds: %s is used", what, spec.Duration(d), spec.Duration(bounded))
	}
	return new(spec.Duration(bounded))
}

// Range returns the addresses from first to last; none if there are more than most, or if it isn't a range.
func Range(first, last netip.Addr, most int) (out []netip.Addr) {
	for a := first; a.BitLen() == last.BitLen() && a.Compare(last) <= 0 && len(out) <= most; a = a.Next() {
		if out = append(out, a); a == last && len(out) <= most {
			return out
		}
	}
	return nil
}

// Port reads a port. It returns 0 for anything else.
func Port(text string) spec.PortNumber {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return 0
	}
	return spec.PortNumber(n)
}

// Ports reads a port, or a range of ports: "80", "80-90".
func Ports(text string) (p spec.PortRange, ok bool) {
	first, last, isRange := strings.Cut(text, "-")
	p.First, p.Last = int(Port(first)), int(Port(last))
	ok = p.First > 0 && (!isRange || p.Last >= p.First)
	if p.Last == p.First {
		p.Last = 0
	}
	return p, ok
}
