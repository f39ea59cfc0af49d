package ipvs

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/netlink"
	"github.com/ironvip/ironvip/vip"
)

// The commands and attributes of the kernel's generic netlink family "IPVS",
// from include/uapi/linux/ip_vs.h.
const (
	familyName    = "IPVS"
	familyVersion = 1

	cmdNewService = 1
	cmdSetService = 2
	cmdDelService = 3
	cmdGetService = 4
	cmdNewDest    = 5
	cmdSetDest    = 6
	cmdDelDest    = 7
	cmdGetDest    = 8

	attrService = 1
	attrDest    = 2

	svcFamily   = 1
	svcProtocol = 2
	svcAddr     = 3
	svcPort     = 4
	svcFWMark   = 5
	svcSched    = 6
	svcFlags    = 7
	svcTimeout  = 8
	svcNetmask  = 9
	svcPE       = 11
	svcStats64  = 12

	destAddr     = 1
	destPort     = 2
	destForward  = 3
	destWeight   = 4
	destUpper    = 5
	destLower    = 6
	destActive   = 7 // stats_codec.go reads these two and the statistics
	destInactive = 8
	destFamily   = 11
	destStats64  = 12
	destTunType  = 13 // 5.3 and later; older kernels pass over it and know one kind
	destTunPort  = 14
	destTunFlags = 15
)

// Flags of a service. Schedulers give the SCHED bits their meaning: for sh and
// mh alike the first is fallback, the second is port.
const (
	flagPersistent = 0x1
	flagHashed     = 0x2 // the kernel's own; it sets it on whatever it reports
	flagOnePacket  = 0x4
	flagSched1     = 0x8
	flagSched2     = 0x10
)

// The masks that tell client addresses apart for persistence: one address.
const (
	netmask4 = 0xffffffff
	netmask6 = 128
)

// Forwarding methods.
const (
	forwardNAT    = 0
	forwardLocal  = 1
	forwardTunnel = 2
	forwardDirect = 3
	forwardMask   = 7
)

// service is what the kernel keeps of a virtual service, apart from its
// destinations. Comparable. The kernel tells services apart by address, port and
// protocol, or, where fwmark isn't 0, by the family of the address and the mark
// alone: one read by mark has the unspecified address of its family in its key,
// and nothing else.
type service struct {
	key     vip.FrontendKey
	fwmark  uint32
	sched   string
	flags   uint32 // without flagHashed
	timeout uint32 // seconds of persistence; the kernel reports 0 for none
	netmask uint32
	pe      string // persistence engine
}

// dest is what the kernel keeps of a destination. Comparable.
type dest struct {
	addr         netip.AddrPort
	weight       uint32
	forward      uint32
	upper, lower uint32 // connection thresholds
	tunnel       tunnelKind
}

// tunnelKind is how packets are wrapped under forwardTunnel. Ours is always the
// zero value: IP in IP.
type tunnelKind struct {
	typ   uint8
	port  uint16
	flags uint16
}

