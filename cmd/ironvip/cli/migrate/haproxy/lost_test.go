package haproxy

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/cmd/ironvip/cli/migrate"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

// summary returns the services in few words: "a 10.0.0.1:80,81 10.1.0.1:8080(max 1) http:8008/healthz".
func summary(services []migrate.Service) string {
	var out []string
	for _, s := range services {
		var ports []string
		for _, p := range s.Ports {
			port := p.Port.String()
			if p.TargetPort != 0 {
				port += fmt.Sprintf(">%d", p.TargetPort)
			}
			ports = append(ports, port)
		}
		text := fmt.Sprintf("%s %s:%s", s.Name, strings.Join(s.VIPs, ","), strings.Join(ports, ","))
		if s.MaxConnections > 0 || s.MaxQueue > 0 {
			text += fmt.Sprintf(" max %d+%d", s.MaxConnections, s.MaxQueue)
		}
		for _, b := range s.Backends {
			text += " " + b.Address
			if b.Port > 0 {
				text += fmt.Sprintf(":%d", b.Port)
			}
			if b.MaxConnections > 0 {
				text += fmt.Sprintf(" max %d", b.MaxConnections)
			}
		}
		if h := s.Health; h.Type != "none" {
			text += " " + h.Type
			if h.Port > 0 {
				text += fmt.Sprintf(":%d", h.Port)
			}
			text += h.Host + h.Path
		}
		out = append(out, text)
	}
	return strings.Join(out, "; ")
}

