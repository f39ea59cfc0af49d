package haproxy

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/cmd/ironvip/cli/migrate"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip/spec"
)

// convert converts a text, and returns its notes as lines.
func convert(text string) (migrate.Result, string) {
	result := Convert("f", text)
	var notes strings.Builder
	for _, n := range result.Notes {
		notes.WriteString(n.String() + "\n")
	}
	return result, notes.String()
}

// one converts a listen section with the lines, and returns its service.
func one(t *testing.T, lines ...string) (spec.Service, string) {
	t.Helper()
	result, notes := convert("listen a\n bind 10.0.0.1:80\n" + strings.Join(lines, "\n") + "\n")
	must.Equal(t, len(result.Services), 1, "%d services: %s", len(result.Services), notes)
	return result.Services[0].Service, notes
}

// text returns a time as written, "-" for none.
func text(d *spec.Duration) string {
	if d == nil {
		return "-"
	}
	return d.String()
}

// Servers that HAProxy does not check are noted if the service has a check for others.
func TestServersWithoutCheck(t *testing.T) {
	const note = "has no check in HAProxy"
	for _, c := range []struct {
		lines []string
		check string
		noted []string
	}{
		{[]string{"server a 10.1.0.1:80 check", "server b 10.1.0.2:80 check"}, "tcp", nil},
		{[]string{"server a 10.1.0.1:80 check", "server b 10.1.0.2:80", "server c 10.1.0.3:80"}, "tcp", []string{"f:4: server b", "f:5: server c"}},
		{[]string{"default-server check", "server a 10.1.0.1:80", "server b 10.1.0.2:80 no-check"}, "tcp", []string{"f:5: server b"}},
		{[]string{"server a 10.1.0.1:80", "server b 10.1.0.2:80 cookie check"}, "none", nil},
		{[]string{"default-server check", "server a 10.1.0.1:80 no-check"}, "none", nil},
	} {
		s, notes := one(t, c.lines...)
		if s.Health.Type != c.check || strings.Count(notes, note) != len(c.noted) {
			t.Errorf("%q: check %s, want %s; notes %s", c.lines, s.Health.Type, c.check, notes)
		}
		for _, n := range c.noted {
			expect.Contains(t, notes, n+" "+note, "%q: notes without %q", c.lines, n)
		}
	}
}

// Only a rule makes a table one of affinity: most tables count for rate limits.
func TestAffinityNeedsAStickRule(t *testing.T) {
	const server, table = "server a 10.1.0.1:80", "stick-table type ip size 1m expire 30m store conn_rate(3s)"
	for _, c := range []struct {
		lines         []string
		timeout, note string // timeout "none": no affinity; "-": the default
	}{
		{[]string{table, server}, "none", "f:3: \"" + table + "\" is not converted"},
		{[]string{table, "stick on src", server}, "30m", ""},
		{[]string{"stick on src", table, server}, "30m", ""},
		{[]string{table, "stick match src", "stick store-request src", server}, "30m", ""},
		{[]string{table, "stick store-request src", server}, "none", "is not converted"},
		{[]string{table, "stick on src_port", server}, "none", `"stick on src_port" is not converted`},
		{[]string{table, "stick on dst", server}, "none", `"stick on dst" is not converted`},
		{[]string{table, "stick on src if net", server}, "30m", "the condition of"},
		{[]string{"stick-table type ip size 1m", "stick on src", server}, "-", "never expire"},
		{[]string{"stick-table type ip size 1m expire 0", "stick on src", server}, "-", "never expire"},
		{[]string{"stick on src", server}, "-", `the stick-table of "a" is not defined`},
		{[]string{"stick on src table other", server, "backend other", "stick-table type ip size 1m expire 5m"}, "5m", ""},
	} {
		s, notes := one(t, c.lines...)
		got := "none"
		if s.Affinity != nil {
			got = text(s.Affinity.Timeout)
		}
		if got != c.timeout || !strings.Contains(notes, c.note) {
			t.Errorf("%q: affinity %s, want %s; notes %q, want %q", c.lines, got, c.timeout, notes, c.note)
		}
		if c.note == "" && strings.Contains(notes, "stick") {
			t.Errorf("%q: notes %s", c.lines, notes)
		}
	}
}

// HAProxy's 0 is no limit; times that are too long don't overflow.
func TestTimes(t *testing.T) {
	for _, c := range []struct{ lines, want, note string }{ // connect, idle, half close, queue
		{"timeout connect 5s\ntimeout client 1m\ntimeout server 2m\ntimeout server-fin 3s\ntimeout queue 4s", "5s 2m 3s 4s", ""},
		{"timeout connect 0\ntimeout server-fin 0s\ntimeout queue 0", "- - - -", "timeout connect 0 is no limit: the default of 3s is used"},
		{"timeout client 0\ntimeout server 1m", "- 168h - -", "timeout client 0 is no limit: idle_timeout is its maximum, 168h"},
		{"timeout client 2147483647d", "- 168h - -", "is out of bounds: 168h is used"},
		{"timeout client 99999999999999999999s", "- 168h - -", "is out of bounds: 168h is used"},
		{"timeout client -5s", "- - - -", `"-5s" is not a time: ignored`},
		{"timeout client 5y", "- - - -", `"5y" is not a time: ignored`},
		{"timeout client", "- - - -", `"" is not a time: ignored`},
	} {
		s, notes := one(t, c.lines, "server a 10.1.0.1:80")
		got := strings.Join([]string{text(s.ConnectTimeout), text(s.IdleTimeout), text(s.HalfCloseTimeout), text(s.QueueTimeout)}, " ")
		if got != c.want || !strings.Contains(notes, c.note) || c.note == "" && notes != "" {
			t.Errorf("%q: %s, want %s; notes %q, want %q", c.lines, got, c.want, notes, c.note)
		}
	}
	s, notes := one(t, "timeout check 0", "server a 10.1.0.1:80 check inter 0 fastinter 0 slowstart 0")
	if h := s.Health; text(h.Interval)+text(h.FastInterval)+text(h.Timeout)+text(s.SlowStart) != "2s2s2s-" || notes != "" {
		t.Errorf("%+v, notes %s", h, notes)
	}
	expect.AtLeast(t, must.Get(parseTime("2147483647d"))(t), time.Hour)
}

