package keepalived

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ironvip/ironvip/cmd/ironvip/cli/migrate"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

// timing is what a virtual_server, a real_server and a check can each set about checks. A nil field is
// unset: its default depends on the type of the check.
type timing struct {
	interval, retryDelay, timeout *time.Duration
	retries                       *int // failures that are repeated before one counts
	host                          string
}

// Defaults of keepalived 2.2.7, as in keepalived.conf(5), "Virtual server(s)".
const (
	defaultInterval = 60 * time.Second // delay_loop
	defaultTimeout  = 5 * time.Second  // connect_timeout; MISC_CHECK has its own, see miscCheck
)

// defaultRetry returns the defaults of retry and delay_before_retry for a type of check, from the same
// page. Without retries, the delay has no effect.
func defaultRetry(checkType string) (retries int, delay time.Duration) {
	switch checkType {
	case "MISC_CHECK":
		return 0, time.Second
	case "HTTP_GET", "SSL_GET":
		return 1, 3 * time.Second
	}
	return 1, time.Second
}

// orDefault returns what p points to, or the default if it is unset.
func orDefault[T any](p *T, standard T) T {
	if p == nil {
		return standard
	}
	return *p
}

// set reads a statement about the timing of checks, and reports whether it is one. Outside of a check, at least one failure is
// repeated.
func (t *timing) set(s *statement, c *converter, leastRetries int) bool {
	var into **time.Duration
	switch s.Words[0] {
	case "delay_loop":
		into = &t.interval
	case "delay_before_retry":
		into = &t.retryDelay
	case "connect_timeout", "timeout":
		into = &t.timeout
	case "retry", "nb_get_retry":
		if n, ok := c.number(s, leastRetries, math.MaxInt32, "ignored"); ok {
			t.retries = &n
		}
		return true
	case "warmup", "log_all_failures":
		s.Read()
		return true // probes are spread by themselves
	default:
		return false
	}
	s.Keyword()
	read, err := seconds(s.Arg(0))
	if err == nil && read == 0 && into != &t.retryDelay {
		err = errors.New("0 is no time")
	}
	if err != nil {
		c.Note(s.Place, "%s: %v: ignored", s.Words[0], err)
		return true
	}
	*into = &read
	return true
}

// realCheck is the check of one real_server.
type realCheck struct {
	migrate.Place
	timing
	block *statement // nil: none
}

// checkTypes make a check of its block. The statements about timing have been read.
var checkTypes = map[string]func(*server, *statement, *timing) *spec.HealthCheck{
	"TCP_CHECK":  (*server).tcpCheck,
	"HTTP_GET":   (*server).httpCheck,
	"SSL_GET":    (*server).httpCheck,
	"MISC_CHECK": (*server).miscCheck,
	"SMTP_CHECK": (*server).smtpCheck,
	"UDP_CHECK":  (*server).udpCheck,
	"DNS_CHECK":  (*server).noEquivalent,
	"PING_CHECK": (*server).noEquivalent,
	"BFD_CHECK":  (*server).noEquivalent,
	"FILE_CHECK": (*server).noEquivalent,
}

// finishCheck gives the service the check that its real servers have. A service has one check, so
// the first one counts, and it counts for the sorry server too.
func (v *server) finishCheck() {
	v.firstCheck()
	if v.sorry != nil && (v.service.Health == nil || v.service.Health.Type != vip.CheckNone.String()) {
		v.Note(v.sorry.Place, "keepalived does not check a sorry_server: here it has the check of the service")
	}
}

func (v *server) firstCheck() {
	if len(v.checks) == 0 {
		return
	}
	v.service.Health = v.healthCheck(&v.checks[0])
	for i := range v.checks[1:] {
		other := &v.checks[i+1]
		silent := server{converter: &converter{Result: &migrate.Result{}}, check: v.check, protocol: v.protocol, backends: v.backends}
		if !reflect.DeepEqual(silent.healthCheck(other), v.service.Health) {
			v.Note(other.Place, "the check differs from that of %s: a service has one check, so it is not converted", v.checks[0].From(other.Place))
			continue
		}
		for _, n := range silent.Notes {
			v.Note(n.Place, "%s", n.Text)
		}
	}
}

