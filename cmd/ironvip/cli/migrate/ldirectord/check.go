package ldirectord

import (
	"cmp"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/ironvip/ironvip/cmd/ironvip/cli/migrate"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

// check is the check of a virtual section that is being converted. A service has one check: with the request and the answer of
// the section, or else of its first real server.
type check struct {
	*converter
	*section
	protocol         string
	port             int
	request, receive *migrate.Statement // of the section

	own  *migrate.Statement // the real server that has the pair
	pair [2]string
}

// ofReal takes in the request and the answer of a real server.
func (c *check) ofReal(r *migrate.Statement, request, receive string) {
	pair := [2]string{request, receive}
	switch {
	case c.request != nil || c.receive != nil:
		c.Note(r.Place, "the request %q is not converted: a service has one check, that of the section", request)
	case c.own == nil:
		c.own, c.pair = r, pair
	case pair != c.pair:
		c.Note(r.Place, "the request %q is not converted: a service has one check, that of line %d", request, c.own.Line)
	}
}

// Defaults of ldirectord.
const (
	defaultInterval         = 10 // seconds
	defaultConnectTimeout   = 5
	defaultNegotiateTimeout = 30
)

// services are the checks of ports, unless the section has "service". Others are not checked.
var services = map[int]string{
	21: "ftp", 25: "smtp", 53: "dns", 80: "http", 110: "pop", 119: "nntp", 143: "imap", 389: "ldap", 443: "https", 587: "submission", 636: "ldaps",
	993: "imaps", 995: "pops", 1521: "oracle", 1812: "radius", 3128: "http_proxy", 3306: "mysql", 5060: "sip", 5432: "pgsql",
}

// health returns the check of the service; nil: the default check.
func (c *check) health() *spec.HealthCheck {
	kind := cmp.Or(c.section.value("checktype"), "negotiate")
	service := cmp.Or(c.section.value("service"), services[c.port], "none")
	if _, err := strconv.Atoi(kind); err == nil {
		c.Note(c.last("checktype").Place, "checktype %s is not converted: each probe sends the request", kind)
		kind = "negotiate"
	}
	none, tcp := &spec.HealthCheck{Type: vip.CheckNone.String()}, &spec.HealthCheck{Type: vip.CheckTCP.String()}
	switch {
	case kind == "on" || kind == "negotiate" && service == "none":
		return none
	case kind == "off":
		c.Note(c.last("checktype").Place, "checktype off adds no server: the backends are in maintenance")
		return none
	case kind == "external", kind == "external-perl":
		return c.finish(c.command(), "checktimeout", "negotiatetimeout", defaultConnectTimeout)
	case kind == "ping" || kind == "connect" && c.protocol == "udp":
		c.Note(c.Place, "checks by ping are not converted: the service gets the default check, or write one")
		return nil
	case kind == "connect":
		return c.finish(tcp, "checktimeout", "negotiatetimeout", defaultConnectTimeout)
	case kind != "negotiate":
		c.Note(c.last("checktype").Place, "checktype %q is unknown: the service gets the default check", kind)
		return nil
	}
	out := tcp
	switch service {
	case "http", "https":
		out = c.http(service)
	case "smtp", "submission":
		tcp.Expect = "220"
	case "simpletcp":
		c.simple(tcp)
	default:
		if c.protocol == "udp" {
			c.Note(c.Place, "the check of %s is not converted: the service gets the default check, or write one", service)
			return nil
		}
		c.Note(c.Place, "the check of %s is not converted: the check is a tcp check", service)
	}
	return c.finish(out, "negotiatetimeout", "checktimeout", defaultNegotiateTimeout)
}

// texts returns the request and the expression that the answer has to match.
func (c *check) texts() (request, receive string, at migrate.Place) {
	at = c.Place
	if c.own != nil {
		return c.pair[0], c.pair[1], c.own.Place
	}
	if c.request != nil {
		request, at = strings.Join(c.request.Args(), " "), c.request.Place
	}
	if c.receive != nil {
		receive, at = strings.Join(c.receive.Args(), " "), c.receive.Place
	}
	return request, receive, at
}

// http converts the check of a URL.
func (c *check) http(service string) *spec.HealthCheck {
	request, receive, at := c.texts()
	out := &spec.HealthCheck{Type: service, Host: c.section.value("virtualhost"), Method: strings.ToUpper(c.section.value("httpmethod")), Status: "200-299"}
	out.SkipVerify = service == "https"
	if strings.Contains(request, "://") {
		c.Note(at, "%q is not converted: a probe goes to the backend's address, so write health.path", request)
		request = ""
	}
	if request != "" {
		out.Path = "/" + strings.TrimPrefix(request, "/")
	}
	switch {
	case receive == "":
	case regexp.QuoteMeta(receive) != receive:
		c.Note(at, "the expression %q is not converted: use health.body with a text that the answer contains", receive)
	default:
		out.Body = receive
	}
	return out
}

// simple converts a check that sends a text.
func (c *check) simple(out *spec.HealthCheck) {
	request, receive, at := c.texts()
	out.Send = strings.ReplaceAll(strings.TrimPrefix(request, "/"), `\n`, "\n")
	if receive == "" {
		return
	}
	out.Expect = strings.TrimPrefix(receive, "^")
	c.Note(at, "the answer must begin with the expected text, which is no expression: review health.expect")
}

// command converts a check by a program.
func (c *check) command() *spec.HealthCheck {
	out := &spec.HealthCheck{Type: vip.CheckExec.String(), Command: []string{"/bin/true"}} // ldirectord's default
	at := c.Place
	if l := c.last("checkcommand"); l != nil {
		out.Command, at = strings.Fields(strings.Join(l.Args(), " ")), l.Place
	}
	c.Note(at, "checkcommand becomes an exec check: set exec = true in [health] of ironvip.toml. It gets no arguments about the addresses")
	return out
}

// finish adds what all checks have. The timeouts are each other's default, in the section and then in the file.
func (c *check) finish(out *spec.HealthCheck, timeout, other string, standard int) *spec.HealthCheck {
	if l := c.last("checkport"); l != nil {
		if n, ok := c.Number(l.Place, "checkport", l.Arg(0), 1, 65535, "the backend's port is probed"); ok && out.Type != vip.CheckExec.String() {
			out.Port = spec.PortNumber(n)
		}
	}
	interval := c.global.last("checkinterval")
	if fork := c.global.last("fork"); fork != nil && fork.Arg(0) == "yes" {
		interval = c.get(c.section, "checkinterval")
	} else if own := c.last("checkinterval"); own != nil {
		c.Note(own.Place, "%s is not converted: ldirectord ignores it without fork=yes", own)
	}
	out.Interval = c.seconds(interval, defaultInterval, vip.MaxCheckInterval)
	out.FastInterval = out.Interval
	limit := c.last(timeout)
	for _, next := range []*migrate.Statement{c.last(other), c.global.last(timeout), c.global.last(other)} {
		limit = cmp.Or(limit, next)
	}
	out.Timeout = c.seconds(limit, standard, vip.MaxCheckTimeout)
	out.Rise, out.Fall = new(1), new(1)
	if l := c.get(c.section, "failurecount"); l != nil {
		if n, ok := c.Number(l.Place, "failurecount", l.Arg(0), 1, vip.MaxRiseFall, "1 is used"); ok {
			out.Fall = &n
		}
	}
	return out
}

// seconds returns the time of a setting, or of a number of seconds without one.
func (c *check) seconds(l *migrate.Statement, standard int, most time.Duration) *spec.Duration {
	at := c.Place
	if l != nil {
		at = l.Place
		if n, ok := c.Number(at, l.Words[0], l.Arg(0), 1, 1e6, strconv.Itoa(standard)+" is used"); ok {
			standard = n
		}
	}
	return c.Bounded(at, "a time", time.Duration(standard)*time.Second, vip.MinCheckInterval, most)
}
