package haproxy

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/ironvip/ironvip/cmd/ironvip/cli/migrate"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

// check collects what a section says about checks. A service has one check, so the options of the
// first server with "check" count.
type check struct {
	on      bool // a server has "check"
	server  bool // the server that is being read has it
	kind    vip.CheckType
	spec    spec.HealthCheck
	timeout *spec.Duration

	connects, https bool // a rule has the connection; over TLS
	smtp            bool // the answer begins with 220
	rules           bool // option tcp-check: its rules count
	rule            *migrate.Place
	at              migrate.Place // of the first server with "check"
	own             serverCheck   // of the server that is being read
	first           serverCheck   // of the first server with "check"
	firstOf         string        // its name
}

// serverCheck are the options of one server's check. Zero values are not set.
type serverCheck struct {
	https, ssl     bool // of the check, of the server
	port           spec.PortNumber
	interval, fast spec.Duration
	rise, fall     int
}

// HAProxy's defaults.
const (
	defaultInter = 2 * time.Second
	defaultRise  = 2
	defaultFall  = 3
)

// option reads a line about checks, and reports whether it is one.
func (c *check) option(p *proxy, l *migrate.Statement) bool {
	switch l.Words[0] + " " + l.Arg(0) {
	case "option tcp-check":
		c.kind, c.smtp, c.rules = vip.CheckTCP, false, true
		return true
	case "option httpchk":
		c.kind, c.smtp = vip.CheckHTTP, false
		switch len(l.Words) {
		case 2:
		case 3:
			c.spec.Path = l.Arg(1)
		default:
			c.spec.Method, c.spec.Path = l.Arg(1), l.Arg(2)
		}
		c.host(p, l)
		return true
	case "option smtpchk":
		c.kind, c.smtp = vip.CheckTCP, true
		return true
	case "option external-check", "option mysql-check", "option pgsql-check", "option redis-check", "option ldap-check", "option ssl-hello-chk", "option spop-check":
		p.Note(l.Place, "%q is not converted: the check is a tcp check", l.String())
		c.kind, c.smtp = vip.CheckTCP, false
		return true
	case "timeout check":
		c.timeout = p.positive(l, l.Arg(1), vip.MinCheckInterval, vip.MaxCheckTimeout)
		return true
	}
	switch l.Words[0] {
	case "tcp-check":
		c.tcpCheck(p, l)
	case "http-check":
		c.httpCheck(p, l)
	default:
		return false
	}
	return true
}

// host reads the Host header that older versions have in the third argument of httpchk.
func (c *check) host(p *proxy, l *migrate.Statement) {
	version := l.Arg(3)
	if _, host, found := strings.Cut(version, "Host:"); found {
		host, more, _ := strings.Cut(host, "\r\n")
		if c.spec.Host = strings.TrimSpace(host); more != "" {
			p.Note(l.Place, "%q of httpchk is not converted", more)
		}
	} else if strings.Contains(version, "\n") {
		p.Note(l.Place, "headers of httpchk are not converted")
	}
}

// port reads the port of a check. Any other text leaves the port as it is.
func (p *proxy) port(l *migrate.Statement, text string, port *spec.PortNumber) {
	if n, ok := p.number(l, "port", text, 1, 65535); ok {
		*port = spec.PortNumber(n)
	}
}

// tcpCheck reads a rule of a tcp check. NoteUnread has the words that are left.
func (c *check) tcpCheck(p *proxy, l *migrate.Statement) {
	l.Keyword()
	c.rule = &l.Place
	switch kind := l.Arg(0); {
	case kind == "send" && c.spec.Send == "":
		c.spec.Send = l.Arg(1)
	case kind == "expect" && (l.Arg(1) == "string" || l.Arg(1) == "rstring") && c.spec.Expect == "":
		c.spec.Expect = l.Arg(2)
		p.Note(l.Place, "the answer must begin with the expected text: review health.expect")
	case kind == "connect" && !c.connects:
		c.connect(p, l)
	case kind == "comment":
		l.Read()
	default:
		p.Note(l.Place, "%q is not converted: a tcp check sends one text and expects one, over one connection", l.String())
	}
}

// connect reads the connection of a check. Another one would be a second check.
func (c *check) connect(p *proxy, l *migrate.Statement) {
	c.connects = true
	l.Has("default")
	if l.Has("port") {
		p.port(l, l.After("port"), &c.spec.Port)
	}
}

