package spec

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// HealthCheck is how the backends of a service are probed. Every field except Type is optional.
type HealthCheck struct {
	Type string     `toml:"type" json:"type"`
	Port PortNumber `toml:"port,omitzero" json:"port,omitempty"`

	Interval     *Duration `toml:"interval,omitempty" json:"interval,omitempty"`
	FastInterval *Duration `toml:"fast_interval,omitempty" json:"fast_interval,omitempty"`
	Timeout      *Duration `toml:"timeout,omitempty" json:"timeout,omitempty"`
	Rise         *int      `toml:"rise,omitempty" json:"rise,omitempty"`
	Fall         *int      `toml:"fall,omitempty" json:"fall,omitempty"`

	Method     string   `toml:"method,omitempty" json:"method,omitempty"`
	Path       string   `toml:"path,omitempty" json:"path,omitempty"`
	Host       string   `toml:"host,omitempty" json:"host,omitempty"`
	Status     string   `toml:"status,omitempty" json:"status,omitempty"`
	Body       string   `toml:"body,omitempty" json:"body,omitempty"`
	TLS        bool     `toml:"tls,omitempty" json:"tls,omitempty"`
	SkipVerify bool     `toml:"skip_verify,omitempty" json:"skip_verify,omitempty"`
	Service    string   `toml:"service,omitempty" json:"service,omitempty"`
	Send       string   `toml:"send,omitempty" json:"send,omitempty"`
	Expect     string   `toml:"expect,omitempty" json:"expect,omitempty"`
	Command    []string `toml:"command,omitempty" json:"command,omitempty"`
}

// Limits on the text of a health check.
const (
	maxCheckText  = 1024 // bytes of path, body, send and expect
	maxCheckWords = 64   // of a command
)

var checkTypes = []vip.CheckType{vip.CheckTCP, vip.CheckHTTP, vip.CheckHTTPS, vip.CheckGRPC, vip.CheckUDP, vip.CheckExec, vip.CheckNone}

// healthCheck returns nil if the service has no health check of its own. Without a valid type, it
// checks each field that some type uses, so that one run reports all mistakes.
func (b *builder) healthCheck(w *HealthCheck) *vip.HealthCheck {
	if w == nil {
		return nil
	}
	out := &vip.HealthCheck{Type: choice(b, "health.type", w.Type, 0, checkTypes...), Port: b.port("health.port", int(w.Port))}
	if w.Type == "" {
		b.bad("health.type", "use tcp, http, https, grpc, udp, exec or none", "a health check needs a type")
	}
	uses := func(types ...vip.CheckType) bool { return out.Type == 0 || slices.Contains(types, out.Type) }
	if out.Type != 0 {
		b.unusedByCheck(w, out.Type)
	}
	if out.Type == vip.CheckNone {
		return out
	}
	out.Interval = b.checkTime("interval", w.Interval, vip.DefaultCheckInterval, vip.MaxCheckInterval)
	out.FastInterval = min(vip.DefaultCheckFastInterval, out.Interval)
	if w.FastInterval != nil {
		out.FastInterval = b.checkTime("fast_interval", w.FastInterval, 0, vip.MaxCheckInterval)
		if out.Interval != 0 && out.FastInterval > out.Interval {
			b.bad("health.fast_interval", "use at most the interval", "%s is longer than the interval, %s", Duration(out.FastInterval), Duration(out.Interval))
		}
	}
	out.Timeout = b.checkTime("timeout", w.Timeout, vip.DefaultCheckTimeout, vip.MaxCheckTimeout)
	out.Rise, out.Fall = b.checkCount("rise", w.Rise, vip.DefaultRise), b.checkCount("fall", w.Fall, vip.DefaultFall)
	if uses(vip.CheckHTTP, vip.CheckHTTPS, vip.CheckGRPC) {
		out.Host, out.SkipVerify = b.checkHost(w.Host), w.SkipVerify
	}
	if uses(vip.CheckHTTP, vip.CheckHTTPS) {
		b.httpCheck(w, out)
	}
	if uses(vip.CheckGRPC) {
		out.Service, out.TLS = b.checkText("service", w.Service), w.TLS
		if out.Type != 0 && w.SkipVerify && !w.TLS {
			b.bad("health.skip_verify", "add tls, or remove it", "without tls there is no certificate to verify")
		}
	}
	if uses(vip.CheckTCP, vip.CheckUDP) {
		out.Send, out.Expect = b.checkText("send", w.Send), b.checkText("expect", w.Expect)
		if out.Type == vip.CheckUDP && w.Send == "" {
			b.bad("health.send", "", "a udp check needs a datagram to send")
		}
	}
	if out.Type == vip.CheckExec || out.Type == 0 && len(w.Command) > 0 {
		out.Command = b.command(w.Command)
	}
	if out.Type == 0 {
		return nil
	}
	return out
}

