package haproxy

import (
	"cmp"
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
	own     serverCheck // of the server that is being read
	first   serverCheck // of the first server with "check"
	firstOf string      // its name
}

// serverCheck are the options of one server's check. Zero values are not set.
type serverCheck struct {
	https          bool
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
		c.kind = vip.CheckTCP
		return true
	case "option httpchk":
		c.kind = vip.CheckHTTP
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
		c.kind, c.spec.Expect = vip.CheckTCP, "220"
		return true
	case "option external-check", "option mysql-check", "option pgsql-check", "option redis-check", "option ldap-check", "option ssl-hello-chk", "option spop-check":
		p.Note(l.Place, "%q is not converted: the check is a tcp check", l.String())
		c.kind = vip.CheckTCP
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
	if version := l.Arg(3); version != "" {
		_, host, found := strings.Cut(version+strings.Join(l.Words[min(5, len(l.Words)):], ""), "Host:")
		if found {
			c.spec.Host = strings.TrimSpace(host)
		} else if strings.Contains(version, "\n") {
			p.Note(l.Place, "headers of httpchk are not converted")
		}
	}
}

// port reads the port of a check. Any other text leaves the port as it is.
func (p *proxy) port(l *migrate.Statement, text string, port *spec.PortNumber) {
	if n, ok := p.number(l, "port", text, 1, 65535); ok {
		*port = spec.PortNumber(n)
	}
}

func (c *check) tcpCheck(p *proxy, l *migrate.Statement) {
	switch {
	case l.Arg(0) == "send" && c.spec.Send == "":
		c.spec.Send = l.Arg(1)
	case l.Arg(0) == "expect" && (l.Arg(1) == "string" || l.Arg(1) == "rstring") && c.spec.Expect == "":
		c.spec.Expect = l.Arg(2)
		p.Note(l.Place, "the answer must begin with the expected text: review health.expect")
	case l.Arg(0) == "connect" && l.Arg(1) == "port":
		p.port(l, l.Arg(2), &c.spec.Port)
	case l.Arg(0) == "connect" && l.Arg(1) == "":
	default:
		p.Note(l.Place, "%q is not converted: a tcp check sends one text and expects one", l.String())
	}
}

func (c *check) httpCheck(p *proxy, l *migrate.Statement) {
	for i := 0; i < len(l.Words); i++ {
		switch word, value := l.Words[i], l.Arg(i); {
		case l.Arg(0) == "send" && word == "meth":
			c.spec.Method = value
		case l.Arg(0) == "send" && word == "uri":
			c.spec.Path = value
		case l.Arg(0) == "send" && word == "hdr" && strings.EqualFold(value, "host"):
			c.spec.Host = l.Arg(i + 1)
		case l.Arg(0) == "expect" && word == "status":
			c.spec.Status = value
		case l.Arg(0) == "expect" && word == "string":
			c.spec.Body = value
		case l.Arg(0) == "expect" && (word == "rstatus" || word == "rstring" || word == "!"):
			p.Note(l.Place, "%q is not converted: use health.status or health.body", l.String())
			return
		}
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
	case "downinter", "check-send-proxy", "observe", "on-error":
	default:
		return false
	}
	return true
}

// endServer takes in the check of the server that was read, and notes what is lost of it.
func (c *check) endServer(p *proxy, l *migrate.Statement, name string) {
	switch {
	case !c.on:
		c.on, c.first, c.firstOf = true, c.own, name
	case c.own != c.first:
		p.Note(l.Place, "server %s has other options of its check than server %s: a service has one check, that of server %s", name, c.firstOf, c.firstOf)
	}
}

// result returns the check of the service. Without "check" at a server, HAProxy checks nothing.
func (c *check) result() *spec.HealthCheck {
	if !c.on {
		return &spec.HealthCheck{Type: vip.CheckNone.String()}
	}
	out := c.spec
	out.Port = cmp.Or(c.first.port, out.Port)
	out.Type = vip.CheckTCP.String()
	if c.kind == vip.CheckHTTP {
		out.Type = vip.CheckHTTP.String()
		if c.first.https {
			out.Type, out.SkipVerify = vip.CheckHTTPS.String(), true
		}
		out.Send, out.Expect = "", ""
		out.Method = cmp.Or(out.Method, "OPTIONS") // HAProxy's default
	} else {
		out.Method, out.Path, out.Host, out.Status, out.Body = "", "", "", "", ""
	}
	interval := cmp.Or(c.first.interval, spec.Duration(defaultInter))
	out.Interval, out.FastInterval = &interval, new(min(cmp.Or(c.first.fast, interval), interval))
	timeout := min(interval, spec.Duration(vip.MaxCheckTimeout)) // HAProxy's default is the interval
	if c.timeout != nil {
		timeout = *c.timeout
	}
	out.Timeout = &timeout
	out.Rise, out.Fall = new(cmp.Or(c.first.rise, defaultRise)), new(cmp.Or(c.first.fall, defaultFall))
	return &out
}
