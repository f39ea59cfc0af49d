package haproxy

import (
	"maps"
	"net/netip"
	"slices"
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
			s.drop()
		}
	}
	for _, s := range all {
		if proxies[s.kind] {
			c.NoteUnread(&s.Statement)
		}
		for i := range s.lines {
			if l := &s.lines[i]; proxies[s.kind] || s.kind == "defaults" && l.IsRead() { // a default that no section needs is not missing
				c.NoteUnread(l)
			}
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
	backends []migrate.Backend
	check    check
	standard [][2]string               // options of default-server, each once
	idle     map[string]*spec.Duration // by "client", "server" and "tunnel": the last ones
	own      serverOptions             // of the server that is being read
	first    *serverOptions            // of the first server

	unchecked []uncheckedServer
}

// proxy converts a listen or frontend section.
func (c *converter) proxy(s *section, used map[string]bool) []migrate.Listener {
	if mode := s.mode(); mode != "tcp" {
		c.Note(s.Place, "%s %s is not converted: ironvip forwards connections and does not read requests (mode %s)", s.kind, s.name, mode)
		c.leaveOut(s, used)
		return nil
	}
	if off := s.disabled(); off != nil {
		c.Note(off.Place, "%s: %s %s is not converted", off.String(), s.kind, s.name)
		c.leaveOut(s, used)
		return nil
	}
	p := &proxy{converter: c, idle: map[string]*spec.Duration{}}
	p.service.Scheduler = vip.WeightedRoundRobin.String()
	var binds []migrate.Statement
	backend := c.backendOf(s)
	for _, l := range s.all() {
		switch {
		case l.Words[0] == "bind":
			binds = append(binds, l)
		case backend != nil && (l.Words[0] == "server" || l.Words[0] == "server-template"):
			p.Note(l.Place, "%q is not converted: the backend %s comes before the servers of the section", l.String(), backend.name)
		default:
			p.option(s, &l)
		}
	}
	if backend != nil {
		used[backend.name] = true
		for _, l := range backend.all() {
			p.option(backend, &l)
		}
	}
	for _, d := range p.idle { // ironvip has one for both sides
		if p.service.IdleTimeout == nil || *d > *p.service.IdleTimeout {
			p.service.IdleTimeout = d
		}
	}
	p.first.set(&p.service)
	p.service.Health = p.check.result(p)
	p.noteUnchecked()
	p.queue()
	if len(binds) == 0 {
		c.Note(s.Place, "%s %s has no bind line: not converted", s.kind, s.name)
		return nil
	}
	return p.listeners(s, binds)
}

// leaveOut makes a section and its backends read: a note names the section.
func (c *converter) leaveOut(s *section, used map[string]bool) {
	for _, l := range s.lines {
		if l.Words[0] == "default_backend" || l.Words[0] == "use_backend" {
			used[l.Arg(0)] = true
			if b := c.backends[l.Arg(0)]; b != nil {
				b.drop()
			}
		}
	}
	s.drop()
}

// backendOf returns the backend of a section: that of its first use_backend without a condition, or else of its last
// default_backend; nil if there is none.
func (c *converter) backendOf(s *section) *section {
	var choice *migrate.Statement
	for _, l := range s.all() {
		conditional := slices.Contains(l.Words, "if") || slices.Contains(l.Words, "unless") || len(l.Words) > 1 && strings.Contains(l.Words[1], "%[")
		if (choice == nil || choice.Words[0] == "default_backend") && (l.Words[0] == "default_backend" || l.Words[0] == "use_backend" && !conditional) {
			choice = &l
		}
	}
	if choice == nil {
		return nil
	}
	backend := c.backends[choice.Arg(0)]
	if choice.Keyword(); backend == nil {
		c.Note(choice.Place, "backend %q is not defined", choice.Arg(0))
	}
	return backend
}

// queue lets clients wait for a place, as HAProxy does with every maxconn.
func (p *proxy) queue() {
	limited := p.service.MaxConnections > 0 || slices.ContainsFunc(p.backends, func(b migrate.Backend) bool { return b.MaxConnections > 0 })
	switch {
	case !limited:
		p.service.MaxQueue = 0
	case p.service.MaxQueue == 0:
		p.service.MaxQueue = vip.MaxMaxQueue
	}
	if limited && p.service.QueueTimeout == nil && p.service.ConnectTimeout != nil { // the default of "timeout queue"
		p.service.QueueTimeout = new(min(max(*p.service.ConnectTimeout, spec.Duration(vip.MinQueueTimeout)), spec.Duration(vip.MaxQueueTimeout)))
	}
}

// silent are the lines that need no equivalent, or that HAProxy ignores in mode tcp.
var silent = words("mode log log-format log-tag description id retries hash-type errorfile errorloc no http-reuse compression cookie " +
	"monitor-uri stats option:tcplog option:dontlognull option:logasap option:dontlog-normal option:log-health-checks option:redispatch " +
	"option:tcpka option:clitcpka option:srvtcpka option:httplog option:httpclose option:http-server-close option:forwardfor " +
	"option:splice-auto option:splice-request option:splice-response option:log-separate-errors option:contstats option:tcp-smart-accept " +
	"option:tcp-smart-connect option:abortonclose option:http-keep-alive option:allbackups option:http-ignore-probes option:prefer-last-server " +
	"option:socket-stats option:originalto timeout:http-request timeout:http-keep-alive timeout:client-fin timeout:tarpit")

// The lines that count on one side only: of clients, in frontend and listen sections, and of servers, in backend and listen
// sections.
var (
	ofClients = words("maxconn timeout:client")
	ofServers = words("server server-template default-server balance stick stick-table timeout:connect timeout:server timeout:tunnel " +
		"timeout:server-fin timeout:queue timeout:check option:tcp-check option:httpchk option:smtpchk option:external-check " +
		"option:mysql-check option:pgsql-check option:redis-check option:ldap-check option:ssl-hello-chk option:spop-check tcp-check http-check")
	// keywords are those of lines, in contrast to those of sections.
	keywords = words("bind default_backend use_backend option timeout acl tcp-request tcp-response http-request http-response source fullconn backlog", silent, ofClients, ofServers)
)

// words returns a set of words, and those of other sets. A colon stands for a space.
func words(text string, more ...map[string]bool) map[string]bool {
	set := map[string]bool{}
	for _, w := range strings.Fields(text) {
		set[strings.Replace(w, ":", " ", 1)] = true
	}
	for _, m := range more {
		maps.Copy(set, m)
	}
	return set
}

// option converts a line that isn't about listening.
func (p *proxy) option(s *section, l *migrate.Statement) {
	keyword := l.Words[0]
	if (keyword == "option" || keyword == "timeout") && len(l.Words) > 1 {
		keyword += " " + l.Words[1]
	}
	if s.kind == "frontend" && ofServers[keyword] || s.kind == "backend" && ofClients[keyword] {
		if s.own(l) {
			p.Note(l.Place, "%q is not converted: HAProxy ignores it in a %s", l.String(), s.kind)
		}
		return
	}
	if keyword == "default_backend" || keyword == "use_backend" {
		return // see backendOf
	}
	if l.Keyword(); keyword != l.Words[0] {
		l.Arg(0)
	}
	switch keyword {
	case "server":
		p.server(l, l.Args())
	case "server-template":
		p.Note(l.Place, "%q is not converted: write the backends, or use a source that follows a registry", l.String())
	case "default-server":
		for _, option := range options(l.Args()) {
			p.standard = append(slices.DeleteFunc(p.standard, func(o [2]string) bool { return o[0] == option[0] }), option)
		}
	case "balance":
		p.balance(l)
	case "timeout connect":
		p.service.ConnectTimeout = p.limit(l, vip.MinConnectTimeout, vip.MaxConnectTimeout, vip.DefaultConnectTimeout)
	case "timeout client", "timeout server", "timeout tunnel":
		p.readIdle(l)
	case "timeout server-fin":
		p.service.HalfCloseTimeout = p.limit(l, vip.MinIdleTimeout, vip.MaxIdleTimeout, vip.DefaultHalfCloseTimeout)
	case "timeout queue":
		p.service.QueueTimeout = p.limit(l, vip.MinQueueTimeout, vip.MaxQueueTimeout, vip.DefaultQueueTimeout)
	case "maxconn":
		if n, ok := p.number(l, keyword, l.Arg(0), 0, vip.MaxMaxConnections); ok {
			p.service.MaxConnections = n
		}
	case "stick":
		p.stick(s, l)
	case "stick-table":
		if !p.tables[s.name].sticky && s.own(l) {
			p.Note(l.Place, "%q is not converted: a table is used for affinity only, with stick on src", l.String())
		}
		for _, word := range []string{"type", "size", "expire", "store"} { // see readTables; only rules use what it stores
			l.After(word)
		}
	default:
		switch {
		case p.check.option(p, l):
		case silent[keyword]:
			l.Read()
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

// readIdle reads the timeout of the client, the server, or a tunnel.
func (p *proxy) readIdle(l *migrate.Statement) {
	d := p.time(l, l.Arg(1), vip.MinIdleTimeout, vip.MaxIdleTimeout)
	if d != nil && *d == 0 {
		*d = spec.Duration(vip.MaxIdleTimeout)
		p.Note(l.Place, "timeout %s 0 is no limit: idle_timeout is its maximum, %s", l.Arg(0), d)
	}
	if d != nil {
		p.idle[l.Arg(0)] = d
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
	return p.Number(l.Place, what, text, least, most, "not converted")
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
				l := migrate.Listener{Place: s.Place, Name: s.name, Addr: at.addr, Backends: p.backends, Service: p.service}
				if at.acceptProxy {
					l.Service.AcceptProxyFrom = []string{"0.0.0.0/0"}
					if at.addr.Is6() {
						l.Service.AcceptProxyFrom = []string{"::/0"}
					}
					p.Note(b.Place, "accept-proxy: restrict accept_proxy_from to your balancers")
				}
				out = append(out, l)
			}
			if port := (spec.Port{Port: at.ports}); !slices.Contains(out[n].Ports, port) { // ":25" and ":::25" are one
				out[n].Ports = append(out[n].Ports, port)
			}
		}
	}
	return out
}
