package keepalived

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/cmd/ironvip/cli/migrate"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

// summary returns the services in few words: "10.0.0.1:80/tcp 10.1.0.1*2 10.1.0.2:81 backup".
func summary(services []migrate.Service) string {
	var out []string
	for _, s := range services {
		text := fmt.Sprintf("%s:%s", strings.Join(s.VIPs, ","), s.Ports[0].Port)
		if s.Ports[0].Protocol != "" {
			text += "/" + s.Ports[0].Protocol
		}
		if s.Scheduler != "wlc" {
			text += " " + s.Scheduler
		}
		if s.Affinity != nil {
			text += fmt.Sprintf(" affinity %s", s.Affinity.Timeout)
		}
		for _, b := range s.Backends {
			text += " " + b.Address
			if b.Port != 0 {
				text += fmt.Sprintf(":%d", b.Port)
			}
			if b.Weight != nil {
				text += fmt.Sprintf("*%d", *b.Weight)
			}
			if b.Backup {
				text += " backup"
			}
		}
		if s.Health.Type != "none" {
			text += fmt.Sprintf(" %s/%s", s.Health.Type, s.Health.Timeout)
			if s.Health.Port != 0 {
				text += fmt.Sprintf(":%d", s.Health.Port)
			}
		}
		out = append(out, text)
	}
	return strings.Join(out, "; ")
}

// Braces and comments may touch words, as keepalived 2.2.7 reads them.
func TestWordsThatTouch(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"a brace after a keyword", "virtual_server 10.0.0.1 80{\nprotocol TCP\nreal_server 10.1.0.1 80{\nTCP_CHECK{\nconnect_timeout 3}\n}\n}", "10.0.0.1:80 10.1.0.1 tcp/3s"},
		{"all in few lines", "virtual_server 10.0.0.1 80{protocol TCP\nreal_server 10.1.0.1 80{weight 7\nTCP_CHECK{connect_timeout 3}}}", "10.0.0.1:80 10.1.0.1*7 tcp/3s"},
		{"comments that touch", "virtual_server 10.0.0.1 80 {# web\nprotocol TCP#all\nlb_algo rr!x\nreal_server 10.1.0.1 80 {!b\nweight 7#x\n}#end\n}#end", "10.0.0.1:80 rr 10.1.0.1*7"},
		{"a comment in quotes is none", "virtual_server 10.0.0.1 80 {\nprotocol TCP\nvirtualhost \"a#b\"\nreal_server 10.1.0.1 80 {\nHTTP_GET {\nurl {\npath \"/#!x\"\nstatus_code 200\n}\n}\n}\n}", "10.0.0.1:80 10.1.0.1 http/5s"},
		{"a comment with a name", "virtual_server 10.0.0.1 80 { # $NONE and ${NONE}\nprotocol TCP\nreal_server 10.1.0.1 80 { }\n}", "10.0.0.1:80 10.1.0.1"},
		{"a quoted value of a definition", "$P=\"/a?b\"\nvirtual_server 10.0.0.1 80 {\nprotocol TCP\nreal_server 10.1.0.1 80 {\nHTTP_GET {\nurl {\npath $P\n}\n}\n}\n}", "10.0.0.1:80 10.1.0.1 http/5s"},
	} {
		t.Run(c.name, func(t *testing.T) {
			result, notes := convert(t, c.text)
			expect.Equal(t, summary(result.Services), c.want)
			expect.Equal(t, notes, "")
		})
	}
}

// Files are included by definitions that keepalived makes.
func TestIncludeOfTheFilesFolder(t *testing.T) {
	dir := t.TempDir()
	must.Succeed(t, os.MkdirAll(filepath.Join(dir, "conf.d"), 0o755))
	must.Succeed(t, os.WriteFile(filepath.Join(dir, "conf.d/a.conf"), []byte("virtual_server 10.0.0.1 80 {\nprotocol TCP\ninclude ${_PWD}/b.inc\n}\n"), 0o644))
	must.Succeed(t, os.WriteFile(filepath.Join(dir, "conf.d/b.inc"), []byte("real_server 10.1.0.1 80 { }\n"), 0o644))
	result, notes := convertIn(t, dir, "include ${_PWD}/conf.d/*.conf\nvirtual_server 10.0.0.1 80 {\nprotocol TCP\nreal_server 10.1.0.1 80 { }\n}\n")
	expect.Equal(t, summary(result.Services), "10.0.0.1:80 10.1.0.1")
	expect.Equal(t, notes, "f:2: 10.0.0.1 port 80 is also that of conf.d/a.conf:1, which is converted: this one is not\n")
}