// healthCheck converts one check. A real_server without one counts as healthy always.
func (v *server) healthCheck(c *realCheck) *spec.HealthCheck {
	if c.block == nil {
		return &spec.HealthCheck{Type: vip.CheckNone.String()}
	}
	t := c.timing
	checkType := c.block.Keyword()
	out := checkTypes[checkType](v, c.block, &t)
	if out == nil || out.Type == vip.CheckNone.String() {
		return out
	}
	retries, delay := defaultRetry(checkType)
	retries, delay = orDefault(t.retries, retries), orDefault(t.retryDelay, delay)
	out.Interval = v.between(c, "an interval", orDefault(t.interval, defaultInterval), vip.MaxCheckInterval)
	if retries > 0 {
		most := time.Duration(*out.Interval)
		if t.retryDelay == nil {
			delay = min(delay, most)
		}
		out.FastInterval = v.between(c, "a delay_before_retry", delay, most)
	}
	out.Timeout = v.between(c, "a timeout", orDefault(t.timeout, defaultTimeout), vip.MaxCheckTimeout)
	if retries > vip.MaxRiseFall-1 {
		v.Note(c.block.Place, "retry %d is out of bounds: %d is used", retries, vip.MaxRiseFall-1)
		retries = vip.MaxRiseFall - 1
	}
	out.Fall, out.Rise = new(retries+1), new(1)
	return out
}

// between returns a time that a check can have.
func (v *server) between(c *realCheck, what string, d, most time.Duration) *spec.Duration {
	return v.Bounded(c.block.Place, what, d, vip.MinCheckInterval, most)
}

// rest notes the statements of a check that were not converted, except those that known has.
func (v *server) rest(s *statement, t *timing, known ...string) {
	for _, inner := range s.block {
		switch keyword := inner.Words[0]; {
		case slices.Contains(known, keyword) || t.set(inner, v.converter, 0):
		case slices.Contains([]string{"bindto", "bind_if", "bind_port", "fwmark"}, keyword):
			v.Note(inner.Place, "%s is not converted: probes take the host's routes", inner)
		case keyword == "alpha":
			inner.drop()
		default:
			v.Note(inner.Place, "%s is not converted: %s has no equivalent of it", inner, s.Words[0])
			inner.drop()
		}
	}
}

// port reads connect_port, and notes connect_ip.
func (v *server) port(s *statement) (port spec.PortNumber) {
	if p := s.last("connect_port"); p != nil {
		if n, ok := v.number(p, 1, 65535, "the backend's port is probed"); ok {
			port = spec.PortNumber(n)
		}
	}
	if ip := s.last("connect_ip"); ip != nil {
		v.Note(ip.Place, "%s is not converted: probes go to the backend's address", ip)
	}
	return port
}

func (v *server) tcpCheck(s *statement, t *timing) *spec.HealthCheck {
	v.rest(s, t, "connect_port", "connect_ip")
	return &spec.HealthCheck{Type: vip.CheckTCP.String(), Port: v.portOf(s, vip.TCP)}
}

// portOf is port, and that of the backend for a check of another protocol than the service's, which states its port.
func (v *server) portOf(s *statement, protocol vip.Protocol) spec.PortNumber {
	port := v.port(s)
	if port == 0 && v.protocol != protocol && len(v.backends) > 0 {
		port = v.backends[0].Port
	}
	return port
}

func (v *server) smtpCheck(s *statement, t *timing) *spec.HealthCheck {
	v.rest(s, t, "connect_port", "connect_ip", "helo_name")
	s.quiet("helo_name")
	return &spec.HealthCheck{Type: vip.CheckTCP.String(), Port: v.portOf(s, vip.TCP), Expect: "220"}
}

func (v *server) httpCheck(s *statement, t *timing) *spec.HealthCheck {
	v.rest(s, t, "connect_port", "connect_ip", "url", "virtualhost", "http_protocol", "enable_sni", "tls_compliant", "fast_recovery")
	s.quiet("http_protocol", "enable_sni", "tls_compliant", "fast_recovery")
	out := &spec.HealthCheck{Type: vip.CheckHTTP.String(), Port: v.portOf(s, vip.TCP), Host: t.host}
	if s.Words[0] == "SSL_GET" {
		out.Type, out.SkipVerify = vip.CheckHTTPS.String(), true // keepalived does not verify certificates
	}
	if h := s.last("virtualhost"); h != nil {
		out.Host = h.Arg(0)
	}
	urls := 0
	for _, url := range s.block {
		if url.Words[0] != "url" {
			continue
		}
		url.Keyword()
		if urls++; urls > 1 {
			v.Note(url.Place, "a check has one url, that of the first url block: not converted")
			url.drop()
			continue
		}
		v.url(url, out)
	}
	return out
}

// url converts the url block of a check.
func (v *server) url(s *statement, out *spec.HealthCheck) {
	for _, inner := range s.block {
		switch inner.Keyword() {
		case "path":
			out.Path = inner.Arg(0)
		case "virtualhost":
			out.Host = inner.Arg(0)
		case "status_code":
			out.Status = strings.Join(inner.Args(), ",")
		case "digest":
			v.Note(inner.Place, "%s is not converted: use health.body with a text that the answer contains", inner)
		case "regex", "regex_no_match", "regex_options", "regex_stack", "regex_min_offset", "regex_max_offset":
			v.Note(inner.Place, "%s is not converted: use health.body with a text that the answer contains", inner)
		default:
			v.unknown(inner, "url")
		}
	}
	if out.Status == "" {
		out.Status = "200-299" // keepalived's default
	}
}

