package host

import (
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"net/netip"
	"strings"

	rtnl "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/vip"
)

// Tunnels are the devices of a real server that decapsulate packets. There is one for
// each address to which directors send. They send nothing.
type Tunnels struct {
	prefix string // of their names
	dial   func() (Links, error)
	sysctl Tunables
}

func NewTunnels(device string, sysctl Tunables) *Tunnels {
	prefix := strings.TrimRight(device, "0123456789")
	return &Tunnels{prefix: prefix[:min(len(prefix), unix.IFNAMSIZ-1-8)], dial: dialLinks, sysctl: sysctl}
}

// Name returns the name of the device for local. Its eight digits are the IPv4 address,
// or a hash of the IPv6 address.
func (t *Tunnels) Name(local netip.Addr) string {
	b := local.AsSlice()
	if local.Is6() {
		h := fnv.New32a()
		h.Write(b)
		b = h.Sum(nil)
	}
	return fmt.Sprintf("%s%x", t.prefix, b)
}

// tunnelAddr is on every IPv4 tunnel device. The kernel's reverse path filter drops
// packets from a device without addresses even in loose mode, and strict mode may be
// set for the whole host: the stricter setting counts. A loopback address doesn't
// affect other traffic.
var tunnelAddr = netip.MustParsePrefix("127.0.0.4/32")

// looseFilter accepts clients' packets from a device that has no route to the clients.
func looseFilter(device string) Setting {
	return Setting{Key: "ipv4/conf/" + device + "/rp_filter", Value: "2", Why: "packets out of a tunnel come from clients elsewhere"}
}

// fallbacks are the kernel's own devices, which receive packets without another device.
var fallbacks = map[vip.Family]string{vip.IPv4: "tunl0", vip.IPv6: "ip6tnl0"}

// device returns the wanted device for local.
func (t *Tunnels) device(local netip.Addr) rtnl.Link {
	attrs := rtnl.NewLinkAttrs()
	attrs.Name = t.Name(local)
	if local.Is4() {
		return &rtnl.Iptun{LinkAttrs: attrs, Local: local.AsSlice(), PMtuDisc: 1, Proto: unix.IPPROTO_IPIP}
	}
	return &rtnl.Ip6tnl{LinkAttrs: attrs, Local: local.AsSlice(), Remote: net.IPv6zero, Proto: unix.IPPROTO_IPV6}
}

// end returns the address that a device is for. It returns false if the device isn't
// ours.
func (t *Tunnels) end(link rtnl.Link) (netip.Addr, bool) {
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
	return a, link.Attrs().Name == t.Name(a)
}

// Ensure creates or repairs the device for local. It changes nothing if the device is
// intact.
func (t *Tunnels) Ensure(local netip.Addr) error {
	h, link, err := openLink(t.dial, t.Name(local))
	if err != nil {
		return err
	}
	defer h.Close()
	name := t.Name(local)
	if link == nil {
		if err := t.add(h, local); err != nil {
			return err
		}
		if link, err = h.LinkByName(name); err != nil {
			return fmt.Errorf("find device %s: %w", name, err)
		}
	}
	if a, ours := t.end(link); !ours || a != local {
		return vip.Problem{Code: vip.CodeDataplane, Message: fmt.Sprintf("device %s is not the tunnel to %s that it is to be", name, local),
			Hint: "ip -d link show dev " + name + "; rename it if another program uses it"}
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

// add creates the device. It refuses if the kernel's fallback device is up, because the
// new device would take packets away from it.
func (t *Tunnels) add(h Links, local netip.Addr) error {
	other := fallbacks[vip.FamilyOf(local)]
	if link, err := h.LinkByName(other); err == nil && link.Attrs().RawFlags&unix.IFF_UP != 0 {
		return vip.Problem{Code: vip.CodeDataplane, Message: fmt.Sprintf("device %s is up: a tunnel to %s would take packets away from whoever uses it", other, local),
			Hint: `use forward dr, or backends on another address; ip link set ` + other + " down if no program uses it"}
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

// admit makes the reverse path filter accept IPv4 packets, see tunnelAddr.
func (t *Tunnels) admit(h Links, link rtnl.Link) error {
	if f := t.sysctl.Set(looseFilter(link.Attrs().Name)); !f.OK {
		return f.Err()
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

// Remove deletes the device for local if it is ours.
func (t *Tunnels) Remove(local netip.Addr) error {
	h, link, err := openLink(t.dial, t.Name(local))
	if err != nil {
		return err
	}
	defer h.Close()
	if link == nil {
		return nil
	}
	if a, ours := t.end(link); !ours || a != local {
		return nil
	}
	return deleteLink(h, link)
}

// Read returns the addresses of our devices, and whether each device is as Ensure makes
// it.
func (t *Tunnels) Read() (map[netip.Addr]bool, error) {
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
			found[a] = len(own) > 0 && t.sysctl.Check(looseFilter(link.Attrs().Name)).OK
		}
	}
	return found, nil
}

// listLinks lists the devices. It retries if a change interrupts the dump.
func listLinks(h Links) (all []rtnl.Link, err error) {
	for range 5 {
		if all, err = h.LinkList(); !errors.Is(err, rtnl.ErrDumpInterrupted) {
			break
		}
	}
	return all, err
}

// RemoveAll deletes all our devices.
func (t *Tunnels) RemoveAll() error {
	all, err := t.Read()
	errs := []error{err}
	for a := range all {
		errs = append(errs, t.Remove(a))
	}
	return errors.Join(errs...)
}
