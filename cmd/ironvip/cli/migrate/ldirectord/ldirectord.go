// Package ldirectord converts ldirectord.cf. Each virtual section becomes the commands of ipvsadm that ldirectord runs, which
// package ipvsadm converts, and a health check.
//
// Files:
//
//	ldirectord.go from sections to commands
//	check.go      from the settings of a section to a health check
package ldirectord

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/ironvip/ironvip/cmd/ironvip/cli/migrate"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/migrate/ipvsadm"
	"github.com/ironvip/ironvip/vip"
)

// maxRange bounds the addresses of one real server.
const maxRange = 4096

// section is the file, or the lines below a "virtual = ADDRESS", as "KEY VALUES...".
type section struct {
	migrate.Statement
	lines []migrate.Statement
}

// last returns the last line with a key, which counts in ldirectord, or nil.
func (s *section) last(key string) *migrate.Statement {
	for i := len(s.lines) - 1; i >= 0; i-- {
		if l := &s.lines[i]; l.Words[0] == key {
			l.Keyword()
			return l
		}
	}
	return nil
}

// converter has the lines outside of virtual sections.
type converter struct {
	*ipvsadm.Converter
	global section
}

// Convert reads a text. name is its name in notes.
func Convert(name, text string) migrate.Result {
	c := &converter{Converter: ipvsadm.New()}
	var virtuals []*section
	var in *section // nil: outside of virtual sections
	number := 0
	for line := range strings.SplitSeq(strings.ReplaceAll(text, "\t", "    "), "\n") {
		number++
		line = strings.TrimRight(line, " \r")
		code, _, isComment := strings.Cut(line, "#") // also in quotes, as ldirectord has it
		if strings.TrimSpace(code) == "" && isComment {
			continue
		}
		key, value, _ := strings.Cut(strings.TrimSpace(code), "=")
		l := migrate.NewStatement(migrate.Place{File: name, Line: number}, append([]string{strings.TrimSpace(key)}, words.Split(value)...))
		switch indent := len(code) - len(strings.TrimLeft(code, " ")); {
		case code == "":
			in = nil
		case indent >= 4 && in != nil:
			in.lines = append(in.lines, l)
		case indent > 0:
			c.Note(l.Place, "%q is in no section: ldirectord refuses it", l.Words[0])
		case l.Words[0] == "virtual" || l.Words[0] == "virtual6":
			in = &section{Statement: l}
			virtuals = append(virtuals, in)
		default:
			in = nil
			c.global.lines = append(c.global.lines, l)
		}
	}
	for _, v := range virtuals {
		c.virtual(v)
	}
	for i := range c.global.lines { // a default that no section needs is not missing
		if l := &c.global.lines[i]; defaults[l.Words[0]] > 0 {
			l.Keyword()
			for n := range defaults[l.Words[0]] {
				l.Arg(n)
			}
		}
	}
	for _, s := range append(virtuals, &c.global) {
		for i := range s.lines {
			c.left(&s.lines[i])
		}
	}
	return c.Services()
}

// defaults are the settings of the file that virtual sections can have, too, and the words of each.
var defaults = map[string]int{"checktimeout": 1, "negotiatetimeout": 1, "checkinterval": 1, "failurecount": 1, "fallback": 2, "fallback6": 2}

// left notes what nobody has read of a line.
func (c *converter) left(l *migrate.Statement) {
	if why, known := elsewhere[l.Words[0]]; known {
		if l.Read(); why != "" {
			c.Note(l.Place, "%s is not converted: %s", l.Words[0], why)
		}
	}
	c.NoteUnread(l)
}

// words divides a value into words. A backslash is a part of a regular expression.
var words = migrate.Splitter{Quotes: `"`, Single: ",", Unescape: func(byte, byte) (byte, bool) { return 0, false }}

// elsewhere names what ironvip has instead of a setting; "": nothing is missing.
var elsewhere = map[string]string{
	"autoreload": "", "cleanstop": "", "comment": "", "fork": "", "logfile": "", "smtp": "", "supervised": "",
	"emailalertfreq": "", "emailalertfrom": "", "emailalertstatus": "",
	"quiescent":       quiescent,
	"readdquiescent":  quiescent,
	"callback":        "import the file again when it changes",
	"checkcount":      "use health.fall",
	"emailalert":      "add a [[hook]] for the events of backends",
	"execute":         "import that file, too",
	"fallbackcommand": "add a [[hook]] for the events of services",
	"maintenancedir":  `use "ironvip backend drain"`,
	"monitorfile":     `follow "ironvip events"`,
	"login":           noLogin, "passwd": noLogin, "database": noLogin, "secret": noLogin, // without their values
}

const (
	noLogin   = "a check does not log in"
	quiescent = `a failed backend gets no new clients and keeps its connections, unless on_unhealthy = "reset"`
)

// get returns a setting of a virtual section, or else the one of the file.
func (c *converter) get(v *section, key string) *migrate.Statement {
	own := v.last(key)
	if all := c.global.last(key); own == nil {
		return all
	}
	return own
}

// value returns the words of a setting of a virtual section, "" without it.
func (v *section) value(key string) string {
	if l := v.last(key); l != nil {
		return strings.Join(l.Args(), " ")
	}
	return ""
}