func (v *server) miscCheck(s *statement, t *timing) *spec.HealthCheck {
	v.rest(s, t, "misc_path", "misc_timeout", "misc_dynamic", "user")
	path := s.last("misc_path")
	if path == nil || path.Arg(0) == "" {
		v.Note(s.Place, "MISC_CHECK has no misc_path: not converted")
		s.drop()
		return nil
	}
	// Without misc_timeout, or with 0, the command may take as long as the delay_loop of the
	// virtual_server: keepalived.conf(5) and check_misc.c. connect_timeout does not count.
	limit := orDefault(v.check.interval, defaultInterval)
	if timeout := s.last("misc_timeout"); timeout != nil {
		if read, err := seconds(timeout.Arg(0)); err != nil {
			v.Note(timeout.Place, "misc_timeout: %v: %s is used", err, limit)
		} else if read > 0 {
			limit = read
		}
	}
	t.timeout = &limit
	if dynamic := s.last("misc_dynamic"); dynamic != nil {
		v.Note(dynamic.Place, "%s is not converted: exit status 0 is healthy, any other is not", dynamic)
	}
	return v.command(s, path)
}

// command makes an exec check of the command of a MISC_CHECK or a vrrp_script.
func (c *converter) command(s, path *statement) *spec.HealthCheck {
	if user := s.last("user"); user != nil {
		c.Note(user.Place, "%s is not converted: commands run as the agent's user", user)
	}
	words := commandWords.Split(strings.Join(path.Args(), " "))
	c.Note(s.Place, "%s becomes an exec check: set exec = true in [health] of ironvip.toml", s.Words[0])
	if len(words) == 0 || !strings.HasPrefix(words[0], "/") {
		c.Note(path.Place, "%q is no absolute path: write one", strings.Join(words, " "))
	}
	return &spec.HealthCheck{Type: vip.CheckExec.String(), Command: words}
}

func (v *server) udpCheck(s *statement, t *timing) *spec.HealthCheck {
	v.rest(s, t, "connect_port", "connect_ip", "payload", "require_reply", "min_reply_length", "max_reply_length")
	reply := s.last("require_reply")
	if reply == nil {
		v.Note(s.Place, "UDP_CHECK without require_reply is not converted: a udp check needs an answer, so the backends are not checked")
		s.drop()
		return &spec.HealthCheck{Type: vip.CheckNone.String()}
	}
	payload := s.last("payload")
	if payload == nil {
		v.Note(s.Place, "UDP_CHECK without payload is not converted: a udp check needs a datagram to send and an answer")
		s.drop()
		return nil
	}
	send, err := unhex(payload.Args())
	if err != nil {
		v.Note(payload.Place, "payload: %v: not converted", err)
		s.drop()
		return nil
	}
	for _, keyword := range []string{"min_reply_length", "max_reply_length"} {
		if length := s.last(keyword); length != nil {
			v.Note(length.Place, "%s is not converted: a udp check does not check the length of the answer", length)
		}
	}
	return &spec.HealthCheck{Type: vip.CheckUDP.String(), Port: v.portOf(s, vip.UDP), Send: send, Expect: v.reply(reply)}
}

// reply returns what the answer to a UDP_CHECK begins with, "" for any answer.
func (v *server) reply(s *statement) string {
	words := s.Args()
	if len(words) == 0 {
		return ""
	}
	if strings.ContainsAny(strings.Join(words, ""), "xX") {
		v.Note(s.Place, "the mask of require_reply is not converted: any answer is accepted, or write health.expect")
		return ""
	}
	expect, err := unhex(words)
	if err != nil {
		v.Note(s.Place, "require_reply: %v: any answer is accepted", err)
	}
	return expect
}

// unhex reads hexadecimal digits: in each word, two are a byte, and so is one that is left over. It
// returns a text, because send and expect are texts.
func unhex(words []string) (string, error) {
	var out []byte
	for _, w := range words {
		for w != "" {
			n := min(2, len(w))
			b, err := strconv.ParseUint(w[:n], 16, 8)
			if err != nil {
				return "", fmt.Errorf("%q is not hexadecimal", w[:n])
			}
			out, w = append(out, byte(b)), w[n:]
		}
	}
	switch {
	case len(out) == 0:
		return "", errors.New("hexadecimal digits are missing")
	case !utf8.Valid(out):
		return "", errors.New("bytes that are not UTF-8 can't be written as a text")
	}
	return string(out), nil
}

func (v *server) noEquivalent(s *statement, _ *timing) *spec.HealthCheck {
	v.Note(s.Place, "%s is not converted: the service gets the default check, or write one", s.Words[0])
	s.drop()
	return nil
}