func familyOf(a netip.Addr) uint16 {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// appendCommand appends the head of a message of the IPVS family.
func appendCommand(b []byte, family uint16, cmd uint8, flags uint16) []byte {
	return append(netlink.BeginMessage(b, family, flags), cmd, familyVersion, 0, 0)
}

// appendService appends the service attribute: what identifies it and, when
// full, all the rest, which the kernel wants for adding and editing.
func appendService(b []byte, s *service, full bool) []byte {
	b, start := netlink.BeginNest(b, attrService)
	b = netlink.AppendAttr16(b, svcFamily, familyOf(s.key.Addr))
	if s.fwmark != 0 {
		b = netlink.AppendAttr32(b, svcFWMark, s.fwmark)
	} else {
		b = netlink.AppendAttr16(b, svcProtocol, uint16(s.key.Protocol))
		b = netlink.AppendAddr(b, svcAddr, s.key.Addr)
		b = netlink.AppendPort(b, svcPort, s.key.Port)
	}
	if full {
		b = netlink.AppendAttrString(b, svcSched, s.sched)
		b = appendFlags(b, s.flags)
		b = netlink.AppendAttr32(b, svcTimeout, s.timeout)
		b = netlink.AppendAttr32(b, svcNetmask, s.netmask)
		if s.pe != "" {
			b = netlink.AppendAttrString(b, svcPE, s.pe)
		}
	}
	return netlink.EndNest(b, start)
}

// appendDest appends the destination attribute, likewise.
func appendDest(b []byte, d *dest, full bool) []byte {
	b, start := netlink.BeginNest(b, attrDest)
	b = netlink.AppendAttr16(b, destFamily, familyOf(d.addr.Addr()))
	b = netlink.AppendAddr(b, destAddr, d.addr.Addr())
	b = netlink.AppendPort(b, destPort, d.addr.Port())
	if full {
		b = netlink.AppendAttr32(b, destForward, d.forward)
		b = netlink.AppendAttr32(b, destWeight, d.weight)
		b = netlink.AppendAttr32(b, destUpper, d.upper)
		b = netlink.AppendAttr32(b, destLower, d.lower)
		if d.forward == forwardTunnel {
			b = netlink.AppendAttr(b, destTunType, d.tunnel.typ)
			b = netlink.AppendPort(b, destTunPort, d.tunnel.port)
			b = netlink.AppendAttr16(b, destTunFlags, d.tunnel.flags)
		}
	}
	return netlink.EndNest(b, start)
}

// appendFlags states all flags: those outside of the value are taken away.
func appendFlags(b []byte, flags uint32) []byte {
	b = binary.NativeEndian.AppendUint16(b, 12)
	b = binary.NativeEndian.AppendUint16(b, svcFlags)
	b = binary.NativeEndian.AppendUint32(b, flags)
	return binary.NativeEndian.AppendUint32(b, 0xffffffff)
}

// nested returns the attribute of the wanted type in the body of a message of
// the IPVS family.
func nested(data []byte, want uint16) ([]byte, error) {
	if len(data) < 4 {
		return nil, netlink.ErrMalformed
	}
	a := netlink.Attrs{B: data[4:]}
	for typ, v, ok := a.Next(); ok; typ, v, ok = a.Next() {
		if typ == want {
			return v, nil
		}
	}
	return nil, netlink.ErrMalformed
}

// decodeService reads the body of a message about a service.
func decodeService(data []byte) (service, error) {
	var s service
	var family uint16
	var addr []byte
	body, err := nested(data, attrService)
	if err != nil {
		return s, err
	}
	a := netlink.Attrs{B: body}
	for typ, v, ok := a.Next(); ok; typ, v, ok = a.Next() {
		switch typ {
		case svcFamily:
			family = a.Uint16(v)
		case svcProtocol:
			s.key.Protocol = vip.Protocol(a.Uint16(v))
		case svcAddr:
			addr = v
		case svcPort:
			s.key.Port = a.Port(v)
		case svcFWMark:
			s.fwmark = a.Uint32(v)
		case svcSched:
			s.sched = schedulerName(v)
		case svcFlags:
			s.flags = a.Uint32(v) &^ flagHashed
		case svcTimeout:
			s.timeout = a.Uint32(v)
		case svcNetmask:
			s.netmask = a.Uint32(v)
		case svcPE:
			s.pe = netlink.String(v)
		}
	}
	if a.Err != nil {
		return s, a.Err
	}
	if s.fwmark != 0 {
		s.key = vip.FrontendKey{}
		if s.key.Addr, err = unspecified(family); err != nil {
			return s, err
		}
		return s, nil
	}
	s.key.Addr, err = decodeAddr(family, addr)
	return s, err
}

// decodeDest reads the body of a message about a destination of a service of
// the given address's family, which kernels before 3.18 don't repeat.
func decodeDest(data []byte, svc netip.Addr) (dest, error) {
	var d dest
	var addr []byte
	var port uint16
	family := familyOf(svc)
	body, err := nested(data, attrDest)
	if err != nil {
		return d, err
	}
	a := netlink.Attrs{B: body}
	for typ, v, ok := a.Next(); ok; typ, v, ok = a.Next() {
		switch typ {
		case destFamily:
			family = a.Uint16(v)
		case destAddr:
			addr = v
		case destPort:
			port = a.Port(v)
		case destForward:
			d.forward = a.Uint32(v) & forwardMask
		case destWeight:
			d.weight = a.Uint32(v)
		case destUpper:
			d.upper = a.Uint32(v)
		case destLower:
			d.lower = a.Uint32(v)
		case destTunType:
			if len(v) > 0 {
				d.tunnel.typ = v[0]
			}
		case destTunPort:
			d.tunnel.port = a.Port(v)
		case destTunFlags:
			d.tunnel.flags = a.Uint16(v)
		}
	}
	if a.Err != nil {
		return d, a.Err
	}
	if d.forward != forwardTunnel {
		d.tunnel = tunnelKind{}
	}
	ip, err := decodeAddr(family, addr)
	d.addr = netip.AddrPortFrom(ip, port)
	return d, err
}

// decodeAddr reads an address; the kernel sends 16 bytes for either family.
func decodeAddr(family uint16, v []byte) (netip.Addr, error) {
	switch {
	case family == unix.AF_INET && len(v) >= 4:
		return netip.AddrFrom4([4]byte(v)), nil
	case family == unix.AF_INET6 && len(v) >= 16:
		return netip.AddrFrom16([16]byte(v)), nil
	}
	return netip.Addr{}, fmt.Errorf("an address of family %d in %d bytes: %w", family, len(v), netlink.ErrMalformed)
}

// unspecified is what stands for a family where there is no address.
func unspecified(family uint16) (netip.Addr, error) {
	switch family {
	case unix.AF_INET:
		return netip.IPv4Unspecified(), nil
	case unix.AF_INET6:
		return netip.IPv6Unspecified(), nil
	}
	return netip.Addr{}, fmt.Errorf("a service of family %d: %w", family, netlink.ErrMalformed)
}

// schedulerName is text, which takes no memory for those that we know.
func schedulerName(v []byte) string {
	for _, s := range knownSchedulers {
		if name := s.String(); len(v) == len(name)+1 && v[len(name)] == 0 && string(v[:len(name)]) == name {
			return name
		}
	}
	return netlink.String(v)
}

// schedulerOf is the scheduler of a name that the kernel has.
func schedulerOf(name string) vip.Scheduler {
	for _, s := range knownSchedulers {
		if s.String() == name {
			return s
		}
	}
	return vip.OtherScheduler
}

var knownSchedulers = vip.Schedulers()

var errNoIPVS = vip.Problem{Code: vip.CodeDataplane, Message: "the kernel has no IPVS, or it isn't loaded", Hint: "modprobe ip_vs"}

// lookupFamily asks the kernel for the number of the IPVS family. Where IPVS is
// a module that isn't loaded, asking makes the kernel load it if it can.
func lookupFamily(ctx context.Context, c messenger) (uint16, error) {
	id, err := netlink.FamilyID(ctx, c, familyName)
	if err == unix.ENOENT {
		return 0, errNoIPVS
	}
	if err != nil {
		return 0, fmt.Errorf("look for IPVS in the kernel: %w", err)
	}
	return id, nil
}
