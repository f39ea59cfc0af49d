package ipvs

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"net/netip"
	"slices"
	"strings"

	rtnl "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/vip"
)

// tunnels are the devices that take the packets out of tunnels on a real server:
// one for each address of this host that directors send them to, from wherever
// they come. They send nothing.
type tunnels struct {
	prefix string // of their names
	dial   func() (links, error)
	sysctl tunables
}

func newTunnels(device string, sysctl tunables) *tunnels {
	prefix := strings.TrimRight(device, "0123456789")
	return &tunnels{prefix: prefix[:min(len(prefix), unix.IFNAMSIZ-1-8)], dial: dialLinks, sysctl: sysctl}
}

// tunnelsHere returns the addresses of this host at which f's packets come out of
// a tunnel, sorted.
func tunnelsHere(f *vip.Frontend) []netip.Addr {
	if f == nil || f.Kind != vip.OnRealServer || forward(f) != vip.ForwardTunnel {
		return nil
	}
	var all []netip.Addr
	for _, b := range f.Backends {
		all = append(all, b.Addr.Addr())
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}

// name is that of the device for local: eight digits tell it apart, for IPv4
// those of the address.
func (t *tunnels) name(local netip.Addr) string {
	b := local.AsSlice()
	if local.Is6() {
		h := fnv.New32a()
		h.Write(b)
		b = h.Sum(nil)
	}
	return fmt.Sprintf("%s%x", t.prefix, b)
}

// tunnelAddr is on every device that takes IPv4. The kernel's reverse path filter
// drops what comes in by a device without addresses even when it is loose, and
// only loose is sure to be had: the stricter of the device's and the host's
// setting counts. As a loopback address it means nothing to others.
var tunnelAddr = netip.MustParsePrefix("127.0.0.4/32")

// looseFilter lets clients' packets in by a device that doesn't lead to them.
func looseFilter(device string) setting {
	return setting{key: "ipv4/conf/" + device + "/rp_filter", value: "2", why: "packets out of a tunnel come from clients elsewhere"}
}

// fallbacks are the kernel's own devices, which take what no other one does.
var fallbacks = map[vip.Family]string{vip.IPv4: "tunl0", vip.IPv6: "ip6tnl0"}

// device is what the device for local is to be.
func (t *tunnels) device(local netip.Addr) rtnl.Link {
	attrs := rtnl.NewLinkAttrs()
	attrs.Name = t.name(local)
	if local.Is4() {
		return &rtnl.Iptun{LinkAttrs: attrs, Local: local.AsSlice(), PMtuDisc: 1, Proto: unix.IPPROTO_IPIP}
	}
	return &rtnl.Ip6tnl{LinkAttrs: attrs, Local: local.AsSlice(), Remote: net.IPv6zero, Proto: unix.IPPROTO_IPV6}
}

// end returns the address that a device is for, where it may be one of ours.
func (t *tunnels) end(link rtnl.Link) (netip.Addr, bool) {
	var local, remote net.IP
	switch l := link.(type) {
	case *rtnl.Iptun:
		local, remote = l.Local, l.Remote
	case *rtnl.Ip6tnl:
		local, remote = l.Local, l.Remote
	}
	a, ok := netip.AddrFromSlice(local)
	if a = a.Unmap(); !ok || a.IsUnspecified() || len(remote) > 0 && !remote.IsUnspecified() {
		return netip.Addr{}, false
	}
	return a, link.Attrs().Name == t.name(a)
}

// ensure makes the device for local, or makes it whole. Where nothing is wrong,
// nothing is written.
func (t *tunnels) ensure(local netip.Addr) error {
	h, err := t.dial()
	if err != nil {
		return fmt.Errorf("open rtnetlink: %w", err)
	}
	defer h.Close()
	name := t.name(local)
	link, err := h.LinkByName(name)
	if errors.As(err, &rtnl.LinkNotFoundError{}) {
		if err := t.add(h, local); err != nil {
			return err
		}
		link, err = h.LinkByName(name)
	}
	if err != nil {
		return fmt.Errorf("find device %s: %w", name, err)
	}
	if a, ours := t.end(link); !ours || a != local {
		return vip.Problem{Code: vip.CodeDataplane, Message: fmt.Sprintf("device %s is not the tunnel to %s that it is to be", name, local),
			Hint: "ip -d link show dev " + name + "; rename it if it is somebody else's"}
	}
	if local.Is4() {
		if err := t.admit(h, link); err != nil {
			return err
		}
	}
	if link.Attrs().RawFlags&unix.IFF_UP == 0 {
		if err := h.LinkSetUp(link); err != nil {
			return fmt.Errorf("bring %s up: %w", name, err)
		}
	}
	return nil
}

// add makes the device. The kernel would prefer it to its fallback device, which
// takes the same packets for somebody else if it is up.
func (t *tunnels) add(h links, local netip.Addr) error {
	other := fallbacks[vip.FamilyOf(local)]
	if link, err := h.LinkByName(other); err == nil && link.Attrs().RawFlags&unix.IFF_UP != 0 {
		return vip.Problem{Code: vip.CodeDataplane, Message: fmt.Sprintf("device %s is up: a tunnel to %s would take packets away from whoever uses it", other, local),
			Hint: `use forward dr, or backends on another address; ip link set ` + other + " down if nobody uses it"}
	}
	link := t.device(local)
	switch err := h.LinkAdd(link); {
	case errors.Is(err, unix.EEXIST):
		return vip.Problem{Code: vip.CodeDataplane, Message: fmt.Sprintf("another device is the tunnel to %s already", local), Hint: "ip -d link show type " + link.Type()}
	case errors.Is(err, unix.EOPNOTSUPP):
		return vip.Problem{Code: vip.CodeDataplane, Message: fmt.Sprintf("the kernel has no tunnels of type %s", link.Type()), Hint: "modprobe " + tunnelModules[vip.FamilyOf(local)]}
	case err != nil:
		return fmt.Errorf("create the tunnel %s to %s: %w", link.Attrs().Name, local, err)
	}
	return nil
}

var tunnelModules = map[vip.Family]string{vip.IPv4: "ipip", vip.IPv6: "ip6_tunnel"}

// admit gets IPv4 packets past the reverse path filter, see tunnelAddr.
func (t *tunnels) admit(h links, link rtnl.Link) error {
	if f := t.sysctl.set(looseFilter(link.Attrs().Name)); !f.OK {
		return f.err()
	}
	all, err := h.AddrList(link, rtnl.FAMILY_V4)
	if err != nil {
		return fmt.Errorf("list the addresses of %s: %w", link.Attrs().Name, err)
	}
	if len(all) > 0 {
		return nil
	}
	err = h.AddrAdd(link, &rtnl.Addr{IPNet: &net.IPNet{IP: tunnelAddr.Addr().AsSlice(), Mask: net.CIDRMask(32, 32)}, Scope: unix.RT_SCOPE_HOST})
	if err != nil {
		return fmt.Errorf("put an address on %s: %w", link.Attrs().Name, err)
	}
	return nil
}

// remove deletes the device for local, if it is there and ours.
func (t *tunnels) remove(local netip.Addr) error {
	h, err := t.dial()
	if err != nil {
		return fmt.Errorf("open rtnetlink: %w", err)
	}
	defer h.Close()
	link, err := h.LinkByName(t.name(local))
	if errors.As(err, &rtnl.LinkNotFoundError{}) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find device %s: %w", t.name(local), err)
	}
	if a, ours := t.end(link); !ours || a != local {
		return nil
	}
	if err := h.LinkDel(link); err != nil && !errors.As(err, &rtnl.LinkNotFoundError{}) {
		return fmt.Errorf("delete device %s: %w", link.Attrs().Name, err)
	}
	return nil
}