// A word that the result has nothing of is a note with its line, and the result is valid.
func TestNothingIsLost(t *testing.T) {
	server := func(address, inner string) string {
		return "virtual_server " + address + " {\nprotocol TCP\n" + inner + "\n}\n"
	}
	const real = "real_server 10.1.0.1 80 { }\n"
	for _, c := range []struct{ name, text, want, note string }{
		{"a port twice", server("10.0.0.1 80", real) + server("10.0.0.1 80", "real_server 10.1.0.2 80 { }"), "10.0.0.1:80 10.1.0.1", "f:6: 10.0.0.1 port 80 is also that of line 1"},
		{"a port of all ports", server("10.0.0.1 0", real) + server("10.0.0.1 80", "real_server 10.1.0.2 80 { }"), "10.0.0.1:all affinity 6m 10.1.0.1", "f:6: 10.0.0.1 port 80 is also that of line 1"},
		{"a real server twice", server("10.0.0.1 80", real+"real_server 10.1.0.1 80 { weight 3 }"), "10.0.0.1:80 10.1.0.1", "f:4: service vip-10-0-0-1-80-tcp: the backend 10.1.0.1 is not converted"},
		{"a sorry server that is a real server", server("10.0.0.1 80", real+"sorry_server 10.1.0.1 80"), "10.0.0.1:80 10.1.0.1", "f:4: service vip-10-0-0-1-80-tcp: the backend 10.1.0.1 is not converted"},
		{"two sorry servers", server("10.0.0.1 80", real+"sorry_server 10.1.0.8 80\nsorry_server 10.1.0.9 80"), "10.0.0.1:80 10.1.0.1 10.1.0.9 backup", `f:4: "10.1.0.8 80" of "sorry_server 10.1.0.8 80" is not converted`},
		{"a backend that is a VIP", "virtual_server_group g {\n10.0.0.1 80\n10.0.0.2 80\n}\n" + server("group g", real+"real_server 10.0.0.2 80 { }"), "10.0.0.1:80 10.1.0.1; 10.0.0.2:80 10.1.0.1", "f:8: service vip-10-0-0-1-80-tcp: the backend 10.0.0.2 is not converted"},
		{"direct routing to another port", server("10.0.0.1 80", "lb_kind DR\nreal_server 10.1.0.1 81 { }"), "10.0.0.1:80 10.1.0.1", "f:4: port 81 of 10.1.0.1 is not converted"},
		{"mixed families", server("10.0.0.1 80", real+"real_server 2001:db8::1 80 { }"), "10.0.0.1:80 10.1.0.1", "f:4: service vip-10-0-0-1-80-tcp: the backend 2001:db8::1 is not converted"},
		{"a word too many", server("10.0.0.1 80 90", real), "10.0.0.1:80 10.1.0.1", `f:1: "90" of "virtual_server 10.0.0.1 80 90" is not converted`},
		{"a word too many in a server", server("10.0.0.1 80", "real_server 10.1.0.1 80 x { }\nlb_algo rr wrr"), "10.0.0.1:80 rr 10.1.0.1", `f:4: "wrr" of "lb_algo rr wrr" is not converted`},
		{"a statement twice", server("10.0.0.1 80", "protocol UDP\n"+real), "10.0.0.1:80/udp 10.1.0.1", `f:2: "TCP" of "protocol TCP" is not converted`},
		{"a group that nothing uses", "virtual_server_group g {\n10.0.0.9 80\n}\n" + server("10.0.0.1 80", real), "10.0.0.1:80 10.1.0.1", `f:2: "10.0.0.9 80" is not converted`},
		{"a script that nothing uses", "vrrp_script s {\nscript /bin/true\n}\n" + server("10.0.0.1 80", real), "10.0.0.1:80 10.1.0.1", `f:2: "script /bin/true" is not converted`},
		{"a group twice", "virtual_server_group g {\n10.0.0.1 80\n}\nvirtual_server_group g {\n10.0.0.9 80\n}\n" + server("group g", real), "10.0.0.1:80 10.1.0.1", `f:4: virtual_server_group g is already in line 1`},
		{"a block where none is", server("10.0.0.1 80", real+"lb_algo wlc {\nx y\n}"), "10.0.0.1:80 10.1.0.1", `f:5: "x y" is not converted`},
		{"a word of an equal check", server("10.0.0.1 80", "real_server 10.1.0.1 80 {\nTCP_CHECK { connect_timeout 3\n}\n}\nreal_server 10.1.0.2 80 {\nTCP_CHECK {\nconnect_timeout 3\nfoo bar\n}\n}"), "10.0.0.1:80 10.1.0.1 10.1.0.2 tcp/3s", `f:10: foo bar is not converted`},
		{"a check of TCP for UDP", "virtual_server 10.0.0.1 53 {\nprotocol UDP\nops\nreal_server 10.1.0.1 53 {\nTCP_CHECK { connect_timeout 3 }\n}\n}", "10.0.0.1:53/udp 10.1.0.1 tcp/3s:53", "f:3: ops has an effect with UDP, and lb_kind DR or TUN, only"},
		{"a flag twice, and one without effect", server("10.0.0.1 80", "lb_algo mh\nmh-port\nflag-2\nops\n"+real), "10.0.0.1:80 mh 10.1.0.1", "f:6: ops has an effect with UDP, and"},
		{"a comment after a backslash", server("10.0.0.1 80", "virtualhost a\\!b\nreal_server 10.1.0.1 80 {\nTCP_CHECK {\nconnect_timeout 3\\#4\n}\n}"), "10.0.0.1:80 10.1.0.1 tcp/3s", ""},
		{"single quotes are none", "virtual_server 10.0.0.1 80 {\nprotocol 'TCP'\n" + real + "}", "10.0.0.1:80/udp 10.1.0.1", `f:2: "'TCP'" is not a protocol`},
		{"a prefix of addresses", "virtual_server_group g {\n10.0.0.4/30 80\n}\n" + server("group g", real), "10.0.0.4:80 10.1.0.1; 10.0.0.5:80 10.1.0.1; 10.0.0.6:80 10.1.0.1; 10.0.0.7:80 10.1.0.1", ""},
		{"a range of ports", server("10.0.0.1 80-82", real), "10.0.0.1:80 10.1.0.1", `f:1: "80-82" is not a port: 80 is used`},
		{"all ports have affinity", server("10.0.0.1 0", real), "10.0.0.1:all affinity 6m 10.1.0.1", ""},
		{"no scheduler", server("10.0.0.1 80", "lb_algo\n"+real), "10.0.0.1:80 10.1.0.1", `f:3: the scheduler "" is not available`},
		{"a server without a block", server("10.0.0.1 80", "real_server 10.1.0.1 80"), "10.0.0.1:80 10.1.0.1", "f:3: real_server 10.1.0.1 80 has no block"},
		{"a delay beyond the interval", server("10.0.0.1 80", "delay_loop 2\nreal_server 10.1.0.1 80 {\nTCP_CHECK {\ndelay_before_retry 9\n}\n}"), "10.0.0.1:80 10.1.0.1 tcp/5s", "f:5: a delay_before_retry of 9s is out of bounds: 2s is used"},
		{"no real server", server("10.0.0.1 80", "sorry_server 10.1.0.9 80"), "", "f:1: virtual_server 10.0.0.1 80 has no real_server: keepalived ignores it"},
		{"a protocol that is none", "virtual_server 10.0.0.1 80 {\nprotocol foo\n" + real + "}", "10.0.0.1:80/udp 10.1.0.1", `f:2: "foo" is not a protocol`},
		{"a weight that is none", server("10.0.0.1 80", "real_server 10.1.0.1 80 {\nweight x\n}"), "10.0.0.1:80 10.1.0.1*0", `f:4: weight "x" is not a number from 0 to 65535: it is 0`},
		{"thresholds", server("10.0.0.1 80", "real_server 10.1.0.1 80 {\nlthreshold 1\nupper_threshold 5\n}"), "10.0.0.1:80 10.1.0.1", "f:4: lthreshold is not converted: use max_connections\nf:5: unknown keyword \"upper_threshold 5\""},
		{"a check by direct routing to another port", server("10.0.0.1 80", "lb_kind DR\nreal_server 10.1.0.1 81 {\nTCP_CHECK { connect_timeout 3 }\n}"), "10.0.0.1:80 10.1.0.1 tcp/3s:81", "f:4: port 81 of 10.1.0.1 is not converted"},
		{"a check of HTTP for UDP", "virtual_server 10.0.0.1 53 {\nprotocol UDP\nreal_server 10.1.0.1 80 {\nHTTP_GET { connect_timeout 3 }\n}\n}", "10.0.0.1:53/udp 10.1.0.1 http/3s:80", ""},
		{"a check of SMTP", server("10.0.0.1 80", "real_server 10.1.0.1 2525 {\nSMTP_CHECK { connect_timeout 3 }\n}"), "10.0.0.1:80 10.1.0.1 tcp/3s", ""},
		{"a flag before its scheduler", server("10.0.0.1 80", "mh-port\nlb_algo mh\nmh-fallback\n"+real), "10.0.0.1:80 mh 10.1.0.1", "f:3: mh-port has no effect with the scheduler mh, or before it"},
		{"an include in quotes", "include \"g\"\n" + server("10.0.0.1 80", real), "10.0.0.1:80 10.1.0.1", "f:1: include g: keepalived takes quotes as a part of the name: not read"},
		{"an include beside a brace", server("10.0.0.1 80", real+"real_server 10.1.0.2 80 { include g\n}"), "10.0.0.1:80 10.1.0.1 10.1.0.2", "f:4: include g: no such file"},
		{"a word of a check", server("10.0.0.1 80", "real_server 10.1.0.1 80 {\nTCP_CHECK {\nconnect_timeout 3 4\n}\n}"), "10.0.0.1:80 10.1.0.1 tcp/3s", `f:5: "4" of "connect_timeout 3 4" is not converted`},
	} {
		t.Run(c.name, func(t *testing.T) {
			result, notes := convert(t, c.text)
			expect.Equal(t, summary(result.Services), c.want)
			expect.Contains(t, notes, c.note, "notes:\n%s", notes)
			expect.True(t, c.note != "" || notes == "", "%s", notes)
			expect.Equal(t, result.Refused, 0)
		})
	}
}