// A value that isn't a number is a note, and the default stays.
func TestValuesThatAreNotNumbers(t *testing.T) {
	plain, _ := one(t, "server a 10.1.0.1:80 check")
	for _, c := range []struct{ line, option, note string }{
		{"", "weight many", `server option weight "many" is not a number from`},
		{"", "maxconn 1k", `server option maxconn "1k" is not a number from`},
		{"", "maxconn -1", `server option maxconn "-1" is not a number from`},
		{"", "maxqueue 1k", `server option maxqueue "1k" is not a number from`},
		{"", "port http", `port "http" is not a number from`},
		{"", "port 70000", `port "70000" is not a number from`},
		{"", "rise 0", `rise "0" is not a number from`},
		{"maxconn 1k", "", `maxconn "1k" is not a number from`},
		{"tcp-check connect port http", "", `port "http" is not a number from`},
	} {
		s, notes := one(t, c.line, "server a 10.1.0.1:80 check "+c.option)
		if fmt.Sprintf("%+v", s.Backends) != fmt.Sprintf("%+v", plain.Backends) || s.MaxConnections != 0 || s.MaxQueue != 0 ||
			s.Health.Port != 0 || *s.Health.Rise != defaultRise || !strings.Contains(notes, c.note) {
			t.Errorf("%q %q: %+v, notes %q without %q", c.line, c.option, s, notes, c.note)
		}
	}
	if s, notes := one(t, "server a 10.1.0.1:80 maxconn 5 maxqueue 0"); s.MaxQueue != 65535 || !strings.Contains(notes, "maxqueue 0 is out of bounds: 65535 is used") {
		t.Errorf("max_queue %d, notes %s", s.MaxQueue, notes)
	}
}

// accept-proxy holds for the ports of its own bind line.
func TestAcceptProxyOfOneBind(t *testing.T) {
	result, notes := convert("listen a\n bind 10.0.0.1:80 accept-proxy\n bind 10.0.0.1:443\n bind 10.0.0.1:81 accept-proxy\n server a 10.1.0.1:80\n")
	var got []string
	for _, s := range result.Services {
		var ports []string
		for _, p := range s.Ports {
			ports = append(ports, p.Port.String())
		}
		got = append(got, fmt.Sprint(s.Name, s.VIPs, ports, s.AcceptProxyFrom, s.ShareKey != ""))
	}
	if want := "[a[10.0.0.1] [80 81] [0.0.0.0/0] true a-2[10.0.0.1] [443] [] true]"; fmt.Sprint(got) != want || strings.Count(notes, "restrict accept_proxy_from") != 1 {
		t.Errorf("%v, want %s; notes %s", got, want, notes)
	}
}

// A default that many sections have is one note.
func TestNotesOfDefaultsAreNotRepeated(t *testing.T) {
	_, notes := convert("defaults\n timeout client 0\nlisten a\n bind 10.0.0.1:80\n server a 10.1.0.1:80\nlisten b\n bind 10.0.0.2:80\n server a 10.1.0.1:80\n")
	expect.Equal(t, strings.Count(notes, "f:2:"), 1, notes)
}

// A service has the check of its first server with one. Other options of other servers are noted, and
// don't change it.
func TestServersWithDifferentChecks(t *testing.T) {
	const note = "has other options of its check than server"
	for _, c := range []struct {
		lines    []string
		interval string
		noted    []string
	}{
		{[]string{"server a 10.1.0.1:80 check inter 1s", "server b 10.1.0.2:80 check inter 1s"}, "1s", nil},
		{[]string{"server a 10.1.0.1:80 check inter 1s", "server b 10.1.0.2:80 check inter 5s", "server c 10.1.0.3:80 check"}, "1s", []string{"f:4: server b", "f:5: server c"}},
		{[]string{"server a 10.1.0.1:80 inter 9s", "server b 10.1.0.2:80 check"}, "2s", nil},
		{[]string{"default-server check inter 3s", "server a 10.1.0.1:80", "server b 10.1.0.2:80 rise 7", "server c 10.1.0.3:80 port 81"}, "3s", []string{"f:5: server b", "f:6: server c"}},
		{[]string{"server a 10.1.0.1:80 check inter 1s", "server b 10.1.0.2:80 inter 7s"}, "1s", nil},
	} {
		s, notes := one(t, c.lines...)
		if s.Health.Interval.String() != c.interval || strings.Count(notes, note) != len(c.noted) {
			t.Errorf("%q: interval %s, want %s; notes %s", c.lines, s.Health.Interval, c.interval, notes)
		}
		for _, n := range c.noted {
			expect.Contains(t, notes, n+" "+note, "%q: notes without %q", c.lines, n)
		}
	}
}

func FuzzConvert(f *testing.F) {
	sample := must.Get(os.ReadFile("testdata/haproxy.cfg"))(f)
	f.Add(string(sample))
	f.Fuzz(func(t *testing.T, text string) {
		for _, n := range Convert("haproxy.cfg", text).Notes {
			if n.Line == 0 || n.Text == "" {
				t.Errorf("note without a line or text: %v", n)
			}
		}
	})
}