// read returns the addresses that devices of ours are for, and whether each is
// as ensure makes it.
func (t *tunnels) read() (map[netip.Addr]bool, error) {
	h, err := t.dial()
	if err != nil {
		return nil, fmt.Errorf("open rtnetlink: %w", err)
	}
	defer h.Close()
	all, err := listLinks(h)
	if err != nil {
		return nil, fmt.Errorf("list the devices: %w", err)
	}
	found := map[netip.Addr]bool{}
	for _, link := range all {
		a, ours := t.end(link)
		if !ours {
			continue
		}
		found[a] = link.Attrs().RawFlags&unix.IFF_UP != 0
		if found[a] && a.Is4() {
			own, err := h.AddrList(link, rtnl.FAMILY_V4)
			if err != nil {
				return nil, fmt.Errorf("list the addresses of %s: %w", link.Attrs().Name, err)
			}
			found[a] = len(own) > 0 && t.sysctl.check(looseFilter(link.Attrs().Name)).OK
		}
	}
	return found, nil
}

// listLinks lists the devices; a dump that a change interrupts is read again.
func listLinks(h links) (all []rtnl.Link, err error) {
	for range 5 {
		if all, err = h.LinkList(); !errors.Is(err, rtnl.ErrDumpInterrupted) {
			break
		}
	}
	return all, err
}

// openTunnels makes the devices that new items need, before packets may come.
func (t *Target) openTunnels(ctx context.Context, items []*item) error {
	done := map[netip.Addr]error{}
	for _, it := range items {
		had := tunnelsHere(it.old)
		for _, a := range tunnelsHere(it.update.New) {
			if it.result.blocked || !it.repair && slices.Contains(had, a) {
				continue
			}
			if _, asked := done[a]; !asked {
				if err := ctx.Err(); err != nil {
					return err
				}
				done[a] = t.tunnels.ensure(a)
			}
			if err := done[a]; err != nil {
				it.fail(err)
			}
		}
	}
	return nil
}

// closeTunnels deletes the devices that nobody needs any more.
func (t *Target) closeTunnels(ctx context.Context, items []*item) error {
	for _, it := range items {
		gone := append(tunnelsHere(it.old), tunnelsHere(it.update.Old)...)
		if stray(it.key) {
			gone = append(gone, it.key.Addr)
		}
		for _, a := range gone {
			if t.held.tunnels[a] > 0 {
				continue
			}
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := t.tunnels.remove(a); err != nil {
				it.fail(err)
			}
		}
	}
	return nil
}

// realServer completes what is known of a frontend on a real server from the
// devices: the kernel has no record of how packets come to it. What isn't known
// from before is taken to come through every tunnel that there is, so that none
// counts as left over before it is known who needs it.
func realServer(f, before *vip.Frontend, devices map[netip.Addr]bool) {
	f.Forward = vip.ForwardDirect
	if before != nil && before.Kind == vip.OnRealServer {
		f.Forward, f.Backends = before.Forward, before.Backends
		return
	}
	port := f.Key.Port
	if f.Key.Ranged() {
		port = 0
	}
	for a := range devices {
		if vip.FamilyOf(a) == vip.FamilyOf(f.Key.Addr) {
			f.Forward = vip.ForwardTunnel
			f.Backends = append(f.Backends, vip.Endpoint{Addr: netip.AddrPortFrom(a, port), Weight: 1})
		}
	}
	slices.SortFunc(f.Backends, vip.CompareEndpoints)
}

// removeAll deletes every device that is ours.
func (t *tunnels) removeAll() error {
	all, err := t.read()
	errs := []error{err}
	for a := range all {
		errs = append(errs, t.remove(a))
	}
	return errors.Join(errs...)
}
