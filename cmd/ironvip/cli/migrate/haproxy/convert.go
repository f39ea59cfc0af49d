package haproxy

import (
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/ironvip/ironvip/cmd/ironvip/cli/migrate"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

// Convert reads a text. name is its name in notes.
func Convert(name, text string) migrate.Result {
	var c converter
	all := sections(name, text, &c.Result)
	c.backends = map[string]*section{}
	c.readTables(all)
	used := map[string]bool{}
	for _, s := range all {
		if s.kind == "backend" {
			c.backends[s.name] = s
		}
	}
	var listeners []migrate.Listener
	for _, s := range all {
		switch {
		case s.kind == "listen" || s.kind == "frontend":
			listeners = append(listeners, c.proxy(s, used)...)
		case !proxies[s.kind] && s.kind != "global" && s.kind != "defaults":
			c.Note(s.Place, "section %s is not converted", strings.TrimSpace(s.kind+" "+s.name))
		}
	}
	for _, s := range all {
		if s.kind == "backend" && !used[s.name] {
			c.Note(s.Place, "backend %s is not converted: no frontend in mode tcp has it as its default_backend", s.name)
		}
	}
	c.Add(listeners)
	c.SortNotes()
	return c.Result
}

type converter struct {
	migrate.Result
	backends map[string]*section
	tables   map[string]*table // by the name of their section
}

// proxy is a listen section, or a frontend and its backend, that is being converted.
type proxy struct {
	*converter
	service  spec.Service
	check    check
	standard []string // words of default-server

	unchecked []uncheckedServer
}

// proxy converts a listen or frontend section.
func (c *converter) proxy(s *section, used map[string]bool) []migrate.Listener {
	if mode := s.mode(); mode != "tcp" {
		c.Note(s.Place, "%s %s is not converted: ironvip forwards connections and does not read requests (mode %s)", s.kind, s.name, mode)
		for _, l := range s.lines {
			if l.Words[0] == "default_backend" || l.Words[0] == "use_backend" {
				used[l.Arg(0)] = true // the note of the frontend is enough
			}
		}
		return nil
	}
	p := &proxy{converter: c}
	p.service.Scheduler = vip.WeightedRoundRobin.String()
	var binds []migrate.Statement
	var backend *section
	for _, l := range s.all() {
		switch l.Words[0] {
		case "bind":
			binds = append(binds, l)
		case "default_backend":
			used[l.Arg(0)] = true
			if backend = c.backends[l.Arg(0)]; backend == nil {
				c.Note(l.Place, "backend %q is not defined", l.Arg(0))
			}
		default:
			p.option(s, &l)
		}
	}
	if backend != nil {
		for _, l := range backend.all() {
			p.option(backend, &l)
		}
	}
	p.service.Health = p.check.result()
	p.noteUnchecked()
	if len(binds) == 0 {
		c.Note(s.Place, "%s %s has no bind line: not converted", s.kind, s.name)
		return nil
	}
	return p.listeners(s, binds)
}

// silent are the lines that need no equivalent.
var silent = map[string]bool{
	"mode": true, "log": true, "log-format": true, "log-tag": true, "description": true, "id": true, "option tcplog": true,
	"option dontlognull": true, "option logasap": true, "option dontlog-normal": true, "option log-health-checks": true, "option redispatch": true,
	"retries": true, "option tcpka": true, "option clitcpka": true, "option srvtcpka": true, "option httplog": true, "option http-server-close": true,
	"option forwardfor": true, "option splice-auto": true, "option splice-request": true, "option splice-response": true, "errorfile": true,
	"timeout http-request": true, "timeout http-keep-alive": true, "option log-separate-errors": true, "option contstats": true, "no": true,
	"option tcp-smart-accept": true, "option tcp-smart-connect": true, "hash-type": true, "option abortonclose": true, "option http-keep-alive": true,
	"timeout client-fin": true, "option allbackups": true,
}

// option converts a line that isn't about listening.
func (p *proxy) option(s *section, l *migrate.Statement) {
	keyword := l.Words[0]
	if keyword == "option" || keyword == "timeout" {
		keyword += " " + l.Arg(0)
	}
	switch keyword {
	case "server":
		p.server(l, l.Words[1:])
	case "server-template":
		p.Note(l.Place, "server-template is not converted: write the backends, or use a source that follows a registry")
	case "default-server":
		p.standard = append(p.standard, l.Words[1:]...)
	case "balance":
		p.balance(l)
	case "timeout connect":
		p.service.ConnectTimeout = p.limit(l, vip.MinConnectTimeout, vip.MaxConnectTimeout, vip.DefaultConnectTimeout)
	case "timeout client", "timeout server", "timeout tunnel":
		p.idle(l)
	case "timeout server-fin":
		p.service.HalfCloseTimeout = p.limit(l, vip.MinIdleTimeout, vip.MaxIdleTimeout, vip.DefaultHalfCloseTimeout)
	case "timeout queue":
		p.service.QueueTimeout = p.limit(l, vip.MinQueueTimeout, vip.MaxQueueTimeout, vip.DefaultQueueTimeout)
	case "maxconn":
		if s.own(l) || s.kind != "backend" {
			if n, ok := p.number(l, keyword, l.Arg(0), 0, vip.MaxMaxConnections); ok {
				p.service.MaxConnections = n
			}
		}
	case "stick":
		p.stick(s, l)
	case "stick-table":
		if !p.tables[s.name].sticky && s.own(l) {
			p.Note(l.Place, "%q is not converted: a table is used for affinity only, with stick on src", l.String())
		}
	default:
		switch {
		case p.check.option(p, l) || silent[keyword]:
		case !s.own(l): // a default for all sections is not worth a note in each
		default:
			p.Note(l.Place, "%q is not converted", l.String())
		}
	}
}

// balance converts the algorithm.
func (p *proxy) balance(l *migrate.Statement) {
	switch l.Arg(0) {
	case "roundrobin", "static-rr":
		p.service.Scheduler = vip.WeightedRoundRobin.String()
	case "leastconn":
		p.service.Scheduler = vip.WeightedLeastConnection.String()
	case "source":
		p.service.Scheduler = vip.MaglevHash.String()
	case "first":
		p.service.Scheduler = vip.WeightedFailover.String()
		p.Note(l.Place, "balance first becomes fo: give the backends descending weights, and max_connections to those that may be full")
	default:
		p.Note(l.Place, "balance %s is not available: wrr is used", l.Arg(0))
	}
}

// idle converts the timeouts of client and server: the longest of them, because ironvip has one.
func (p *proxy) idle(l *migrate.Statement) {
	d := p.time(l, l.Arg(1), vip.MinIdleTimeout, vip.MaxIdleTimeout)
	if d != nil && *d == 0 {
		*d = spec.Duration(vip.MaxIdleTimeout)
		p.Note(l.Place, "timeout %s 0 is no limit: idle_timeout is its maximum, %s", l.Arg(0), d)
	}
	if d != nil && (p.service.IdleTimeout == nil || *d > *p.service.IdleTimeout) {
		p.service.IdleTimeout = d
	}
}

// limit reads a timeout that is a limit. HAProxy's 0 is no limit, which ironvip doesn't have.
func (p *proxy) limit(l *migrate.Statement, least, most, standard time.Duration) *spec.Duration {
	d := p.time(l, l.Arg(1), least, most)
	if d != nil && *d == 0 {
		p.Note(l.Place, "timeout %s 0 is no limit: the default of %s is used", l.Arg(0), spec.Duration(standard))
		return nil
	}
	return d
}

// number reads a number within bounds. It notes anything else, so that the default stays.
func (p *proxy) number(l *migrate.Statement, what, text string, least, most int) (n int, ok bool) {
	n, err := strconv.Atoi(text)
	if err != nil || n < least || n > most {
		p.Note(l.Place, "%s %q is not converted: it is not a number from %d to %d", what, text, least, most)
		return 0, false
	}
	return n, true
}

// listeners returns one listener for each address that is bound. The ports of one address that accept
// the PROXY protocol and those that don't are two, because a service has one setting for its ports.
func (p *proxy) listeners(s *section, binds []migrate.Statement) []migrate.Listener {
	type key struct {
		addr        netip.Addr
		acceptProxy bool
	}
	var out []migrate.Listener
	index := map[key]int{}
	for i := range binds {
		b := &binds[i]
		for _, at := range p.bind(b) {
			k := key{at.addr, at.acceptProxy}
			n, known := index[k]
			if !known {
				n = len(out)
				index[k] = n
				l := migrate.Listener{Place: s.Place, Name: s.name, Addr: at.addr, Service: p.service}
				l.Service.Backends = append([]spec.Backend(nil), p.service.Backends...)
				if at.acceptProxy {
					l.Service.AcceptProxyFrom = []string{"0.0.0.0/0"}
					if at.addr.Is6() {
						l.Service.AcceptProxyFrom = []string{"::/0"}
					}
					p.Note(b.Place, "accept-proxy: restrict accept_proxy_from to your balancers")
				}
				out = append(out, l)
			}
			out[n].Ports = append(out[n].Ports, spec.Port{Port: at.ports})
		}
	}
	return out
}
