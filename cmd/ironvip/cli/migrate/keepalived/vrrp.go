package keepalived

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/migrate"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

// address is an address of a vrrp_instance.
type address struct {
	migrate.Place
	addr     netip.Addr
	device   string
	instance *statement
}

// instanceKeywords are the statements of a vrrp_instance without their own note: what they set has
// an equivalent that needs no settings, or a default that replaces it.
var instanceKeywords = map[string]string{
	"state":             "",
	"virtual_router_id": "",
	"version":           "",
	"advert_int":        "",
	"authentication":    "heartbeats are authenticated with announce.key_file",
	"nopreempt":         "a host that returns takes its VIPs after announce.settle, without loss",
	"preempt_delay":     "use announce.settle",
	"track_interface":   "a VIP moves when the interface has no carrier",
	"track_process":     "a VIP moves when none of its services has a usable backend",
	"track_file":        "a VIP moves when none of its services has a usable backend",
	"track_bfd":         "heartbeats detect a failed host within 300 ms",
	"virtual_routes":    "configure them with the host's network",
	"virtual_rules":     "configure them with the host's network",
	"notify_fault":      "a VIP that leaves this host is the event vip_withdrawn, whatever the cause: add a [[hook]]",
	"notify_stop":       "a stop of the agent moves no VIP",
	"smtp_alert":        "add a [[hook]] for the events vip_announced and vip_withdrawn",
	"use_vmac":          "the hosts' own MAC addresses answer for VIPs",
	"accept":            "", "no_accept": "", "debug": "", "garp_master_delay": "", "garp_master_repeat": "",
	"garp_master_refresh": "", "garp_master_refresh_repeat": "", "garp_lower_prio_delay": "", "garp_lower_prio_repeat": "",
	"lvs_sync_daemon_interface": "connections are not synchronized: with dr or tunnel and the scheduler mh they survive a move",
	"dont_track_primary":        "", "native_ipv6": "", "higher_prio_send_advert": "", "lower_prio_no_advert": "",
	"vmac_xmit_base": "", "strict_mode": "",
	"skip_check_adv_addr": "", "promote_secondaries": "",
}

// instance converts a vrrp_instance: its addresses are announced at layer 2, and its peers are the
// other hosts.
func (c *converter) instance(s *statement) {
	if c.Announce == nil {
		c.Announce = &migrate.Announce{Mode: announce.L2.String()}
	}
	where := "vrrp_instance " + s.Arg(0)
	device := ""
	if i := s.last("interface"); i != nil {
		device = i.Arg(0)
	}
	for _, inner := range s.block {
		switch inner.Keyword() {
		case "interface", "track_script", "notify", "notify_master", "notify_backup": // read where they are needed
		case "virtual_ipaddress", "virtual_ipaddress_excluded":
			for _, a := range inner.block {
				c.virtualAddress(a, device, s)
			}
		case "unicast_peer":
			for _, p := range inner.block {
				c.peer(p.Place, p.Keyword())
				if p.Has("min_ttl") || p.Has("max_ttl") {
					p.Read() // a check of packets that ironvip doesn't send
				}
			}
		case "priority":
			c.priority(inner)
		case "unicast_src_ip":
			c.peer(inner.Place, inner.Arg(0))
		default:
			c.other(inner, instanceKeywords, where)
		}
	}
	c.notify(s, "INSTANCE", priorityOf(s), c.vips[s.Arg(0)])
}

// priority converts the priority of an instance. The first one is that of the host.
func (c *converter) priority(s *statement) {
	n, ok := c.number(s, 1, 255, "100 is used")
	if ok && c.Announce.Priority == 0 {
		c.Announce.Priority = n
	}
}

// divide makes pools of the addresses if they are announced on several interfaces, or with several priorities.
func (c *converter) divide() {
	type place struct {
		device   string
		priority int
	}
	var places []place
	pools := map[place]*migrate.Pool{}
	of := map[string]*migrate.Pool{} // by VIP
	for _, f := range c.floating {
		p := place{f.device, announce.DefaultPriority}
		if s := f.instance.last("priority"); s != nil {
			if n, err := strconv.Atoi(s.Arg(0)); err == nil {
				p.priority = n
			}
		}
		if of[f.addr.String()] != nil {
			continue
		}
		if pools[p] == nil {
			places = append(places, p)
			pools[p] = &migrate.Pool{Name: fmt.Sprintf("%s-%d", migrate.PoolName, len(places)), Priority: p.priority}
			if p.device != "" {
				pools[p].Interfaces = []string{p.device}
			}
		}
		of[f.addr.String()] = pools[p]
		pools[p].CIDRs = append(pools[p].CIDRs, netip.PrefixFrom(f.addr, f.addr.BitLen()).String())
	}
	if len(places) < 2 {
		return
	}
	for _, p := range places {
		c.Pools = append(c.Pools, *pools[p])
	}
	c.Addresses = slices.DeleteFunc(c.Addresses, func(a netip.Addr) bool { return of[a.String()] != nil })
	for i := range c.Services {
		if s := &c.Services[i]; len(s.VIPs) > 0 && of[s.VIPs[0]] != nil {
			s.Pool = of[s.VIPs[0]].Name
		}
	}
}

