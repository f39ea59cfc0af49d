//go:build vm

package program

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/must"
)

// configurations writes configurations of keepalived: virtual servers that differ, in spellings that keepalived accepts or refuses.
type configurations struct {
	*rand.Rand
	t       testing.TB
	dir     string
	number  int // of files and definitions
	defined []string
}

// statement is words, and a block.
type statement struct {
	words []string
	block []statement
	open  bool
}

func line(words ...any) statement {
	return statement{words: strings.Fields(fmt.Sprintln(words...))}
}

func (c *configurations) one(of ...string) string { return of[c.IntN(len(of))] }
func (c *configurations) maybe(n int) bool        { return c.IntN(n) == 0 }

// any returns some of the statements, in another order.
func (c *configurations) any(of ...statement) (out []statement) {
	for _, i := range c.Perm(len(of)) {
		if c.maybe(2) {
			out = append(out, of[i])
		}
	}
	return out
}

// write writes a configuration, and returns its path.
func (c *configurations) write() string {
	c.defined = nil
	var all []statement
	for i := range 8 {
		all = append(all, c.server(i)...)
	}
	text := c.text(all, true)
	path := c.file("conf", strings.Join(c.defined, "")+text)
	return path
}

func (c *configurations) file(kind, text string) string {
	c.number++
	path := filepath.Join(c.dir, fmt.Sprintf("%s%d.conf", kind, c.number))
	must.Succeed(c.t, os.WriteFile(path, []byte(text), 0o644))
	return path
}

// value returns one of some values, or sometimes what may be none.
func (c *configurations) value(good ...string) string {
	if c.maybe(12) {
		return c.one("abc", "-1", "0")
	}
	return c.one(good...)
}

// server returns the n-th virtual server, with a group of addresses before it.
func (c *configurations) server(n int) (out []statement) {
	six := c.maybe(5)
	addr, real := fmt.Sprintf("10.9.%d.1", n), fmt.Sprintf("10.1.%d.", n)
	if six {
		addr, real = fmt.Sprintf("2001:db8:%d::1", n), fmt.Sprintf("2001:db8:ffff:%d::", n)
	}
	v := statement{words: []string{"virtual_server", addr, c.one("80", "443", "25", "65535")}, open: true}
	prefix := map[bool]string{false: "4/30", true: "4/126"}[six]
	if c.maybe(5) {
		name := fmt.Sprintf("group%d", n)
		group := statement{words: []string{"virtual_server_group", name}, open: true, block: []statement{line(addr, "80")}}
		if c.maybe(2) {
			group.block = append(group.block, line(strings.TrimSuffix(addr, "1")+c.one("5-6", "5-7", "5", prefix), "443"))
		}
		v.words = []string{"virtual_server", "group", name}
		out = append(out, group)
	}
	v.block = append(c.any(
		line(c.one("lb_algo", "lvs_sched"), c.one("rr", "wrr", "lc", "sh", "mh", "sed", "nq", "RR", "foo")),
		line("delay_loop", c.value("2", "7", "2.5", "600")),
		line("persistence_timeout", c.value("", "50", "300")),
		line("connect_timeout", c.value("2", "3.5")),
		line("retry", c.value("2", "4")), line("delay_before_retry", c.one("1", "2")),
		line("weight", c.value("2", "5")),
		line("ops"), line("alpha"), line("omega"), line("quorum", "1"), line(c.one("sh-port", "mh-port", "mh-fallback", "flag-1", "flag-2")),
		line("virtualhost", c.one("www.example.com", `"www.example.com"`)),
		line("ha_suspend"), line("quorum_up", `"/bin/x`, `y#z"`),
	), line("protocol", c.one("TCP", "TCP", "TCP", "UDP", "tcp", "SCTP", "foo")), line(c.one("lb_kind", "lvs_method"), c.one("NAT", "DR", "TUN", "nat", "foo")))
	if c.maybe(6) {
		v.block = v.block[:len(v.block)-1]
	}
	if c.maybe(6) {
		v.block = append(v.block, line("sorry_server", real+"99", c.one("80", "8080")))
	}
	if c.maybe(12) { // keepalived ignores one without real servers
		v.block = []statement{line("protocol", "TCP")}
		return append(out, v)
	}
	check := append(c.any(line("retry", c.value("3")), line("delay_loop", c.value("9"))), c.check()...)
	for i := range 1 + c.IntN(3) {
		r := statement{words: []string{"real_server", fmt.Sprint(real, i+1), c.one("80", "8080")}, open: true}
		r.block = append(c.any(line("weight", c.value("3", "0", "65535")), line(c.one("uthreshold", "upper_threshold"), c.value("9", "100")), line("inhibit_on_failure"),
			line("notify_down", `"/bin/x {`, `}"`)), check...)
		v.block = append(v.block, r)
	}
	return append(out, v)
}