func (c *converter) virtual(v *section) {
	at := v.Arg(0)
	v.Keyword()
	protocol := vip.TCP.String()
	if strings.HasSuffix(at, ":53") || strings.HasSuffix(at, ":domain") {
		protocol = vip.UDP.String()
	}
	protocol = cmp.Or(v.value("protocol"), protocol)
	service := []string{map[string]string{"tcp": "-t", "udp": "-u"}[protocol], at}
	if _, err := strconv.Atoi(at); err == nil {
		service[0] = "-f"
	} else if service[0] == "" {
		c.Note(v.Place, "%q is not a protocol: not converted", protocol)
		v.drop()
		return
	}
	command := append([]string{"-A"}, service...)
	command = append(command, "-s", cmp.Or(v.value("scheduler"), vip.WeightedRoundRobin.String()))
	for key, option := range map[string]string{"persistent": "-p", "netmask": "-M", "schedflags": "-b"} {
		if value := v.value(key); value != "" {
			command = append(command, option, strings.ReplaceAll(value, " ", ""))
		}
	}
	if v.value("ops") == "yes" && protocol == "udp" {
		command = append(command, "-o")
	}
	l := c.Run(v.Place, command)
	if l == nil {
		v.drop()
		return
	}
	l.Name = v.value("servicename")
	check := check{converter: c, section: v, protocol: protocol, port: l.Ports[0].Port.First}
	check.request, check.receive = v.last("request"), v.last("receive")
	for i := range v.lines {
		if r := &v.lines[i]; r.Words[0] == "real" || r.Words[0] == "real6" {
			r.Keyword()
			c.real(service, r, &check)
		}
	}
	backends := len(l.Backends)
	key := "fallback"
	if l.Addr.Is6() {
		key = "fallback6"
	}
	if f := c.get(v, key); f != nil {
		c.fallback(service, f, l)
	}
	l.Service.Health = check.health()
	if checked := l.Service.Health == nil || l.Service.Health.Type != vip.CheckNone.String(); checked && len(l.Backends) > backends {
		c.Note(l.Backends[backends].Place, "ldirectord does not check a fallback: here it has the check of the service")
	}
	for i := range l.Backends {
		if v.value("checktype") == "off" { // ldirectord adds no server, and no fallback
			l.Backends[i].State = vip.Maint.String()
		}
	}
}

// drop makes a section read: a note names it.
func (v *section) drop() {
	v.Read()
	for i := range v.lines {
		v.lines[i].Read()
	}
}

// methods are the forwarding methods as options of ipvsadm.
var methods = map[string]string{"gate": "-g", "masq": "-m", "ipip": "-i"}

// real converts "ADDRESS[->ADDRESS][:PORT] METHOD [WEIGHT] ["REQUEST", "RECEIVE"] [l:N] [u:N]".
func (c *converter) real(service []string, r *migrate.Statement, check *check) {
	options := []string{"-w", "1"}
	n := 2 // the next argument
	if _, err := strconv.ParseUint(r.Arg(n), 10, 0); err == nil {
		options[1] = r.Arg(n)
		n++
	}
	if i := slices.Index(r.Words, ","); i == n+2 { // in Words, the key is the first one
		check.ofReal(r, r.Arg(n), r.Arg(n+2))
		r.Arg(n + 1)
		n += 3
	}
	for ; r.Arg(n) != ""; n++ {
		name, value, _ := strings.Cut(r.Arg(n), ":")
		option := map[string]string{"u": "-x", "l": "-y"}[name]
		if option == "" {
			c.Note(r.Place, "%q is not converted", r.Arg(n))
			continue
		}
		options = append(options, option, value)
	}
	method := methods[r.Arg(1)]
	if method == "" {
		c.Note(r.Place, "%q is not a forwarding method: the server %s is not converted", r.Arg(1), r.Arg(0))
		return
	}
	for _, at := range c.servers(r) {
		c.Run(r.Place, slices.Concat([]string{"-a"}, service, []string{"-r", at, method}, options))
	}
}

// servers returns the addresses with their port of a real server.
func (c *converter) servers(r *migrate.Statement) (out []string) {
	first, last, isRange := strings.Cut(r.Arg(0), "->")
	if !isRange {
		return []string{first}
	}
	port := ""
	if i := strings.LastIndexByte(last, ':'); i > strings.LastIndexByte(last, ']') {
		last, port = last[:i], last[i:]
	}
	from, err1 := netip.ParseAddr(first)
	to, err2 := netip.ParseAddr(last)
	if cmp.Or(err1, err2) == nil {
		for _, a := range migrate.Range(from, to, maxRange) {
			out = append(out, a.String()+port)
		}
	}
	if out == nil {
		c.Note(r.Place, "%q is not a range of at most %d addresses: not converted", r.Arg(0), maxRange)
	}
	return out
}

// fallback adds the server that takes the connections when all others are down.
func (c *converter) fallback(service []string, f *migrate.Statement, l *migrate.Listener) {
	method := cmp.Or(methods[cmp.Or(f.Arg(1), "gate")], f.Arg(1))
	before := len(l.Backends)
	if c.Run(f.Place, slices.Concat([]string{"-a"}, service, []string{"-r", f.Arg(0), method})); len(l.Backends) > before {
		l.Backends[before].Backup = true
	}
}
