package keepalived

import (
	"fmt"

	"github.com/ironvip/ironvip/cmd/ironvip/cli/migrate"
)

// Convert reads a file and the files that it includes.
func Convert(name string) (migrate.Result, error) { return convertWithin(name, maxBytes) }

// convertWithin is Convert with another bound of bytes.
func convertWithin(name string, most int) (migrate.Result, error) {
	var result migrate.Result
	statements, err := newReader(thisHost, &result, most).read(name)
	if err != nil {
		return result, fmt.Errorf("%s: not read: %w", name, err)
	}
	c := &converter{Result: &result, groups: map[string]*statement{}, scripts: map[string]*statement{}, vips: map[string][]string{}}
	c.top(statements)
	c.noteUnread(statements)
	result.SortNotes()
	return result, nil
}

// converter makes a result of statements.
type converter struct {
	*migrate.Result
	groups   map[string]*statement // virtual_server_group by name
	scripts  map[string]*statement // vrrp_script by name
	floating []address             // of the vrrp_instance blocks
	vips     map[string][]string   // by vrrp_instance
}

// elsewhere names what ironvip has instead of a statement, for those whose place is not a service; "": nothing is missing.
var elsewhere = map[string]string{
	"SSL":                      "",
	"global_defs":              "nothing of it is needed",
	"vrrp_track_process":       "a VIP moves when none of its services has a usable backend",
	"track_file":               "a VIP moves when none of its services has a usable backend",
	"vrrp_track_file":          "a VIP moves when none of its services has a usable backend",
	"vrrp_sync_group":          "VIPs move one by one",
	"static_ipaddress":         "configure it with the host's network",
	"static_routes":            "configure it with the host's network",
	"static_rules":             "configure it with the host's network",
	"bfd_instance":             "BFD is a key of each router: announce.bgp.bfd",
	"garp_group":               "repeated announcements need no settings",
	"interface_up_down_delays": "a link without carrier counts at once",
}

// top converts the statements outside of blocks.
func (c *converter) top(statements []*statement) {
	var listeners []migrate.Listener
	for _, s := range statements {
		switch s.Words[0] {
		case "virtual_server_group":
			c.define(c.groups, s)
		case "vrrp_script":
			c.define(c.scripts, s)
		}
	}
	for _, s := range statements {
		switch s.Keyword() {
		case "virtual_server":
			listeners = append(listeners, c.virtualServer(s)...)
		case "vrrp_instance":
			c.instance(s)
		case "virtual_server_group", "vrrp_script": // read where they are used
		default:
			c.other(s, elsewhere, "")
		}
	}
	for _, s := range statements {
		if s.Words[0] == "vrrp_sync_group" {
			c.syncGroup(s) // the instances can come after it
		}
	}
	c.Add(append(listeners, c.programs(listeners)...))
	c.divide()
}

// define adds a statement by its name, the first of which counts.
func (c *converter) define(all map[string]*statement, s *statement) {
	if first := all[s.Arg(0)]; first != nil {
		c.Note(s.Place, "%s is already in %s, which is used", s, first.From(s.Place))
		s.drop()
		return
	}
	all[s.Arg(0)] = s
}

// other notes a statement without an equivalent, with the reason, or that its keyword is unknown. Without a text, the reason needs
// no note.
func (c *converter) other(s *statement, reasons map[string]string, where string) {
	switch why, known := reasons[s.Keyword()]; {
	case !known:
		c.unknown(s, where)
	case why != "":
		c.Note(s.Place, "%s is not converted: %s", s.Keyword(), why)
	}
	s.drop()
}

// unknown notes a keyword that the converter doesn't know.
func (c *converter) unknown(s *statement, where string) {
	if where != "" {
		where = " in " + where
	}
	c.Note(s.Place, "unknown keyword %q%s: ignored", s.String(), where)
}