// Each word of a configuration of which nothing is known is in a note.
func TestUnknownWordsAreNoted(t *testing.T) {
	sample := string(must.Get(os.ReadFile("testdata/keepalived.conf"))(t))
	_, before := convert(t, sample)
	lines := strings.Split(sample, "\n")
	for i, line := range lines {
		code := strings.TrimSpace(lineWords.Code(line))
		if code == "" || strings.HasPrefix(code, "$") || strings.HasPrefix(code, "~") {
			continue
		}
		changed := strings.Clone(lineWords.Code(line))
		if end := strings.TrimRight(changed, " {"); strings.HasSuffix(strings.TrimSpace(changed), "{") {
			changed = end + " zzz {"
		} else if code != "}" {
			changed += " zzz"
		} else {
			continue
		}
		text := strings.Join(append(append(append([]string{}, lines[:i]...), changed), lines[i+1:]...), "\n")
		_, notes := convert(t, text)
		noted := notes != before || strings.Contains(notes, fmt.Sprintf("f:%d: ", i+1))
		if !noted && !silentWords[strings.Fields(code)[0]] {
			t.Errorf("line %d %q: the word zzz is lost in silence", i+1, changed)
		}
	}
}

// silentWords are the statements of the sample of which nothing is missing, whatever they say.
var silentWords = map[string]bool{
	"router_id": true, "notification_email": true, // of global_defs
	"state": true, "virtual_router_id": true, "advert_int": true,
	"misc_path": true, // its words are the command
}