// A word that the result has nothing of is a note with its line, and the result is valid.
func TestNothingIsLost(t *testing.T) {
	const a, server = "listen a\n bind 10.0.0.1:80\n", " server s 10.1.0.1:80"
	for _, c := range []struct{ name, text, want, note string }{
		{"a section has its own defaults", "defaults\n balance leastconn\n timeout client 1m\nfrontend a\n bind 10.0.0.1:80\n default_backend b\ndefaults\n timeout connect 9s\n maxconn 5\nbackend b\n" + server, "a 10.0.0.1:80 10.1.0.1", ""},
		{"http-check connect", a + " option httpchk\n http-check connect port 8008 ssl\n http-check connect port 8009\n" + server + " check", "a 10.0.0.1:80 10.1.0.1 https:8008", `f:5: "http-check connect port 8009" is not converted`},
		{"http-check before option httpchk", a + " http-check connect port 8008 ssl\n option httpchk GET /x\n" + server + " check", "a 10.0.0.1:80 10.1.0.1 https:8008/x", ""},
		{"http-check send", a + " option httpchk\n http-check send meth GET uri /x ver HTTP/1.1 hdr Host h hdr X-A b body hello\n" + server + " check", "a 10.0.0.1:80 10.1.0.1 httph/x", `f:4: "hdr X-A b body hello" of "http-check send`},
		{"http-check others", a + " option httpchk\n http-check disable-on-404\n http-check expect hdr name a value b\n" + server + " check", "a 10.0.0.1:80 10.1.0.1 http", `f:4: "http-check disable-on-404" is not converted` + "\n" + `f:5: "http-check expect hdr name a value b" is not converted`},
		{"tcp-check over TLS", a + " option tcp-check\n tcp-check connect port 81 ssl\n" + server + " check", "a 10.0.0.1:80 10.1.0.1 tcp:81", `f:4: "ssl" of "tcp-check connect port 81 ssl" is not converted`},
		{"two connections of a check", a + " option tcp-check\n tcp-check connect port 81\n tcp-check connect port 82\n" + server + " check", "a 10.0.0.1:80 10.1.0.1 tcp:81", `f:5: "tcp-check connect port 82" is not converted`},
		{"maxconn of a server", a + server + " maxconn 1", "a 10.0.0.1:80 max 0+65535 10.1.0.1 max 1", ""},
		{"maxconn of a frontend", "frontend a\n bind 10.0.0.1:80\n maxconn 1\n default_backend b\nbackend b\n" + server, "a 10.0.0.1:80 max 1+65535 10.1.0.1", ""},
		{"maxconn of a backend", "frontend a\n bind 10.0.0.1:80\n default_backend b\nbackend b\n maxconn 10\n" + server, "a 10.0.0.1:80 10.1.0.1", `f:5: "maxconn 10" is not converted: HAProxy ignores it in a backend`},
		{"IPv6 without brackets", "listen a\n bind 2001:db8::a:80\n server s 2001:db8:1::2:993", "a 2001:db8::a:80>993 2001:db8:1::2", ""},
		{"the last colon of a server", "listen a\n bind [2001:db8::a]:80\n server s [2001:db8:1::2]\n server t 2001:db8:1::3:80", "a 2001:db8::a:80 2001:db8:1::2 2001:db8:1::3:80", ""},
		{"all addresses of both families", "listen a\n bind :25\n bind :::25\n server s 10.1.0.1:25", "a :25 10.1.0.1", "f:1: service a: it listened on all addresses"},
		{"use_backend without a condition", "frontend a\n bind 10.0.0.1:80\n use_backend c if x\n use_backend b\n default_backend c\nbackend b\n" + server + "\nbackend c\n server s 10.1.0.9:80", "a 10.0.0.1:80 10.1.0.1", `f:3: "use_backend c if x" is not converted` + "\n" + `f:5: "default_backend c" is not converted`},
		{"an unknown section", a + server + "\nnew-section x\n server s 10.9.0.1:80\n maxconn 4\n", "a 10.0.0.1:80 10.1.0.1", "f:4: section new-section x is not converted"},
		{"conditions", a + server + "\n.if defined(X)\n server t 10.9.0.1:80\n.if streq(a,b)\n.endif\n maxconn 4\n.endif\n server u 10.1.0.2:80", "a 10.0.0.1:80 10.1.0.1 10.1.0.2", `f:4: ".if defined(X)" is not evaluated`},
		{"two sections on one address", a + server + "\nlisten b\n bind 10.0.0.1:80\n server s 10.1.0.2:80", "a 10.0.0.1:80 10.1.0.1", "f:4: 10.0.0.1 port 80 is also that of line 1"},
		{"a server on the VIP", a + server + "\n server t 10.0.0.1:8080", "a 10.0.0.1:80 10.1.0.1", "f:4: service a: the backend 10.0.0.1 is not converted"},
		{"options of bind", "listen a\n bind 10.0.0.1:80 name x interface eth0 maxconn 5\n" + server, "a 10.0.0.1:80 10.1.0.1", `f:2: "interface eth0 maxconn 5" of`},
		{"options of servers", a + server + " check observe layer4 minconn 4", "a 10.0.0.1:80 10.1.0.1 tcp", "f:3: server option observe layer4 is not converted"},
		{"a word too many", a + " balance leastconn x\n" + server, "a 10.0.0.1:80 10.1.0.1", `f:3: "x" of "balance leastconn x" is not converted`},
		{"a file without indents", "listen a\nbind 10.0.0.1:80\nhash-balance-factor 150\n # x\nserver s 10.1.0.1:80", "a 10.0.0.1:80 10.1.0.1", `f:3: "hash-balance-factor 150" is not converted`},
		{"options of one server", a + server + " send-proxy\n server t 10.1.0.2:80", "a 10.0.0.1:80 10.1.0.1 10.1.0.2", "f:4: server t has other options of send-proxy"},
		{"a check of a server with TLS", "listen a\n bind 10.0.0.1:443\n option httpchk GET /x\n server s 10.1.0.1:443 ssl verify none check", "a 10.0.0.1:443 10.1.0.1 https/x", "f:4: ssl is not converted"},
		{"a check of another port than that of TLS", "listen a\n bind 10.0.0.1:443\n option httpchk GET /x\n server s 10.1.0.1:443 ssl check port 80", "a 10.0.0.1:443 10.1.0.1 http:80/x", "f:4: ssl is not converted"},
		{"a tcp check over TLS", a + server + " check check-ssl", "a 10.0.0.1:80 10.1.0.1 tcp", "f:3: a check over TLS is not converted"},
		{"rules without option tcp-check", a + " tcp-check connect port 81\n" + server + " check", "a 10.0.0.1:80 10.1.0.1 tcp", "f:3: tcp-check is not converted"},
		{"servers beside a default_backend", a + " default_backend b\n" + server + "\nbackend b\n server s 10.1.0.9:80", "a 10.0.0.1:80 10.1.0.9", `f:4: "server s 10.1.0.1:80" is not converted`},
		{"a name made at run time", "frontend a\n bind 10.0.0.1:80\n use_backend %[src]\n default_backend b\nbackend b\n" + server, "a 10.0.0.1:80 10.1.0.1", `f:3: "use_backend %[src]" is not converted`},
		{"several headers of httpchk", a + ` option httpchk HEAD /a HTTP/1.1\r\nHost:\ foo\r\nX:\ y` + "\n" + server + " check", "a 10.0.0.1:80 10.1.0.1 httpfoo/a", `f:3: "X: y" of httpchk is not converted`},
		{"ports that overlap", "listen a\n bind 10.0.0.1:80\n bind 10.0.0.1:80-90\n" + server, "a 10.0.0.1:80 10.1.0.1", "f:1: port 80-90 of 10.0.0.1 overlaps another one"},
		{"ports of what is left out", "listen a\n bind 10.0.0.1:81\n" + server + "\nlisten b\n bind 10.0.0.1:80,10.0.0.1:81\n server s 10.1.0.2:80\nlisten c\n bind 10.0.0.1:80\n server s 10.1.0.3:80",
			"a 10.0.0.1:81>80 10.1.0.1; c 10.0.0.1:80 10.1.0.3", "f:4: 10.0.0.1 port 80 is also that of line 1"},
		{"a long interval", a + server + " check inter 2m", "a 10.0.0.1:80 10.1.0.1 tcp", "f:3: the timeout of a check of 2m is out of bounds: 1m is used"},
		{"options that are off", a + " default-server backup send-proxy\n" + server + " no-backup no-send-proxy", "a 10.0.0.1:80 10.1.0.1", ""},
		{"a disabled section", a + server + "\n disabled\nlisten b\n bind 10.0.0.2:80\n disabled\n enabled\n server s 10.1.0.2:80", "b 10.0.0.2:80 10.1.0.2", "f:4: disabled: listen a is not converted"},
		{"mode http without its backend", "listen a\n mode http\n bind 10.0.0.1:80\n default_backend none", "", "f:1: listen a is not converted"},
		{"lines of defaults", "defaults\n option xyz\n" + a + server, "a 10.0.0.1:80 10.1.0.1", `f:2: "option xyz" is not converted`},
	} {
		t.Run(c.name, func(t *testing.T) {
			result, notes := convert(c.text)
			expect.Equal(t, summary(result.Services), c.want)
			for note := range strings.SplitSeq(c.note, "\n") {
				expect.Contains(t, notes, note)
			}
			if c.note == "" {
				expect.Equal(t, notes, "")
			}
			expect.Equal(t, result.Refused, 0)
		})
	}
}