// virtualAddress reads an address of an instance. It is announced on the interface after "dev", or else on that of the
// instance.
func (c *converter) virtualAddress(s *statement, device string, instance *statement) {
	text, _, _ := strings.Cut(s.Keyword(), "/")
	for _, word := range []string{"brd", "broadcast", "scope", "label", "dev"} {
		s.After(word) // a VIP has no use of the first four
	}
	addr, err := netip.ParseAddr(text)
	if err != nil {
		c.Note(s.Place, "%q is not an address: ignored", text)
		return
	}
	device = cmp.Or(s.After("dev"), device)
	c.Announce.AddInterface(device)
	c.floating = append(c.floating, address{s.Place, addr, device, instance})
	if name := instance.Arg(0); !slices.Contains(c.vips[name], addr.String()) {
		c.vips[name] = append(c.vips[name], addr.String())
	}
}

func (c *converter) peer(at migrate.Place, text string) {
	addr, err := netip.ParseAddr(text)
	if err != nil {
		c.Note(at, "%q is not an address: ignored", text)
		return
	}
	if !slices.Contains(c.Announce.Peers, addr) {
		c.Announce.Peers = append(c.Announce.Peers, addr)
	}
}

// programs returns the addresses that no virtual_server uses: they float for programs of the hosts.
func (c *converter) programs(served []migrate.Listener) (out []migrate.Listener) {
	used := map[netip.Addr]bool{}
	for i := range served {
		used[served[i].Addr] = true
	}
	for _, f := range c.floating {
		if used[f.addr] {
			if list := f.instance.last("track_script"); list != nil {
				c.Note(list.Place, "track_script is not converted for %s: a VIP moves when none of its services has a usable backend", f.addr)
				list.drop()
			}
			continue
		}
		used[f.addr] = true
		s := spec.Service{Forward: vip.ForwardHost.String(), Health: c.tracked(f.instance)}
		if s.Health == nil {
			c.Note(f.Place, "%s has no virtual_server and no track_script: a host has it for its programs as long as it lives. Add a health check that tells whether they work", f.addr)
		}
		out = append(out, migrate.Listener{Place: f.Place, Name: f.instance.Arg(0), Addr: f.addr, Service: s})
	}
	return out
}

// tracked returns the check that the scripts of a vrrp_instance are, or nil. A service has one check, so the first one counts.
func (c *converter) tracked(instance *statement) (check *spec.HealthCheck) {
	list := instance.last("track_script")
	if list == nil {
		return nil
	}
	for _, use := range list.block {
		name := use.Keyword()
		script := c.scripts[name]
		switch {
		case script == nil || script.last("script") == nil:
			c.Note(use.Place, "there is no vrrp_script %q with a script: not converted", name)
			use.drop()
			continue
		case check != nil:
			c.Note(use.Place, "track_script %s is not converted: a service has one check, so let one script run all of them", name)
			use.drop()
			script.drop()
			continue
		}
		if weight := script.last("weight"); use.After("weight") != "" || weight != nil && weight.Arg(0) != "0" {
			c.Note(use.Place, "the weight of %s is not converted: a host whose check fails gives the address up", name)
		}
		check = c.script(script)
	}
	return check
}

// script converts a vrrp_script. The defaults are those of keepalived.conf(5): 1 s, the interval, and one result.
func (c *converter) script(s *statement) *spec.HealthCheck {
	check := c.command(s, s.last("script"))
	every := c.scriptTime(s, "interval", time.Second, vip.MaxCheckInterval)
	check.Interval, check.FastInterval = every, every
	check.Timeout = c.scriptTime(s, "timeout", time.Duration(*every), vip.MaxCheckTimeout)
	count := func(keyword string) *int {
		if at := s.last(keyword); at != nil {
			if n, ok := c.number(at, 1, vip.MaxRiseFall, "1 is used"); ok {
				return new(n)
			}
		}
		return new(1)
	}
	check.Rise, check.Fall = count("rise"), count("fall")
	return check
}

// scriptTime reads a time of a vrrp_script within the bounds of a check.
func (c *converter) scriptTime(s *statement, keyword string, standard, most time.Duration) *spec.Duration {
	if at := s.last(keyword); at != nil {
		switch d, err := seconds(at.Arg(0)); {
		case err != nil:
			c.Note(at.Place, "%s: %v: %s is used", keyword, err, standard)
		default:
			standard = d
		}
	}
	return c.Bounded(s.Place, keyword, standard, vip.MinCheckInterval, most)
}
