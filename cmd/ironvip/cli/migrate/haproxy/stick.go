package haproxy

import (
	"cmp"
	"slices"
	"time"

	"github.com/ironvip/ironvip/cmd/ironvip/cli/migrate"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

// table is the stick-table of a section. Most tables count for rate limits; a rule makes one sticky.
type table struct {
	line   migrate.Statement
	exists bool
	sticky bool // clients' addresses stick to servers by it
}

// readTables collects the tables of all sections, and which of them rules use for affinity.
func (c *converter) readTables(all []*section) {
	c.tables = map[string]*table{}
	for _, s := range all {
		for _, l := range s.all() {
			switch l.Words[0] {
			case "stick-table":
				t := c.table(s.name)
				t.line, t.exists = l, true
			case "stick":
				if bySource(&l) {
					c.table(tableName(s, &l)).sticky = true
				}
			}
		}
	}
}

// table returns the table of a section, which it adds if there is none.
func (c *converter) table(name string) *table {
	if c.tables[name] == nil {
		c.tables[name] = &table{}
	}
	return c.tables[name]
}

// bySource reports whether a stick rule finds servers by the client's address.
func bySource(l *migrate.Statement) bool {
	return (l.Arg(0) == "on" || l.Arg(0) == "match") && l.Arg(1) == "src"
}

// tableName returns the table of a stick rule: another section's after "table".
func tableName(s *section, l *migrate.Statement) string {
	return cmp.Or(l.After("table"), s.name)
}

// stick converts a stick rule: affinity for as long as the entries of its table live.
func (p *proxy) stick(s *section, l *migrate.Statement) {
	l.Keyword()
	switch {
	case bySource(l):
	case l.Arg(0) == "store-request" && l.Arg(1) == "src":
		l.After("table")
		return // it fills the table that "stick match" reads
	default:
		p.Note(l.Place, "%q is not converted: affinity is by the client's address", l.String())
		return
	}
	if slices.Contains(l.Words, "if") || slices.Contains(l.Words, "unless") {
		p.Note(l.Place, "the condition of %q is not converted: affinity holds for all clients", l.String())
	}
	p.service.Affinity = &spec.Affinity{}
	name := tableName(s, l)
	t := p.tables[name]
	if !t.exists {
		p.Note(l.Place, "the stick-table of %q is not defined: the default timeout of affinity is used", name)
		return
	}
	expire := t.line.After("expire")
	if expire != "" {
		p.service.Affinity.Timeout = p.positive(&t.line, expire, time.Second, vip.MaxAffinity)
	}
	if d, err := parseTime(expire); expire == "" || err == nil && d == 0 {
		p.Note(t.line.Place, "entries of the stick-table never expire: the default timeout of affinity is used")
	}
}