// The times of the frontend are those of its defaults, and those of the backend of its own.
func TestEachSectionHasItsDefaults(t *testing.T) {
	result, _ := convert("defaults\n timeout connect 1s\n timeout client 1m\n timeout server 1h\n balance leastconn\nfrontend a\n bind 10.0.0.1:80\n default_backend b\n" +
		"defaults\n timeout connect 9s\n timeout client 2h\n timeout server 2m\nbackend b\n server s 10.1.0.1:80")
	s := result.Services[0]
	expect.Equal(t, text(s.ConnectTimeout)+" "+text(s.IdleTimeout)+" "+s.Scheduler, "9s 2m wrr")
	result, _ = convert("defaults\n timeout client 1h\n timeout server 1h\n option smtpchk\nlisten a\n bind 10.0.0.1:80\n timeout client 30s\n timeout server 20s\n option tcp-check\n server s 10.1.0.1:80 check")
	expect.Equal(t, text(result.Services[0].IdleTimeout)+" "+result.Services[0].Health.Expect, "30s ", "a section's own timeouts and check")
}

// Each word of a configuration of which nothing is known is in a note.
func TestUnknownWordsAreNoted(t *testing.T) {
	sample := string(must.Get(os.ReadFile("testdata/haproxy.cfg"))(t))
	_, before := convert(sample)
	lines := strings.Split(sample, "\n")
	section := 0 // its line, from 1
	for i, line := range lines {
		code := lineWords.Split(line)
		if len(code) == 0 {
			continue
		}
		if kinds[code[0]] {
			section = i + 1
		}
		kind, _, _ := strings.Cut(lines[section-1], " ")
		whole := lines[section-1] == "backend apis" || strings.Contains(before, fmt.Sprintf("f:%d: %s", section, kind)) && !strings.Contains(before, fmt.Sprintf("f:%d: service", section))
		_, notes := convert(strings.Join(append(append(append([]string{}, lines[:i]...), line+" zzz"), lines[i+1:]...), "\n"))
		noted := notes != before || strings.Contains(notes, fmt.Sprintf("f:%d: ", i+1))
		if !noted && !whole && kind != "global" && kind != "peers" && code[0] != "defaults" && !silent[code[0]] && !silent[strings.Join(code[:min(2, len(code))], " ")] {
			t.Errorf("line %d %q: the word zzz is lost in silence", i+1, line)
		}
	}
}
