package announcing

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/announce/nodes"
	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/internal/hostnet"
)

// holdProxy is how long VIPs of the userspace proxy stay announced without an agent, which is their
// dataplane. A restart or an upgrade takes less.
const holdProxy = 2 * time.Second

// secrets are the secrets as read last. A file that can't be read keeps those of before.
type secrets struct {
	keys    [][]byte
	routers []announce.BGPPeer
}

// compute returns the settings of the announcer, and what this host publishes. With an error, the
// settings are valid and leave out what does not work. The caller holds mu.
func (a *Announcing) compute() (announce.Settings, nodes.Own, error) {
	cfg := a.Config()
	c := &cfg.Announce
	host, _, _ := a.Host.Get(struct{}{})
	s := announce.Settings{
		Node: cfg.Node.Name, Weight: c.Weight, Draining: a.Nodes.Draining(cfg.Node.Name), Device: cfg.Dataplane.Device,
		Listen: c.Listen, Heartbeat: time.Duration(c.Heartbeat), Missed: c.Missed, Settle: time.Duration(c.Settle), Hold: time.Duration(c.Hold),
	}
	if !a.Forwards() {
		s.Hold = min(s.Hold, holdProxy)
	}
	for i := range cfg.Pools {
		s.Pools = append(s.Pools, cfg.AnnouncePool(&cfg.Pools[i]))
	}
	var errs []error
	if s.Uses(announce.BGP) {
		routers, err := c.Routers()
		if err == nil {
			a.secrets.routers = routers
		}
		errs = append(errs, err)
		s.BGP = a.secrets.routers
		s.RouterID = routerID(s.Node, cfg.Dataplane.Device, host)
	}
	if !s.Uses(announce.L2) {
		return s, nodes.Own{}, errors.Join(errs...)
	}
	ranges := s.Ranges(announce.L2)
	s.LANs = lans(cfg, ranges, host)
	for _, l := range s.LANs {
		if len(l.Interfaces) == 0 && len(host.Addrs) > 0 {
			errs = append(errs, fmt.Errorf("no interface has an address in the range of pool %s: set announce.interfaces", strings.Join(l.Pools, ", ")))
		}
	}
	peers, err := a.heartbeats(c, &s, ranges, host)
	if errs = append(errs, err); err != nil {
		s.Pools = slices.DeleteFunc(s.Pools, func(p announce.Pool) bool { return p.Mode == announce.L2 })
	}
	s.Peers = peers
	own := nodes.Own{}
	if addr := ownAddress(c.Listen, announce.Interfaces(s.LANs), host); addr.IsValid() && a.Fleet {
		own = nodes.Own{Address: addr, Pools: ranges}
	}
	return s, own, errors.Join(errs...)
}

// heartbeats sets the keys and returns the peers. An error means that this host must not announce at
// layer 2: it could not find out what its peers announce.
func (a *Announcing) heartbeats(c *configs.Announce, s *announce.Settings, ranges []netip.Prefix, host hostnet.Snapshot) ([]netip.AddrPort, error) {
	keys, err := c.Keys()
	switch {
	case err != nil && a.secrets.keys == nil:
		return nil, fmt.Errorf("announce.key_file: %w; nothing is announced at layer 2 until it can be read", err)
	case err != nil:
		err = fmt.Errorf("announce.key_file: %w; the earlier secrets stay in use", err)
		a.Log.Warn("announcing", "err", err)
	case c.KeyFile == "" && a.Fleet:
		if secret := a.Nodes.Secret(); secret != nil {
			a.secrets.keys = [][]byte{secret}
		}
	default:
		a.secrets.keys = keys
	}
	var peers []netip.AddrPort
	for _, p := range c.Peers {
		peers = append(peers, p.AddrPort)
	}
	if a.Fleet {
		peers = append(peers, a.Nodes.Peers(ranges)...)
	}
	// All hosts may have one list, with this host in it.
	peers = slices.DeleteFunc(peers, func(p netip.AddrPort) bool {
		return slices.ContainsFunc(host.Addrs, func(a hostnet.Addr) bool { return a.Prefix.Addr().Unmap() == p.Addr() })
	})
	slices.SortFunc(peers, netip.AddrPort.Compare)
	peers = slices.Compact(peers)
	if len(a.secrets.keys) == 0 && a.Fleet {
		return nil, errors.New("the fleet's secret for heartbeats is not known yet; nothing is announced at layer 2 until it is")
	}
	s.Keys = a.secrets.keys
	return peers, nil
}

// routerID returns the host's identifier for BGP: its first own IPv4 address, or one made of its name.
func routerID(node, device string, host hostnet.Snapshot) netip.Addr {
	for _, a := range host.Addrs {
		if ip := a.Prefix.Addr().Unmap(); ip.Is4() && a.Link != device && !ip.IsLoopback() && !ip.IsLinkLocalUnicast() && !a.Secondary {
			return ip
		}
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(node))
	return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, max(h.Sum32(), 1))))
}

// lans returns where VIPs are announced at layer 2: at the interfaces that the pool names or [announce], else at those with an
// address in a subnet that has VIPs of the pool, else at those with VIPs of any pool. No two LANs have the same interfaces.
func lans(cfg *configs.Config, ranges []netip.Prefix, host hostnet.Snapshot) (out []announce.LAN) {
	for i := range cfg.Pools {
		p := &cfg.Pools[i]
		if cfg.AnnounceMode(p) != announce.L2 {
			continue
		}
		var names []string
		for _, choice := range [][]string{p.Interfaces, cfg.Announce.Interfaces, interfaces(p.CIDRs, cfg.Dataplane.Device, host), interfaces(ranges, cfg.Dataplane.Device, host)} {
			if len(names) == 0 {
				names = slices.Compact(slices.Sorted(slices.Values(choice)))
			}
		}
		at := slices.IndexFunc(out, func(l announce.LAN) bool { return slices.Equal(l.Interfaces, names) })
		if at < 0 {
			at = len(out)
			out = append(out, announce.LAN{Interfaces: names})
		}
		out[at].Pools, out[at].CIDRs = append(out[at].Pools, p.Name), append(out[at].CIDRs, p.CIDRs...)
	}
	return out
}

// interfaces returns those with an address in a subnet that has addresses of the ranges.
func interfaces(ranges []netip.Prefix, device string, host hostnet.Snapshot) (out []string) {
	for _, a := range host.Addrs {
		if a.Link != device && a.Link != "lo" && !a.Prefix.IsSingleIP() && slices.ContainsFunc(ranges, a.Prefix.Masked().Overlaps) {
			out = append(out, a.Link)
		}
	}
	return out
}

// ownAddress returns the address that other hosts send heartbeats to: the one of listen, or the
// primary address of the first interface, IPv4 before IPv6.
func ownAddress(listen string, interfaces []string, host hostnet.Snapshot) netip.AddrPort {
	at, port, err := net.SplitHostPort(listen)
	number, portErr := strconv.ParseUint(port, 10, 16)
	if err != nil || portErr != nil {
		return netip.AddrPort{}
	}
	addr, _ := netip.ParseAddr(at)
	if !addr.IsValid() || addr.IsUnspecified() {
		addr = netip.Addr{}
		for _, a := range host.Addrs {
			ip := a.Prefix.Addr().Unmap()
			if !slices.Contains(interfaces, a.Link) || ip.IsLinkLocalUnicast() || a.Secondary || a.Prefix.IsSingleIP() {
				continue
			}
			if !addr.IsValid() || addr.Is6() && ip.Is4() {
				addr = ip
			}
		}
	}
	if !addr.IsValid() {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(addr, uint16(number))
}