// httpCheck reads a rule of an http check. NoteUnread has the words that are left.
func (c *check) httpCheck(p *proxy, l *migrate.Statement) {
	l.Keyword()
	switch l.Arg(0) {
	case "connect":
		if c.connects {
			p.Note(l.Place, "%q is not converted: a check has one connection", l.String())
			return
		}
		c.connect(p, l)
		c.https = l.Has("ssl")
	case "send":
		c.spec.Method = cmp.Or(l.After("meth"), c.spec.Method)
		c.spec.Path = cmp.Or(l.After("uri"), c.spec.Path)
		l.After("ver")
		if i := slices.Index(l.Words, "hdr"); i > 0 && i+1 < len(l.Words) && strings.EqualFold(l.Words[i+1], "host") {
			l.After("hdr")
			c.spec.Host = l.Arg(i + 1)
		}
	case "expect":
		switch {
		case l.Arg(1) == "status":
			c.spec.Status = l.Arg(2)
		case l.Arg(1) == "string":
			c.spec.Body = l.Arg(2)
		default:
			p.Note(l.Place, "%q is not converted: use health.status or health.body", l.String())
		}
	case "comment":
		l.Read()
	default:
		p.Note(l.Place, "%q is not converted", l.String())
	}
}

// serverOption reads an option of a server, and reports whether it is about checks.
func (c *check) serverOption(p *proxy, l *migrate.Statement, option, value string) bool {
	number := func() int {
		n, _ := p.number(l, option, value, 1, vip.MaxRiseFall)
		return n
	}
	period := func() spec.Duration {
		if d := p.positive(l, value, vip.MinCheckInterval, vip.MaxCheckInterval); d != nil {
			return *d
		}
		return 0
	}
	switch option {
	case "check":
		c.server = true
	case "no-check":
		c.server = false
	case "inter":
		c.own.interval = period()
	case "fastinter":
		c.own.fast = period()
	case "rise":
		c.own.rise = number()
	case "fall":
		c.own.fall = number()
	case "port":
		p.port(l, value, &c.own.port)
	case "check-ssl":
		c.own.https = true
	case "no-check-ssl":
		c.own.https, c.own.ssl = false, false
	default:
		return false
	}
	return true
}

// endServer takes in the check of the server that was read, and notes what is lost of it.
func (c *check) endServer(p *proxy, l *migrate.Statement, name string) {
	c.own.https = c.own.https || c.own.ssl && c.own.port == 0 // another port is not that of the server's TLS
	c.own.ssl = false
	switch {
	case !c.on:
		c.on, c.first, c.firstOf, c.at = true, c.own, name, l.Place
	case c.own != c.first:
		p.Note(l.Place, "server %s has other options of its check than server %s: a service has one check, that of server %s", name, c.firstOf, c.firstOf)
	}
}

// result returns the check of the service. Without "check" at a server, HAProxy checks nothing.
func (c *check) result(p *proxy) *spec.HealthCheck {
	if !c.on {
		return &spec.HealthCheck{Type: vip.CheckNone.String()}
	}
	out := c.spec
	if c.rule != nil && !c.rules {
		p.Note(*c.rule, "tcp-check is not converted: HAProxy ignores it without option tcp-check")
		out.Send, out.Expect, out.Port = "", "", 0
	}
	if c.smtp {
		out.Expect = "220"
	}
	out.Port = cmp.Or(c.first.port, out.Port)
	out.Type = vip.CheckTCP.String()
	if c.kind == vip.CheckHTTP {
		out.Type = vip.CheckHTTP.String()
		if c.first.https || c.https {
			out.Type, out.SkipVerify = vip.CheckHTTPS.String(), true
		}
		out.Send, out.Expect = "", ""
		out.Method = cmp.Or(out.Method, "OPTIONS") // HAProxy's default
	} else {
		if c.first.https {
			p.Note(c.at, "a check over TLS is not converted without option httpchk: a tcp check connects")
		}
		out.Method, out.Path, out.Host, out.Status, out.Body = "", "", "", "", ""
	}
	interval := cmp.Or(c.first.interval, spec.Duration(defaultInter))
	out.Interval, out.FastInterval = &interval, new(min(cmp.Or(c.first.fast, interval), interval))
	if out.Timeout = c.timeout; out.Timeout == nil { // HAProxy's default is the interval
		out.Timeout = p.Bounded(c.at, "the timeout of a check", time.Duration(interval), vip.MinCheckInterval, vip.MaxCheckTimeout)
	}
	out.Rise, out.Fall = new(cmp.Or(c.first.rise, defaultRise)), new(cmp.Or(c.first.fall, defaultFall))
	return &out
}
