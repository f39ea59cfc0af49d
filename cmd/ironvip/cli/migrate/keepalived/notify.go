package keepalived

import (
	"cmp"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ironvip/ironvip/cmd/ironvip/cli/migrate"
)

// states are the states of VRRP that are events of the VIPs.
var states = []struct{ name, event string }{{"MASTER", "vip_announced"}, {"BACKUP", "vip_withdrawn"}}

// notify converts the scripts of a vrrp_instance or vrrp_sync_group, which has these VIPs. A script of notify gets the arguments
// that keepalived passes.
func (c *converter) notify(s *statement, kind, priority string, vips []string) {
	for _, inner := range s.block {
		keyword := inner.Words[0]
		if keyword != "notify" && keyword != "notify_master" && keyword != "notify_backup" {
			continue
		}
		command := commandWords.Split(inner.Arg(0))
		inner.Arg(1) // its user and group, which the note has
		inner.Arg(2)
		if len(command) == 0 || !filepath.IsAbs(command[0]) || len(vips) == 0 {
			c.Note(inner.Place, "%s is not converted: a hook has the absolute path of a program, and the VIPs to run for", keyword)
			continue
		}
		for _, state := range states {
			words := command
			switch keyword {
			case "notify":
				words = append(slices.Clone(command), kind, s.Arg(0), state.name, priority)
			case "notify_" + strings.ToLower(state.name):
			default:
				continue
			}
			c.AddHook(migrate.Hook{Name: s.Arg(0) + "-" + state.name, Events: []string{state.event}, Objects: vips, Command: words})
		}
		c.Note(inner.Place, "%s is a [[hook]]: the program runs once for each VIP, which is in IRONVIP_OBJECT, as the agent's user and in its sandbox", keyword)
	}
}

// commandWords divides a command into its program and arguments.
var commandWords = migrate.Splitter{Unescape: func(_, next byte) (byte, bool) { return next, true }}

// syncGroup converts the scripts of a vrrp_sync_group. keepalived passes 0 as its priority.
func (c *converter) syncGroup(s *statement) {
	var vips []string
	if group := s.last("group"); group != nil {
		members := slices.Clone(group.Args())
		for _, inner := range group.block {
			members = append(append(members, inner.Keyword()), inner.Args()...)
		}
		for _, name := range members {
			vips = append(vips, c.vips[name]...)
		}
	}
	slices.Sort(vips)
	c.notify(s, "GROUP", "0", slices.Compact(vips))
}

// priorityOf returns the priority of a vrrp_instance.
func priorityOf(s *statement) string {
	if p := s.last("priority"); p != nil {
		return cmp.Or(p.Arg(0), "100")
	}
	return "100"
}
