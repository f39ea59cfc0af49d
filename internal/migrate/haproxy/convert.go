package haproxy

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/ironvip/ironvip/internal/migrate"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

// Convert reads a text. name is its name in notes.
func Convert(name, text string) migrate.Result {
	var c converter
	all := sections(name, text, &c.Result)
	c.backends = map[string]*section{}
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
}

// proxy is a listen section, or a frontend and its backend, that is being converted.
type proxy struct {
	*converter
	service  spec.Service
	check    check
	standard []string // words of default-server
}

// proxy converts a listen or frontend section.
func (c *converter) proxy(s *section, used map[string]bool) []migrate.Listener {
	if mode := s.mode(); mode != "tcp" {
		c.Note(s.Place, "%s %s is not converted: ironvip forwards connections and does not read requests (mode %s)", s.kind, s.name, mode)
		for _, l := range s.lines {
			if l.words[0] == "default_backend" || l.words[0] == "use_backend" {
				used[l.arg(0)] = true // the note of the frontend is enough
			}
		}
		return nil
	}
	p := &proxy{converter: c}
	p.service.Scheduler = vip.WeightedRoundRobin.String()
	var binds []line
	var backend *section
	for _, l := range s.all() {
		switch l.words[0] {
		case "bind":
			binds = append(binds, l)
		case "default_backend":
			used[l.arg(0)] = true
			if backend = c.backends[l.arg(0)]; backend == nil {
				c.Note(l.Place, "backend %q is not defined", l.arg(0))
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
	p.service.Health = p.check.result(p)
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
func (p *proxy) option(s *section, l *line) {
	keyword := l.words[0]
	if keyword == "option" || keyword == "timeout" {
		keyword += " " + l.arg(0)
	}
	switch keyword {
	case "server":
		p.server(l, l.words[1:])
	case "server-template":
		p.Note(l.Place, "server-template is not converted: write the backends, or use a source that follows a registry")
	case "default-server":
		p.standard = append(p.standard, l.words[1:]...)
	case "balance":
		p.balance(l)
	case "timeout connect":
		p.service.ConnectTimeout = p.time(l, l.arg(1), 10*time.Millisecond, time.Minute)
	case "timeout client", "timeout server", "timeout tunnel":
		p.idle(l)
	case "timeout server-fin":
		p.service.HalfCloseTimeout = p.time(l, l.arg(1), time.Second, 168*time.Hour)
	case "timeout queue":
		p.service.QueueTimeout = p.time(l, l.arg(1), 10*time.Millisecond, time.Minute)
	case "maxconn":
		if s.own(l) || s.kind != "backend" {
			p.service.MaxConnections, _ = strconv.Atoi(l.arg(0))
		}
	case "stick":
		if l.arg(0) == "on" && strings.HasPrefix(l.arg(1), "src") && p.service.Affinity == nil {
			p.service.Affinity = &spec.Affinity{}
		} else if !strings.HasPrefix(l.arg(1), "src") {
			p.Note(l.Place, "%q is not converted: affinity is by the client's address", l.String())
		}
	case "stick-table":
		p.stickTable(l)
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
func (p *proxy) balance(l *line) {
	switch l.arg(0) {
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
		p.Note(l.Place, "balance %s is not available: wrr is used", l.arg(0))
	}
}

// idle converts the timeouts of client and server: the longest of them, because ironvip has one.
func (p *proxy) idle(l *line) {
	d := p.time(l, l.arg(1), time.Second, 168*time.Hour)
	if d != nil && (p.service.IdleTimeout == nil || *d > *p.service.IdleTimeout) {
		p.service.IdleTimeout = d
	}
}

// stickTable reads the expiry of a table of clients' addresses.
func (p *proxy) stickTable(l *line) {
	for i, w := range l.words {
		if w == "expire" {
			if d := p.time(l, l.arg(i), time.Second, vip.MaxAffinity); d != nil {
				p.service.Affinity = &spec.Affinity{Timeout: d}
			}
		}
	}
}

// time reads a time, in milliseconds or with a unit, and bounds it.
func (p *proxy) time(l *line, text string, least, most time.Duration) *spec.Duration {
	d, err := parseTime(text)
	if err != nil {
		p.Note(l.Place, "%v: ignored", err)
		return nil
	}
	bounded := min(max(d, least), most)
	if bounded != d {
		p.Note(l.Place, "%s is out of bounds: %s is used", d, bounded)
	}
	out := spec.Duration(bounded)
	return &out
}

// parseTime reads HAProxy's times: a number of milliseconds, or with a unit.
func parseTime(text string) (time.Duration, error) {
	digits := strings.TrimRight(text, "usmhd")
	n, err := strconv.ParseInt(digits, 10, 32)
	units := map[string]time.Duration{"": time.Millisecond, "us": time.Microsecond, "ms": time.Millisecond, "s": time.Second,
		"m": time.Minute, "h": time.Hour, "d": 24 * time.Hour}
	unit, known := units[text[len(digits):]]
	if err != nil || n < 0 || !known {
		return 0, fmt.Errorf("%q is not a time", text)
	}
	return time.Duration(n) * unit, nil
}

// listeners returns one listener for each address that is bound.
func (p *proxy) listeners(s *section, binds []line) []migrate.Listener {
	var order []netip.Addr
	byAddr := map[netip.Addr]*migrate.Listener{}
	for i := range binds {
		b := &binds[i]
		for _, at := range p.bind(b) {
			l := byAddr[at.addr]
			if l == nil {
				l = &migrate.Listener{Place: s.Place, Name: s.name, Addr: at.addr, Service: p.service}
				l.Service.Backends = append([]spec.Backend(nil), p.service.Backends...)
				byAddr[at.addr] = l
				order = append(order, at.addr)
			}
			l.Ports = append(l.Ports, spec.Port{Port: at.ports})
			if at.acceptProxy && l.Service.AcceptProxyFrom == nil {
				l.Service.AcceptProxyFrom = everywhere(at.addr)
				p.Note(b.Place, "accept-proxy: restrict accept_proxy_from to your balancers")
			}
		}
	}
	var out []migrate.Listener
	for _, addr := range order {
		out = append(out, *byAddr[addr])
	}
	return out
}

// everywhere returns the prefix of all addresses of the family of a.
func everywhere(a netip.Addr) []string {
	if a.Is6() {
		return []string{"::/0"}
	}
	return []string{"0.0.0.0/0"}
}
