package keepalived

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"go4.org/netipx"

	"github.com/ironvip/ironvip/cmd/ironvip/cli/migrate"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

// defaultPersistence is keepalived's persistence_timeout.
const defaultPersistence = 360 * time.Second

// maxGroup bounds the addresses of one virtual_server_group.
const maxGroup = 4096

// server is a virtual_server that is being converted.
type server struct {
	*converter
	where    string // for notes
	protocol vip.Protocol
	service  spec.Service
	backends []migrate.Backend
	sorry    *statement  // the sorry_server, if it is a backend
	check    timing      // defaults of its real servers' checks
	weight   *int        // of real servers without one
	checks   []realCheck // of the real servers, in their order
}

// serverNotes are the statements of a virtual_server without an equivalent.
var serverNotes = map[string]string{
	"alpha":                   "backends take connections until their first check has a result; add slow_start for servers that need time",
	"omega":                   "a stop changes no weight",
	"quorum":                  "use panic_threshold, in percent",
	"hysteresis":              "use health.rise and health.fall",
	"quorum_up":               `follow "ironvip events"`,
	"quorum_down":             `follow "ironvip events"`,
	"persistence_engine":      "affinity is by the client's address",
	"persistence_granularity": "affinity is by the client's whole address",
	"smtp_alert":              `follow "ironvip events"`,
	"sorry_server_inhibit":    "a backup takes connections as any other backend",
	"sorry_server_lvs_method": "a service has one forwarding method",
	"ha_suspend":              "every host checks the backends",
}

// virtualServer converts a virtual_server to a listener for each of its addresses.
func (c *converter) virtualServer(s *statement) []migrate.Listener {
	v := &server{converter: c, where: "virtual_server " + strings.Join(s.Words[1:], " ")}
	at := c.targets(s)
	if len(at) == 0 { // a note says why
		s.drop()
		return nil
	}
	v.service.Scheduler = vip.WeightedLeastConnection.String()
	for _, inner := range s.block {
		v.statement(inner)
	}
	v.protocol = v.readProtocol(s)
	if v.service.Affinity == nil && slices.ContainsFunc(at, func(t target) bool { return t.ports.First == 0 }) {
		v.service.Affinity = v.Affinity(s.Place, defaultPersistence) // keepalived has all ports only so
	}
	v.realServers(s)
	if len(v.checks) == 0 {
		v.Note(s.Place, "%s has no real_server: keepalived ignores it", v.where)
		s.drop()
		return nil
	}
	v.flags(s)
	v.finishCheck()
	var out []migrate.Listener
	for _, t := range at {
		backends, service := slices.Clone(v.backends), v.service
		if t.ports.First == 0 {
			t.ports = spec.PortRange{First: 1, Last: 65535}
		}
		for i := range backends {
			// Only translation changes a port, and a range of ports keeps each one.
			if b := &backends[i]; v.service.Forward != "" && b.Port != 0 && int(b.Port) != t.ports.First || t.ports.Last != 0 {
				if v.service.Forward != "" && t.ports.Last == 0 {
					v.Note(b.Place, "port %d of %s is not converted: with forward %s, backends get the VIP's port", b.Port, b.Address, v.service.Forward)
					if h := service.Health; i == 0 && h != nil && h.Port == 0 && h.Type != vip.CheckNone.String() && h.Type != vip.CheckExec.String() {
						probed := *h // keepalived probes this port
						probed.Port, service.Health = b.Port, &probed
					}
				}
				b.Port = 0
			}
		}
		port := spec.Port{Port: t.ports}
		if v.protocol != vip.TCP {
			port.Protocol = v.protocol.String()
		}
		out = append(out, migrate.Listener{Place: s.Place, Addr: t.addr, Ports: []spec.Port{port}, Backends: backends, Service: service})
	}
	return out
}

// readProtocol returns the protocol of a virtual_server. Without one, keepalived uses UDP.
func (v *server) readProtocol(s *statement) vip.Protocol {
	stated := s.last("protocol")
	if stated == nil {
		v.Note(s.Place, "%s has no protocol: it is UDP, as keepalived takes it", v.where)
		return vip.UDP
	}
	var p vip.Protocol
	if p.UnmarshalText([]byte(strings.ToLower(stated.Arg(0)))) == nil {
		return p
	}
	v.Note(stated.Place, "%q is not a protocol: UDP is used, as keepalived takes it without one", stated.Arg(0))
	return vip.UDP
}

// target is one address of a virtual_server.
type target struct {
	addr  netip.Addr
	ports spec.PortRange // zero: all ports
}

// targets returns what a virtual_server listens on.
func (c *converter) targets(s *statement) []target {
	switch s.Arg(0) {
	case "fwmark":
		c.Note(s.Place, "virtual_server fwmark %s is not converted: define a service for each address, or one with a range of ports", s.Arg(1))
		return nil
	case "group":
		group := c.groups[s.Arg(1)]
		if group == nil {
			c.Note(s.Place, "virtual_server_group %q is not defined", s.Arg(1))
			return nil
		}
		var out []target
		for _, line := range group.block {
			if line.Keyword() == "fwmark" {
				c.Note(line.Place, "fwmark %s is not converted: define a service for each address, or one with a range of ports", line.Arg(0))
				continue
			}
			out = append(out, c.target(line.Place, line.Keyword(), line.Arg(0))...)
		}
		return out
	}
	return c.target(s.Place, s.Arg(0), s.Arg(1))
}

