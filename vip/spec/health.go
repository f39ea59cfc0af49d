package spec

import (
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"

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

// healthCheck returns nil if the service has no health check of its own. It refuses a field that the
// type does not have. Without a valid type, it checks all fields, so that one run reports all mistakes.
func (b *builder) healthCheck(key string, w *HealthCheck) *vip.HealthCheck {
	if w == nil {
		return nil
	}
	b.within = func() string { return key }
	defer func() { b.within = nil }()
	out := &vip.HealthCheck{}
	from, to := reflect.ValueOf(w).Elem(), reflect.ValueOf(out).Elem()
	for i := range CheckFields {
		f := &CheckFields[i]
		if out.Type == 0 || f.isFor(out.Type) {
			b.build(f, from, to)
		} else if !from.FieldByIndex(f.in).IsZero() {
			b.bad(f.Key, "remove it, or use another type", "a check of type %s has no %s", out.Type, f.Key)
		}
	}
	switch {
	case w.Type == "":
		b.bad("type", "use tcp, http, https, grpc, udp, exec or none", "a health check needs a type")
	case out.Type == vip.CheckGRPC && w.SkipVerify && !w.TLS:
		b.bad("skip_verify", "add tls, or remove it", "without tls there is no certificate to verify")
	case out.Type == vip.CheckUDP && w.Send == "":
		b.bad("send", "", "a udp check needs a datagram to send")
	case out.Type == vip.CheckExec && len(w.Command) == 0:
		b.bad("command", `use a list: ["/usr/lib/check", "--fast"]`, "an exec check needs a command")
	}
	if w.FastInterval == nil {
		out.FastInterval = min(vip.DefaultCheckFastInterval, out.Interval)
	} else if out.Interval != 0 && out.FastInterval > out.Interval {
		b.bad("fast_interval", "use at most the interval", "%s is longer than the interval, %s", Duration(out.FastInterval), Duration(out.Interval))
	}
	if out.Body != "" && (out.Method == http.MethodHead || out.Method == http.MethodOptions) {
		b.bad("body", "remove it, or use method GET", "an answer to %s has no body", out.Method)
	}
	if out.Type == 0 {
		return nil
	}
	return out
}

// isFor reports whether health checks of a type have the field.
func (f *Field) isFor(t vip.CheckType) bool { return f.For == nil || slices.Contains(f.For, t) }

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

func (b *builder) command(key string, words []string) string {
	if len(words) > maxCheckWords {
		b.bad(key, "", "%d words are more than %d", len(words), maxCheckWords)
	} else if len(words) > 0 && !strings.HasPrefix(words[0], "/") {
		b.bad(strict.Index(key, 0), "write its whole path", "%s is not an absolute path", strict.Quote(words[0]))
	}
	for i, word := range words {
		if strings.ContainsRune(word, 0) || len(word) > maxCheckText {
			b.bad(strict.Index(key, i), "", "is longer than %d bytes or contains NUL", maxCheckText)
		}
	}
	return strings.Join(words, "\x00")
}

func writeCommand(command string) []string {
	if command == "" {
		return nil
	}
	return strings.Split(command, "\x00")
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
	if len(out.Ports) > 0 || out.Forward == vip.ForwardHost {
		b.bad("health.type", "state the port to probe in health.port, or use another type",
			"a check of type %s needs a single %s port and the service has none", c.Type, want)
	}
}

// fromCheck returns the spec of a check with every default stated.
func fromCheck(c *vip.HealthCheck) *HealthCheck {
	if c == nil {
		return nil
	}
	out := &HealthCheck{}
	from, to := reflect.ValueOf(c).Elem(), reflect.ValueOf(out).Elem()
	for i := range CheckFields {
		if f := &CheckFields[i]; c.Type != vip.CheckNone || f.For == nil {
			f.write(from, to)
		}
	}
	return out
}