// unusedByCheck reports fields that have no effect with the type.
func (b *builder) unusedByCheck(w *HealthCheck, t vip.CheckType) {
	is := func(types ...vip.CheckType) bool { return slices.Contains(types, t) }
	probes := t != vip.CheckNone
	for _, f := range []struct {
		name      string
		set, used bool
	}{
		{"port", w.Port != 0, probes},
		{"interval", w.Interval != nil, probes},
		{"fast_interval", w.FastInterval != nil, probes},
		{"timeout", w.Timeout != nil, probes},
		{"rise", w.Rise != nil, probes},
		{"fall", w.Fall != nil, probes},
		{"method", w.Method != "", is(vip.CheckHTTP, vip.CheckHTTPS)},
		{"path", w.Path != "", is(vip.CheckHTTP, vip.CheckHTTPS)},
		{"host", w.Host != "", is(vip.CheckHTTP, vip.CheckHTTPS, vip.CheckGRPC)},
		{"status", w.Status != "", is(vip.CheckHTTP, vip.CheckHTTPS)},
		{"body", w.Body != "", is(vip.CheckHTTP, vip.CheckHTTPS)},
		{"tls", w.TLS, is(vip.CheckGRPC)},
		{"skip_verify", w.SkipVerify, is(vip.CheckHTTPS, vip.CheckGRPC)},
		{"service", w.Service != "", is(vip.CheckGRPC)},
		{"send", w.Send != "", is(vip.CheckTCP, vip.CheckUDP)},
		{"expect", w.Expect != "", is(vip.CheckTCP, vip.CheckUDP)},
		{"command", len(w.Command) > 0, is(vip.CheckExec)},
	} {
		if f.set && !f.used {
			b.bad("health."+f.name, "remove it, or use another type", "a check of type %s has no %s", t, f.name)
		}
	}
}

// checkTime reads a duration of a check, in whole milliseconds.
func (b *builder) checkTime(name string, d *Duration, def, most time.Duration) time.Duration {
	if d == nil {
		return def
	}
	t := time.Duration(*d)
	if t < vip.MinCheckInterval || t > most || t%time.Millisecond != 0 {
		b.bad("health."+name, fmt.Sprintf("use %q to %q in whole milliseconds", Duration(vip.MinCheckInterval), Duration(most)), "%s is out of bounds", *d)
		return 0
	}
	return t
}

func (b *builder) checkCount(name string, n *int, def uint8) uint8 {
	if n == nil {
		return def
	}
	if *n < 1 || *n > vip.MaxRiseFall {
		b.bad("health."+name, fmt.Sprintf("use 1 to %d", vip.MaxRiseFall), "%d is out of bounds", *n)
		return 0
	}
	return uint8(*n)
}

func (b *builder) checkText(name, text string) string {
	if len(text) > maxCheckText {
		b.bad("health."+name, "", "%d bytes are more than %d", len(text), maxCheckText)
		return ""
	}
	return text
}

func (b *builder) checkHost(host string) string {
	if strings.ContainsFunc(host, func(r rune) bool { return r <= ' ' || r > '~' || r == '/' }) {
		b.bad("health.host", `use a name or an address, such as "web.example", without spaces`, "%s is not a host", strict.Quote(host))
		return ""
	}
	return b.checkText("host", host)
}

func (b *builder) httpCheck(w *HealthCheck, out *vip.HealthCheck) {
	out.Method = http.MethodGet
	if w.Method != "" {
		if !slices.Contains([]string{http.MethodGet, http.MethodHead, http.MethodOptions}, w.Method) {
			b.bad("health.method", strict.OneOf(w.Method, http.MethodGet, http.MethodHead, http.MethodOptions), "%s is not a method of a check", strict.Quote(w.Method))
		}
		out.Method = w.Method
	}
	out.Path = vip.DefaultCheckPath
	if w.Path != "" {
		out.Path = b.checkText("path", w.Path)
		if !strings.HasPrefix(w.Path, "/") || strings.ContainsFunc(w.Path, func(r rune) bool { return r <= ' ' || r > '~' }) {
			b.bad("health.path", `use a path such as "/healthz?full=1", without spaces`, "%s is not a path", strict.Quote(w.Path))
		}
	}
	out.Status = vip.DefaultCheckStatus
	if w.Status != "" {
		out.Status = w.Status
		if _, err := ParseStatus(w.Status); err != nil {
			b.bad("health.status", `use codes and ranges, such as "200" or "200-299,404"`, "%s", err)
		}
	}
	out.Body = b.checkText("body", w.Body)
	if w.Body != "" && (out.Method == http.MethodHead || out.Method == http.MethodOptions) {
		b.bad("health.body", "remove it, or use method GET", "an answer to %s has no body", out.Method)
	}
}

// StatusRange is a range of HTTP status codes.
type StatusRange struct{ First, Last int }

