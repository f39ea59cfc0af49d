package keepalived

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/ironvip/ironvip/cmd/ironvip/cli/migrate"
)

// address is an address of a vrrp_instance.
type address struct {
	migrate.Place
	addr netip.Addr
}

// instanceKeywords are the statements of a vrrp_instance without their own note: what they set has
// an equivalent that needs no settings, or a default that replaces it.
var instanceKeywords = map[string]string{
	"state":             "",
	"virtual_router_id": "",
	"version":           "",
	"advert_int":        "",
	"authentication":    "heartbeats are authenticated with announce.key_file",
	"priority":          "there is no standby host: announce.weight is a host's share of the VIPs",
	"nopreempt":         "a host that returns takes its VIPs after announce.settle, without loss",
	"preempt_delay":     "use announce.settle",
	"track_interface":   "a VIP moves when the interface has no carrier",
	"track_script":      "a VIP moves when none of its services has a usable backend",
	"track_process":     "a VIP moves when none of its services has a usable backend",
	"track_file":        "a VIP moves when none of its services has a usable backend",
	"track_bfd":         "heartbeats detect a failed host within 300 ms",
	"virtual_routes":    "configure them with the host's network",
	"virtual_rules":     "configure them with the host's network",
	"notify":            "", // see notify
	"notify_master":     "",
	"notify_backup":     "",
	"notify_fault":      "a VIP that leaves this host is the event vip_withdrawn, whatever the cause: add a [[hook]]",
	"notify_stop":       "a stop of the agent moves no VIP",
	"smtp_alert":        "add a [[hook]] for the events vip_announced and vip_withdrawn",
	"use_vmac":          "the hosts' own MAC addresses answer for VIPs",
	"accept":            "", "no_accept": "", "debug": "", "garp_master_delay": "", "garp_master_repeat": "",
	"garp_master_refresh": "", "garp_master_refresh_repeat": "", "garp_lower_prio_delay": "", "garp_lower_prio_repeat": "",
	"lvs_sync_daemon_interface": "connections are not synchronized: with dr or tunnel and the scheduler mh they survive a move",
	"dont_track_primary":        "", "native_ipv6": "", "higher_prio_send_advert": "", "lower_prio_no_advert": "",
	"unicast_src_ip": "", "vmac_xmit_base": "", "strict_mode": "", "interface": "", // read before, as addresses can precede it
	"skip_check_adv_addr": "", "promote_secondaries": "",
}

// instance converts a vrrp_instance: its addresses are announced at layer 2, and its peers are the
// other hosts.
func (c *converter) instance(s *statement) {
	if c.Announce == nil {
		c.Announce = &migrate.Announce{}
	}
	where := "vrrp_instance " + s.Arg(0)
	device := ""
	if i := s.first("interface"); i != nil {
		device = i.Arg(0)
	}
	for _, inner := range s.block {
		switch inner.Words[0] {
		case "virtual_ipaddress", "virtual_ipaddress_excluded":
			for _, a := range inner.block {
				c.virtualAddress(a, device, s.Arg(0))
			}
		case "unicast_peer":
			for _, p := range inner.block {
				c.peer(p.Place, p.Words[0])
			}
		case "unicast_src_ip":
			c.peer(inner.Place, inner.Arg(0))
		default:
			c.other(inner, instanceKeywords, where)
		}
	}
	c.notify(s, "INSTANCE", priorityOf(s), c.vips[s.Arg(0)])
}

// virtualAddress reads an address of an instance. It is announced on the interface after "dev", or else on that of the
// instance.
func (c *converter) virtualAddress(s *statement, device, instance string) {
	text, _, _ := strings.Cut(s.Words[0], "/")
	addr, err := netip.ParseAddr(text)
	if err != nil {
		c.Note(s.Place, "%q is not an address: ignored", text)
		return
	}
	c.Announce.AddInterface(cmp.Or(s.After("dev"), device))
	c.floating = append(c.floating, address{s.Place, addr})
	c.vips[instance] = append(c.vips[instance], addr.String())
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

// unserved notes the addresses that move between hosts, but that no virtual_server uses.
func (c *converter) unserved() {
	for _, f := range c.floating {
		if _, served := slices.BinarySearchFunc(c.Addresses, f.addr, netip.Addr.Compare); !served {
			c.Note(f.Place, "%s has no virtual_server: ironvip announces the addresses of services only. Define a service with vips = [%q], or keep keepalived for this address", f.addr, f.addr)
		}
	}
}
