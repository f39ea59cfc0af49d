package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/internal/hostnet"
	"github.com/ironvip/ironvip/internal/text"
)

// firewalls checks whether rules of other programs drop packets to VIPs, or the answers that this host forwards.
func firewalls(h Host, w Want) []Finding {
	if h.Firewall == nil || len(w.Pools) == 0 {
		return nil
	}
	drops, err := h.Firewall(configs.FirewallQuery(modeOf(h, w), w.Device, w.RealServer, w.Pools))
	var out []Finding
	for _, d := range drops {
		out = append(out, Finding{Warn, "firewall", d.String(), d.Remedy()})
	}
	switch {
	case errors.Is(err, unix.EPERM):
		out = append(out, Finding{Warn, "firewall", "this user may not read nftables: the host's firewall was not checked", "run ironvip doctor as root"})
	case err != nil:
		out = append(out, Finding{Warn, "firewall", "a part of the host's firewall was not checked: " + err.Error(), "look for rules there that drop packets of the pools"})
	case len(out) == 0:
		out = append(out, Finding{OK, "firewall", "firewall: no nftables rules drop packets to the pools", ""})
	}
	return out
}

// ipv6 checks whether the host has IPv6, if a pool does.
func ipv6(h Host, w Want) []Finding {
	if !slices.ContainsFunc(w.Pools, func(p netip.Prefix) bool { return p.Addr().Is6() }) {
		return nil
	}
	if why, remedy := hostnet.NoIPv6In(h.Files, w.Device); why != "" {
		return []Finding{{Warn, "ipv6", "the host can't have the IPv6 addresses of the pools: " + why, remedy}}
	}
	return nil
}

// conf has a folder of sysctls for each interface.
const conf = "proc/sys/net/ipv4/conf"

// ofDevice returns a sysctl of an interface, or "".
func (h Host) ofDevice(device, key string) string {
	text, _ := fs.ReadFile(h.Files, path.Join(conf, device, key))
	return strings.TrimSpace(string(text))
}

// reversePath checks whether the kernel has dropped packets because the way back to their sender leads through another
// interface. Only its counter knows whether packets take such ways here.
func reversePath(h Host, w Want) []Finding {
	dropped := counter(h.Files, "proc/net/netstat", "TcpExt:", "IPReversePathFilter")
	devices, _ := fs.ReadDir(h.Files, conf)
	var strict, fixes []string
	for _, d := range devices {
		name := d.Name()
		if name == "all" || name == "default" || name == "lo" || name == w.Device {
			continue
		}
		if max(h.ofDevice(name, "rp_filter"), h.ofDevice("all", "rp_filter")) == "1" { // the greater one counts, and 2 is loose
			strict, fixes = append(strict, name), append(fixes, "net/ipv4/conf/"+name+"/rp_filter=2")
		}
	}
	if dropped == 0 || strict == nil || !slices.ContainsFunc(w.Pools, func(p netip.Prefix) bool { return p.Addr().Is4() }) {
		return nil
	}
	return []Finding{{Warn, "rp_filter", fmt.Sprintf("the kernel has dropped %s whose way back leads through another interface than the one they arrived at: rp_filter is strict at %s",
		text.Plural(int(dropped), "packet"), strings.Join(strict, ", ")), "if clients or backends take such ways: sysctl -w " + strings.Join(fixes, " ")}}
}

// counter returns a counter of a file with a line of names and one of values for each group, or 0.
func counter(files fs.FS, file, group, name string) (value uint64) {
	data, _ := fs.ReadFile(files, file)
	at := -1
	for line := range strings.Lines(string(data)) {
		words := strings.Fields(line)
		switch {
		case len(words) == 0 || words[0] != group:
		case at < 0:
			at = slices.Index(words, name)
		case at < len(words):
			value, _ = strconv.ParseUint(words[at], 10, 64)
		}
	}
	return value
}

// forwarding checks whether packets are forwarded whatever interface they arrive at. The agent sets the sysctl of the whole
// host, and another program may have switched a single interface off since, such as systemd-networkd with IPv4Forwarding=no.
func forwarding(h Host, w Want) []Finding {
	is := func(device, value string) bool { return h.ofDevice(device, "forwarding") == value }
	if w.RealServer || configs.DataplaneOf(modeOf(h, w)).Needs == nil || !is("all", "1") {
		return nil
	}
	devices, _ := fs.ReadDir(h.Files, conf)
	var off, fixes []string
	for _, d := range devices {
		if name := d.Name(); is(name, "0") && name != "default" && name != "lo" && name != w.Device {
			off, fixes = append(off, name), append(fixes, "net/ipv4/conf/"+name+"/forwarding=1") // a name may have dots
		}
	}
	if len(off) == 0 {
		return nil
	}
	return []Finding{{Warn, "forwarding", "packets of clients and backends that arrive at " + strings.Join(off, ", ") + " are dropped: forwarding is off there",
		"if clients or backends are behind it: sysctl -w " + strings.Join(fixes, " ")}}
}

// clientMTU is the size of packets from clients in Ethernet networks.
const clientMTU = 1500

// tunnels checks whether clients' packets fit into tunnels to backends.
func tunnels(h Host, w Want) []Finding {
	if h.Route == nil || len(w.Tunnels) == 0 {
		return nil
	}
	type path struct {
		device         string
		mtu, need, tcp int // tcp is the size of the inner headers
	}
	small := map[path][]string{}
	var paths []path
	for _, a := range w.Tunnels {
		device, mtu, err := h.Route(a)
		p := path{device, mtu, clientMTU + 20, 40} // the outer header of IPv4
		if a.Is6() {
			p.need, p.tcp = clientMTU+40, 60
		}
		if err != nil || mtu >= p.need {
			continue // without a route, health checks fail
		}
		if small[p] == nil {
			paths = append(paths, p)
		}
		small[p] = append(small[p], a.String())
	}
	if len(paths) == 0 {
		return []Finding{{OK, "mtu", "mtu: packets of " + fmt.Sprint(clientMTU) + " bytes fit into the tunnels to " + text.Plural(len(w.Tunnels), "backend"), ""}}
	}
	var out []Finding
	for _, p := range paths {
		out = append(out, Finding{Warn, "mtu",
			fmt.Sprintf("%s has MTU %d: a packet of %d bytes from a client has %d in the tunnel to %s", p.device, p.mtu, clientMTU, p.need, firstFew(small[p])),
			fmt.Sprintf("ip link set %s mtu %d, if the network and the backends allow it; otherwise advertise a smaller MSS on the backends: ip route change default ... advmss %d", p.device, p.need, p.mtu-p.need+clientMTU-p.tcp)})
	}
	return out
}