// ParseStatus reads a list of status codes and ranges: "200", "200-299,404". Codes are 100 to 599.
func ParseStatus(text string) ([]StatusRange, error) {
	var out []StatusRange
	for part := range strings.SplitSeq(text, ",") {
		first, last, ranged := strings.Cut(strings.TrimSpace(part), "-")
		if !ranged {
			last = first
		}
		from, err1 := strconv.Atoi(first)
		to, err2 := strconv.Atoi(last)
		if err1 != nil || err2 != nil || from < 100 || to > 599 || from > to {
			return nil, fmt.Errorf("%s is not a status code or a range of them", strict.Quote(part))
		}
		out = append(out, StatusRange{from, to})
	}
	return out, nil
}

func (b *builder) command(words []string) string {
	switch {
	case len(words) == 0:
		b.bad("health.command", `use a list: ["/usr/lib/check", "--fast"]`, "an exec check needs a command")
	case len(words) > maxCheckWords:
		b.bad("health.command", "", "%d words are more than %d", len(words), maxCheckWords)
	case !strings.HasPrefix(words[0], "/"):
		b.bad("health.command[0]", "write its whole path", "%s is not an absolute path", strict.Quote(words[0]))
	}
	for i, word := range words {
		if strings.ContainsRune(word, 0) || len(word) > maxCheckText {
			b.bad(strict.Index("health.command", i), "", "is longer than %d bytes or contains NUL", maxCheckText)
		}
	}
	return strings.Join(words, "\x00")
}

// The values of on_unhealthy.
const (
	drainUnhealthy = "drain"
	resetUnhealthy = "reset"
)

func (b *builder) onUnhealthy(text string) (reset bool) {
	if text != "" && text != drainUnhealthy && text != resetUnhealthy {
		b.bad("on_unhealthy", strict.OneOf(text, drainUnhealthy, resetUnhealthy), "%s is not a known value", strict.Quote(text))
	}
	return text == resetUnhealthy
}

func (b *builder) panicThreshold(percent int) uint8 {
	if percent < 0 || percent > 100 {
		b.bad("panic_threshold", "use 0 to 100, in percent", "%d is out of bounds", percent)
		return 0
	}
	return uint8(percent)
}

// slowStart reads a time span in whole seconds; "0s" turns slow start off.
func (b *builder) slowStart(in *Duration) vip.Seconds {
	if in == nil || *in == 0 {
		return 0
	}
	d := time.Duration(*in)
	if d < vip.MinSlowStart || d > vip.MaxSlowStart || d%time.Second != 0 {
		b.bad("slow_start", `use "1s" to "1h" in whole seconds`, "%s is out of bounds", *in)
		return 0
	}
	return vip.Seconds(d / time.Second)
}

// unprobed reports a check without a port that finds none to probe: the service has no port of the
// check's protocol with one number at the backends. Ports with problems count, so that one mistake
// is one problem.
func (b *builder) unprobed(out *vip.Service) {
	c := out.Check
	if c == nil || c.Port != 0 || c.Type == vip.CheckNone || c.Type == vip.CheckExec {
		return
	}
	want := vip.TCP
	if c.Type == vip.CheckUDP {
		want = vip.UDP
	}
	// Without a target port, the backends of a range are at the clients' ports unless they state one.
	stated := len(out.Backends) > 0 && !slices.ContainsFunc(out.Backends, func(be vip.Backend) bool { return be.Port == 0 })
	for i := range out.Ports {
		switch p := &out.Ports[i]; {
		case p.Protocol == 0 || p.Port == 0:
			return
		case p.Protocol == want && (p.TargetPort != 0 || stated):
			return
		}
	}
	if len(out.Ports) > 0 {
		b.bad("health.type", "state the port to probe in health.port, or use another type",
			"a check of type %s needs a single %s port and the service has none", c.Type, want)
	}
}

// fromCheck returns the spec of a check with every default stated.
func fromCheck(c *vip.HealthCheck) *HealthCheck {
	out := &HealthCheck{Type: c.Type.String(), Port: PortNumber(c.Port), Method: c.Method, Path: c.Path, Host: c.Host,
		Status: c.Status, Body: c.Body, TLS: c.TLS, SkipVerify: c.SkipVerify, Service: c.Service, Send: c.Send, Expect: c.Expect}
	if c.Type == vip.CheckNone {
		return out
	}
	times := [...]Duration{Duration(c.Interval), Duration(c.FastInterval), Duration(c.Timeout)}
	out.Interval, out.FastInterval, out.Timeout = &times[0], &times[1], &times[2]
	counts := [...]int{int(c.Rise), int(c.Fall)}
	out.Rise, out.Fall = &counts[0], &counts[1]
	if c.Command != "" {
		out.Command = strings.Split(c.Command, "\x00")
	}
	return out
}