// target reads an address, a range of addresses or a prefix, and a port or none.
func (c *converter) target(at migrate.Place, address, port string) []target {
	if address == "" {
		c.Note(at, "an address is missing")
		return nil
	}
	var ports spec.PortRange
	if port != "" && port != "0" {
		first, _, isRange := strings.Cut(port, "-")
		if isRange {
			c.Note(at, "%q is not a port: %s is used, as keepalived takes it", port, first)
		}
		if ports.First = int(migrate.Port(first)); ports.First == 0 {
			c.Note(at, "%q is not a port: not converted", port)
			return nil
		}
	}
	text, last, isRange := strings.Cut(address, "-")
	addr, err := netip.ParseAddr(text)
	end := addr
	if prefix, err2 := netip.ParsePrefix(text); err2 == nil {
		all := netipx.RangeOfPrefix(prefix)
		addr, end, err = all.From(), all.To(), nil
	}
	if err != nil {
		c.Note(at, "%q is not an address: not converted", address)
		return nil
	}
	if isRange {
		end = lastAddress(addr, last)
	}
	all := migrate.Range(addr, end, maxGroup)
	if all == nil {
		c.Note(at, "%q is not a range of at most %d addresses: not converted", address, maxGroup)
	}
	var out []target
	for _, a := range all {
		out = append(out, target{a, ports})
	}
	return out
}

// lastAddress returns the end of a range: an address, or the last number of one, which is decimal for
// IPv4 and hexadecimal for IPv6. It returns the zero Addr if the range isn't one.
func lastAddress(first netip.Addr, last string) netip.Addr {
	end, err := netip.ParseAddr(last)
	if err != nil && last != "" && !strings.ContainsAny(last, ".:") {
		text := first.String()
		end, err = netip.ParseAddr(text[:strings.LastIndexAny(text, ".:")+1] + cmp.Or(strings.TrimLeft(last, "0"), "0"))
	}
	if err != nil || end.BitLen() != first.BitLen() || end.Less(first) {
		return netip.Addr{}
	}
	return end
}

// statement converts one statement of a virtual_server, except its real servers.
func (v *server) statement(s *statement) {
	switch s.Keyword() {
	case "lb_algo", "lvs_sched":
		v.Scheduler(s.Place, &v.service, s.Arg(0))
	case "lb_kind", "lvs_method":
		v.service.Forward = v.forward(s)
	case "persistence_timeout":
		seconds := int(defaultPersistence.Seconds())
		if s.Arg(0) != "" {
			seconds, _ = v.number(s, 1, 2678400, "there is no affinity, as in keepalived")
		}
		if v.service.Affinity = nil; seconds > 0 {
			v.service.Affinity = v.Affinity(s.Place, time.Duration(seconds)*time.Second)
		}
	case "real_server", "sorry_server", "protocol", "ops", "flag-1", "flag-2", "sh-port", "sh-fallback", "mh-port", "mh-fallback":
		// elsewhere in this file
	case "hashed", "ip_family", "quorum_weight", "inhibit_on_failure":
		s.Read() // nothing is missing: an unhealthy backend is never removed
	case "virtualhost":
		v.check.host = s.Arg(0)
	case "weight":
		if n, ok := v.number(s, 1, vip.MaxWeight, "the weight is "+strconv.Itoa(vip.DefaultWeight)); ok {
			v.weight = migrate.Weight(n)
		}
	default:
		if !v.check.set(s, v.converter, 1) {
			v.other(s, serverNotes, v.where)
		}
	}
}

// forward returns the forwarding method of a statement, "" for the default.
func (v *server) forward(s *statement) string {
	switch s.Arg(0) {
	case "NAT":
	case "DR":
		return vip.ForwardDirect.String()
	case "TUN":
		if len(s.Args()) > 1 {
			v.Note(s.Place, "%q: only tunnels by IP in IP are available", strings.Join(s.Words[2:], " "))
		}
		return vip.ForwardTunnel.String()
	default:
		v.Note(s.Place, "%q is not a forwarding method: nat is used", s.Arg(0))
	}
	return ""
}

// realServers converts the real servers, then the sorry server.
func (v *server) realServers(s *statement) {
	for _, inner := range s.block {
		if inner.Words[0] == "real_server" {
			v.realServer(inner)
		}
	}
	if sorry := s.last("sorry_server"); sorry != nil {
		if b, ok := v.backend(sorry); ok {
			b.Backup, v.sorry = true, sorry
			v.backends = append(v.backends, b)
		}
	}
}

