package ldirectord

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/cmd/ironvip/cli/migrate"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
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

// summary returns the services in few words: "10.0.0.1:80 10.1.0.1*2 http 5s/10s*1 /path".
func summary(services []migrate.Service) string {
	var out []string
	for _, s := range services {
		text := fmt.Sprintf("%s:%s", s.VIPs[0], s.Ports[0].Port)
		for _, b := range s.Backends {
			text += " " + b.Address
			if b.Weight != nil {
				text += fmt.Sprintf("*%d", *b.Weight)
			}
			if b.Backup {
				text += " backup"
			}
			text += b.State
		}
		if h := s.Health; h == nil {
			text += " default"
		} else if text += " " + h.Type; h.Type != "none" {
			text += fmt.Sprintf(" %s/%s*%d %s%s%s%s", h.Timeout, h.Interval, *h.Fall, h.Path, h.Body, strings.Join(h.Command, " "), h.Expect)
		}
		out = append(out, strings.TrimSpace(text))
	}
	return strings.Join(out, "; ")
}

// A word that the result has nothing of is a note with its line, and the result is valid.
func TestNothingIsLost(t *testing.T) {
	const web, real = "virtual=10.0.0.1:80\n\treal=10.1.0.1:80 masq\n", "10.0.0.1:80 10.1.0.1"
	const unchecked = "virtual=10.0.0.1:81\n\treal=10.1.0.1:81 masq\n"
	for _, c := range []struct{ name, text, want, note string }{
		{"defaults", web, real + " http 30s/10s*1", ""},
		{"timeouts are each other's default", "checktimeout=4\n" + web, real + " http 4s/10s*1", ""},
		{"a section before the file", "checktimeout=4\nnegotiatetimeout=5\n" + web + "\tchecktimeout=6\n", real + " http 6s/10s*1", ""},
		{"a section has no interval without fork", "checkinterval=3\n" + web + "\tcheckinterval=5\n", real + " http 30s/3s*1", "f:4: checkinterval 5 is not converted: ldirectord ignores it"},
		{"a section has one with fork", "fork=yes\ncheckinterval=3\n" + web + "\tcheckinterval=5\n", real + " http 30s/5s*1", ""},
		{"connect", web + "\tchecktype=connect\n\tchecktimeout=2\n\tfailurecount=3\n", real + " tcp 2s/10s*3", ""},
		{"a check by a number", web + "\tchecktype=3\n", real + " http 30s/10s*1", "f:3: checktype 3 is not converted"},
		{"no check", unchecked, "10.0.0.1:81 10.1.0.1 none", ""},
		{"on", web + "\tchecktype=on\n", real + " none", ""},
		{"off", web + "\tchecktype=off\n", real + "maint none", "f:3: checktype off adds no server"},
		{"off with a fallback", "fallback=10.1.0.9:80 masq\n" + web + "\tchecktype=off\n", real + "maint 10.1.0.9 backupmaint none", "f:4: checktype off adds no server"},
		{"quiescent", "quiescent=yes\n" + web, real + " http 30s/10s*1", "f:1: quiescent is not converted: a failed backend gets no new clients"},
		{"a ping", web + "\tchecktype=ping\n", real + " default", "f:1: checks by ping are not converted"},
		{"a program", web + "\tchecktype=external\n\tcheckcommand=\"/bin/check -x\"\n", real + " exec 5s/10s*1 /bin/check -x", "f:4: checkcommand becomes an exec check"},
		{"a text", unchecked + "\tservice=simpletcp\n\trequest=\"PING\\n\"\n\treceive=\"^PONG\"\n", "10.0.0.1:81 10.1.0.1 tcp 30s/10s*1 PONG", "f:5: the answer must begin with"},
		{"an expression", web + "\trequest=\"x\"\n\treceive=\"a.*b\"\n", real + " http 30s/10s*1 /x", `f:4: the expression "a.*b" is not converted`},
		{"a password", "virtual=10.0.0.1:3306\n\treal=10.1.0.1:3306 masq\n\tpasswd=\"hidden\"\n", "10.0.0.1:3306 10.1.0.1 tcp 30s/10s*1", "f:1: the check of mysql is not converted: the check is a tcp check\nf:3: passwd is not converted"},
		{"a request of one server", web + "\treal=10.1.0.2:80 masq 2 \"a\", \"b\"\n\treal=10.1.0.3:80 masq \"c\", \"b\"\n", real + " 10.1.0.2*2 10.1.0.3 http 30s/10s*1 /ab", `f:4: the request "c" is not converted`},
		{"a range", "virtual=10.0.0.1:80\n\treal=10.1.0.1->10.1.0.3:80 masq 5\n\treal=10.1.0.9->10.1.0.1:80 masq\n", "10.0.0.1:80 10.1.0.1*5 10.1.0.2*5 10.1.0.3*5 http 30s/10s*1", "f:3: \"10.1.0.9->10.1.0.1:80\" is not a range"},
		{"a fallback of all", "fallback=10.1.0.9:80 masq\n" + web, real + " 10.1.0.9 backup http 30s/10s*1", "f:1: ldirectord does not check a fallback"},
		{"a fallback of one", "fallback=10.1.0.9:80 masq\n" + web + "\tfallback=10.1.0.8:80 masq\n", real + " 10.1.0.8 backup http 30s/10s*1", "f:4: ldirectord does not check a fallback"},
		{"a method that is none", "virtual=10.0.0.1:80\n\treal=10.1.0.1:80 foo\n", "10.0.0.1:80 http 30s/10s*1", `f:2: "foo" is not a forwarding method`},
		{"a word of a server", "virtual=10.0.0.1:80\n\treal=10.1.0.1:80 masq 1 foo\n", real + " http 30s/10s*1", `f:2: "foo" is not converted`},
		{"a setting twice", web + "\tscheduler=rr\n\tscheduler=wrr\n", real + " http 30s/10s*1", `f:3: "scheduler rr" is not converted`},
		{"a word too many", web + "\tcheckport=80 81\n", real + " http 30s/10s*1", `f:3: "81" of "checkport 80 81" is not converted`},
		{"a word too many of the file", "checkinterval=5 6\n", "", `f:1: "6" of "checkinterval 5 6" is not converted`},
		{"a comment in a value", web + "\tscheduler=rr#x\n", real + " http 30s/10s*1", ""},
		{"a line after an empty one", web + "\n\tscheduler=rr\n", real + " http 30s/10s*1", `f:4: "scheduler" is in no section`},
		{"few spaces", web + "  scheduler=rr\n", real + " http 30s/10s*1", `f:3: "scheduler" is in no section`},
		{"a section twice", web + web + "\tchecktype=connect\n", real + " http 30s/10s*1", "f:3: -A 10.0.0.1:80 is ignored"},
		{"a name instead of an address", "virtual=www.example.com:80\n\treal=10.1.0.1:80 masq\n", "", `f:1: "www.example.com:80" is not an address and port`},
		{"a protocol", web + "\tprotocol=sctp\n", "", `f:1: "sctp" is not a protocol`},
		{"a number that is none", web + "\tfailurecount=x\n", real + " http 30s/10s*1", `f:3: failurecount "x" is not a number from 1 to 255`},
		{"an unknown key", "foo=bar\n" + web + "\tbar=foo\n", real + " http 30s/10s*1", "f:1: \"foo bar\" is not converted\nf:4: \"bar foo\" is not converted"},
	} {
		t.Run(c.name, func(t *testing.T) {
			result, notes := convert(c.text)
			expect.Equal(t, summary(result.Services), c.want)
			expect.Equal(t, strings.Count(notes, "\n"), strings.Count(c.note, "\n")+min(1, len(c.note)), "%s", notes)
			for note := range strings.SplitSeq(c.note, "\n") {
				expect.Contains(t, notes, note)
			}
			expect.Equal(t, result.Refused, 0)
		})
	}
}

func FuzzConvert(f *testing.F) {
	f.Add(string(must.Get(os.ReadFile("testdata/ldirectord.cf"))(f)))
	f.Fuzz(func(t *testing.T, text string) {
		for _, n := range Convert("f", text).Notes {
			expect.True(t, n.Text != "" && n.Line > 0, "note without a line or text: %v", n)
		}
	})
}