// check returns the check of real servers, or none.
func (c *configurations) check() []statement {
	kind := c.one("TCP_CHECK", "TCP_CHECK", "HTTP_GET", "SSL_GET", "SMTP_CHECK", "")
	if kind == "" {
		return nil
	}
	s := statement{words: []string{kind}, open: true}
	s.block = c.any(line("connect_timeout", c.value("2", "4")), line("connect_port", c.value("81", "8008")), line("retry", c.one("0", "2", "5")),
		line("delay_before_retry", c.one("1", "2")), line("delay_loop", c.value("8")), line("warmup", "3"), line("alpha"))
	if strings.HasSuffix(kind, "GET") {
		url := statement{words: []string{"url"}, open: true, block: append(c.any(line("virtualhost", "a.example.com")),
			line("path", c.one("/", "/x", "/x?a=b", `"/x#y"`)), line("status_code", c.one("200", "204")))}
		s.block = append(s.block, url)
	}
	return []statement{s}
}

func (c *configurations) space() string { return c.one(" ", " ", " ", "\t", "  ", " \t ") }

// comment returns the end of a line.
func (c *configurations) comment() string {
	return c.one("", "", "", "", c.one("#", "!", " # ", "\t! ")+c.one("x", `a "b`, "}", "{", "$NONE", "include x", "a # b ! c")) + "\n"
}

// text spells statements.
func (c *configurations) text(all []statement, outside bool) string {
	var b strings.Builder
	for i := 0; i < len(all); i++ {
		if c.maybe(15) {
			b.WriteString(c.comment())
		}
		if n := i + 1 + c.IntN(3); c.maybe(12) && n <= len(all) { // some of them in a file of their own
			path := c.file("part", c.text(all[i:n], outside))
			if c.maybe(2) {
				path = c.one("", "./", "${_PWD}/") + filepath.Base(path)
			}
			b.WriteString(c.one("include", "include", "includer") + c.space() + path + c.comment())
			i = n - 1
			continue
		}
		c.statement(&b, all[i])
	}
	return b.String()
}

func (c *configurations) statement(b *strings.Builder, s statement) {
	b.WriteString(c.one("", "", "  ", "\t", "    "))
	words := slices.Clone(s.words)
	for i, w := range words {
		if i > 0 {
			b.WriteString(c.space())
			switch {
			case strings.ContainsAny(w, `"{}#`):
			case c.maybe(15):
				w = `"` + w + `"`
			case c.maybe(15):
				c.number++
				name := fmt.Sprintf("D%d", c.number)
				c.defined = append(c.defined, fmt.Sprintf("$%s=%s\n", name, w))
				w = c.one("$"+name, "${"+name+"}")
				words[i] = w
			}
		}
		b.WriteString(w)
	}
	if !s.open {
		b.WriteString(c.one("", "", "", " ") + c.comment())
		return
	}
	if b.WriteString(c.one(" ", "", "\t")); strings.HasPrefix(words[len(words)-1], "$") {
		b.WriteByte(' ') // keepalived does not know a name before a brace
	}
	b.WriteByte('{')
	if len(s.block) == 0 && c.maybe(2) {
		b.WriteString(c.one("", " ") + "}" + c.comment())
		return
	}
	inner := c.text(s.block, false)
	if c.maybe(8) && !strings.HasPrefix(strings.TrimSpace(inner), "include") { // the first statement beside the brace
		b.WriteString(c.one(" ", "") + strings.TrimLeft(inner, " \t"))
	} else {
		b.WriteString(c.comment() + inner)
	}
	text := strings.TrimSuffix(b.String(), "\n")
	if last := text[strings.LastIndexByte(text, '\n')+1:]; c.maybe(8) && strings.TrimSpace(last) == "}" { // a brace beside another
		b.Reset()
		b.WriteString(text + c.one(" ", ""))
	}
	b.WriteString(c.one("", " ", "\t") + "}" + c.comment())
}