// realNotes are the statements of a real_server without an equivalent.
var realNotes = map[string]string{
	"notify_up":          `follow "ironvip events"`,
	"notify_down":        `follow "ironvip events"`,
	"lthreshold":         "use max_connections",
	"smtp_alert":         `follow "ironvip events"`,
	"alpha":              "the first result of a check decides",
	"snmp_name":          "",
	"inhibit_on_failure": "",
}

// realServer converts a real_server to a backend, and remembers its check.
func (v *server) realServer(s *statement) {
	b, ok := v.backend(s)
	if !ok {
		return
	}
	if b.Weight = v.weight; !s.open {
		v.Note(s.Place, "%s has no block: keepalived ignores what follows it", s)
	}
	where := "real_server " + strings.Join(s.Words[1:], " ")
	check := realCheck{Place: s.Place, timing: v.check}
	for _, inner := range s.block {
		keyword := inner.Keyword()
		switch {
		case keyword == "weight":
			isNumber, instead := inner.Arg(0) == "" || strings.ContainsAny(inner.Arg(0), "0123456789"), "ignored"
			if !isNumber {
				instead = "it is 0, as in keepalived"
			}
			if n, ok := v.number(inner, 0, vip.MaxWeight, instead); ok || !isNumber {
				b.Weight = migrate.Weight(n)
			}
		case keyword == "uthreshold":
			b.MaxConnections, _ = v.number(inner, 0, vip.MaxMaxConnections, "connections are not limited")
		case keyword == "lb_kind" || keyword == "lvs_method":
			if v.forward(inner) != v.service.Forward {
				v.Note(inner.Place, "%s is not converted: a service has one forwarding method", keyword)
			}
		case keyword == "virtualhost":
			check.host = inner.Arg(0)
		case checkTypes[keyword] != nil:
			if check.block != nil {
				v.Note(inner.Place, "%s is not converted: a backend has one check, %s of %s", keyword, check.block.Words[0], check.block.From(inner.Place))
				inner.drop()
				continue
			}
			check.block = inner
		case check.set(inner, v.converter, 1):
		default:
			v.other(inner, realNotes, where)
		}
	}
	v.checks = append(v.checks, check)
	v.backends = append(v.backends, b)
}

// backend reads the address and the port of a real_server or sorry_server.
func (v *server) backend(s *statement) (b migrate.Backend, ok bool) {
	addr, err := netip.ParseAddr(s.Arg(0))
	if err != nil {
		v.Note(s.Place, "%q is not an address: not converted", s.Arg(0))
		return b, false
	}
	b.Place, b.Address = s.Place, addr.String()
	if text := s.Arg(1); text != "" && text != "0" {
		if b.Port = migrate.Port(text); b.Port == 0 {
			v.Note(s.Place, "%q is not a port: the port of the service is used", text)
		}
	}
	return b, true
}

// schedulerFlags are the flags of statements, and the schedulers that have them; none: all.
var schedulerFlags = map[string]struct {
	flag string
	of   []vip.Scheduler
}{
	"ops": {flag: "one-packet"}, "flag-1": {"fallback", []vip.Scheduler{vip.SourceHash, vip.MaglevHash}}, "flag-2": {"port", []vip.Scheduler{vip.SourceHash, vip.MaglevHash}},
	"sh-fallback": {"fallback", []vip.Scheduler{vip.SourceHash}}, "mh-fallback": {"fallback", []vip.Scheduler{vip.MaglevHash}},
	"sh-port": {"port", []vip.Scheduler{vip.SourceHash}}, "mh-port": {"port", []vip.Scheduler{vip.MaglevHash}},
}

// flags converts the flags of the schedulers. One that belongs to some of them counts only after the scheduler is known.
func (v *server) flags(s *statement) {
	known := ""
	for _, inner := range s.block {
		f, is := schedulerFlags[inner.Words[0]]
		switch {
		case inner.Words[0] == "lb_algo" || inner.Words[0] == "lvs_sched":
			known = v.service.Scheduler
		case !is, slices.Contains(v.service.SchedulerFlags, f.flag):
		case f.flag == "one-packet" && (v.protocol != vip.UDP || v.service.Forward == ""):
			v.Note(inner.Place, "ops has an effect with UDP, and lb_kind DR or TUN, only: ignored")
		case f.of == nil || slices.ContainsFunc(f.of, func(of vip.Scheduler) bool { return of.String() == known }):
			v.service.SchedulerFlags = append(v.service.SchedulerFlags, f.flag)
		default:
			v.Note(inner.Place, "%s has no effect with the scheduler %s, or before it: ignored", inner.Words[0], v.service.Scheduler)
		}
	}
}

// number reads the first argument of a statement as a number within bounds. It notes anything else,
// and what takes its place.
func (c *converter) number(s *statement, least, most int, instead string) (n int, ok bool) {
	return c.Number(s.Place, s.Keyword(), s.Arg(0), least, most, instead)
}

// seconds reads keepalived's times: seconds, with a fraction or without.
func seconds(text string) (time.Duration, error) {
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || n < 0 || n > 1e6 {
		return 0, fmt.Errorf("%q is not a number of seconds", text)
	}
	return time.Duration(n * float64(time.Second)), nil
}
