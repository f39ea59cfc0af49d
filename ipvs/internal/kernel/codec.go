package kernel

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/netlink"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/vip"
)

// The commands and attributes of the kernel's generic netlink family "IPVS",
// from include/uapi/linux/ip_vs.h.
const (
	familyName    = "IPVS"
	familyVersion = 1

	CmdNewService = 1
	CmdSetService = 2
	CmdDelService = 3
	CmdGetService = 4
	CmdNewDest    = 5
	CmdSetDest    = 6
	CmdDelDest    = 7
	CmdGetDest    = 8
	CmdSetConfig  = 12
	CmdGetConfig  = 13

	attrService    = 1
	attrDest       = 2
	attrTimeoutTCP = 4

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
	destActive   = 7
	destInactive = 8
	destFamily   = 11
	destStats64  = 12
	destTunType  = 13 // from 5.3 on; older kernels ignore it
	destTunPort  = 14
	destTunFlags = 15
)

// Flags of a service. Schedulers define the SCHED bits: for sh and mh, the first is
// fallback and the second is port.
const (
	FlagPersistent = 0x1
	FlagHashed     = 0x2 // set by the kernel in all that it reports
	FlagOnePacket  = 0x4
	FlagSched1     = 0x8
	FlagSched2     = 0x10
	FlagSched3     = 0x20
)

// The netmasks of persistence: each client address is a client.
const (
	Netmask4 = 0xffffffff
	Netmask6 = 128
)

// Forwarding methods.
const (
	ForwardNAT    = 0
	forwardLocal  = 1
	ForwardTunnel = 2
	ForwardDirect = 3
	ForwardMask   = 7
)

// Service is what the kernel stores of a virtual service, without its destinations. It is
// comparable. The kernel identifies a service by address, port and protocol, or, if Mark
// isn't 0, by address family and mark. If it was read by mark, Key contains only the
// unspecified address of the family.
type Service struct {
	Key       vip.FrontendKey
	Mark      uint32
	Scheduler string
	Flags     uint32 // without FlagHashed
	Timeout   uint32 // seconds of persistence; the kernel reports 0 for none
	Netmask   uint32
	PE        string // persistence engine
}

// Dest is what the kernel stores of a destination. It is comparable.
type Dest struct {
	Addr         netip.AddrPort
	Weight       uint32
	Forward      uint32
	Upper, Lower uint32 // connection thresholds
	Tunnel       tunnelKind
}

// tunnelKind is the encapsulation under ForwardTunnel. Ours is always the zero value: IP
// in IP.
type tunnelKind struct {
	Type  uint8
	port  uint16
	flags uint16
}

func FamilyOf(a netip.Addr) uint16 {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// AppendCommand appends the header of a message of the IPVS family.
func AppendCommand(b []byte, family uint16, cmd uint8, flags uint16) []byte {
	return append(netlink.BeginMessage(b, family, flags), cmd, familyVersion, 0, 0)
}

// AppendService appends the service attribute: the identity of a service and, with full,
// all its settings, which the kernel needs to add or change it.
func AppendService(b []byte, s *Service, full bool) []byte {
	b, start := netlink.BeginNest(b, attrService)
	b = netlink.AppendAttr16(b, svcFamily, FamilyOf(s.Key.Addr))
	if s.Mark != 0 {
		b = netlink.AppendAttr32(b, svcFWMark, s.Mark)
	} else {
		b = netlink.AppendAttr16(b, svcProtocol, uint16(s.Key.Protocol))
		b = netlink.AppendAddr(b, svcAddr, s.Key.Addr)
		b = netlink.AppendPort(b, svcPort, s.Key.Port)
	}
	if full {
		b = netlink.AppendAttrString(b, svcSched, s.Scheduler)
		b = appendFlags(b, s.Flags)
		b = netlink.AppendAttr32(b, svcTimeout, s.Timeout)
		b = netlink.AppendAttr32(b, svcNetmask, s.Netmask)
		if s.PE != "" {
			b = netlink.AppendAttrString(b, svcPE, s.PE)
		}
	}
	return netlink.EndNest(b, start)
}

// AppendDest appends the destination attribute: its identity and, with full, all its
// settings.
func AppendDest(b []byte, d *Dest, full bool) []byte {
	b, start := netlink.BeginNest(b, attrDest)
	b = netlink.AppendAttr16(b, destFamily, FamilyOf(d.Addr.Addr()))
	b = netlink.AppendAddr(b, destAddr, d.Addr.Addr())
	b = netlink.AppendPort(b, destPort, d.Addr.Port())
	if full {
		b = netlink.AppendAttr32(b, destForward, d.Forward)
		b = netlink.AppendAttr32(b, destWeight, d.Weight)
		b = netlink.AppendAttr32(b, destUpper, d.Upper)
		b = netlink.AppendAttr32(b, destLower, d.Lower)
		if d.Forward == ForwardTunnel {
			b = netlink.AppendAttr(b, destTunType, d.Tunnel.Type)
			b = netlink.AppendPort(b, destTunPort, d.Tunnel.port)
			b = netlink.AppendAttr16(b, destTunFlags, d.Tunnel.flags)
		}
	}
	return netlink.EndNest(b, start)
}

// appendFlags appends flags with a mask that resets all others.
func appendFlags(b []byte, flags uint32) []byte {
	b = binary.NativeEndian.AppendUint16(b, 12)
	b = binary.NativeEndian.AppendUint16(b, svcFlags)
	b = binary.NativeEndian.AppendUint32(b, flags)
	return binary.NativeEndian.AppendUint32(b, 0xffffffff)
}

// nested returns the attribute want in the body of a message of the IPVS family.
func nested(data []byte, want uint16) ([]byte, error) {
	if len(data) < 4 {
		return nil, netlink.ErrMalformed
	}
	v, err := netlink.Find(data[4:], want)
	if v == nil && err == nil {
		err = netlink.ErrMalformed
	}
	return v, err
}

// DecodeService reads the body of a message about a service.
func DecodeService(data []byte) (s Service, traffic reconcile.Traffic, err error) {
	var family uint16
	var addr []byte
	body, err := nested(data, attrService)
	if err != nil {
		return s, traffic, err
	}
	a := netlink.Attrs{B: body}
	for typ, v, ok := a.Next(); ok; typ, v, ok = a.Next() {
		switch typ {
		case svcFamily:
			family = a.Uint16(v)
		case svcProtocol:
			s.Key.Protocol = vip.Protocol(a.Uint16(v))
		case svcAddr:
			addr = v
		case svcPort:
			s.Key.Port = a.Port(v)
		case svcFWMark:
			s.Mark = a.Uint32(v)
		case svcSched:
			s.Scheduler = schedulerName(v)
		case svcFlags:
			s.Flags = a.Uint32(v) &^ FlagHashed
		case svcTimeout:
			s.Timeout = a.Uint32(v)
		case svcNetmask:
			s.Netmask = a.Uint32(v)
		case svcPE:
			s.PE = netlink.String(v)
		case svcStats64:
			traffic, err = decodeStats(v)
		}
	}
	if err = cmp.Or(a.Err, err); err != nil {
		return s, traffic, err
	}
	if s.Mark != 0 {
		s.Key, addr = vip.FrontendKey{}, unspecified[:]
	}
	s.Key.Addr, err = decodeAddr(family, addr)
	return s, traffic, err
}

// unspecified is the unspecified address of both families.
var unspecified [16]byte

// DecodeDest reads the body of a message about a destination. Svc is an address of the
// service: kernels before 3.18 don't send the family.
func DecodeDest(data []byte, svc netip.Addr) (d DestStatus, err error) {
	var addr []byte
	var port uint16
	family := FamilyOf(svc)
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
			d.Forward = a.Uint32(v) & ForwardMask
		case destWeight:
			d.Weight = a.Uint32(v)
		case destUpper:
			d.Upper = a.Uint32(v)
		case destLower:
			d.Lower = a.Uint32(v)
		case destActive:
			d.Active = a.Uint32(v)
		case destInactive:
			d.Inactive = a.Uint32(v)
		case destStats64:
			d.Traffic, err = decodeStats(v)
		case destTunType:
			if len(v) > 0 {
				d.Tunnel.Type = v[0]
			}
		case destTunPort:
			d.Tunnel.port = a.Port(v)
		case destTunFlags:
			d.Tunnel.flags = a.Uint16(v)
		}
	}
	if err = cmp.Or(a.Err, err); err != nil {
		return d, err
	}
	if d.Forward != ForwardTunnel {
		d.Tunnel = tunnelKind{}
	}
	ip, err := decodeAddr(family, addr)
	d.Addr = netip.AddrPortFrom(ip, port)
	return d, err
}

// decodeAddr reads an address. The kernel sends 16 bytes for both families.
func decodeAddr(family uint16, v []byte) (netip.Addr, error) {
	switch {
	case family == unix.AF_INET && len(v) >= 4:
		return netip.AddrFrom4([4]byte(v)), nil
	case family == unix.AF_INET6 && len(v) >= 16:
		return netip.AddrFrom16([16]byte(v)), nil
	}
	return netip.Addr{}, fmt.Errorf("an address of family %d in %d bytes: %w", family, len(v), netlink.ErrMalformed)
}

// schedulerName returns the string in v, without an allocation for known schedulers.
func schedulerName(v []byte) string {
	for _, s := range schedulers {
		if name := s.String(); len(v) == len(name)+1 && v[len(name)] == 0 && string(v[:len(name)]) == name {
			return name
		}
	}
	return netlink.String(v)
}

// SchedulerOf returns the scheduler with the kernel's name.
func SchedulerOf(name string) vip.Scheduler {
	for _, s := range schedulers {
		if s.String() == name {
			return s
		}
	}
	return vip.OtherScheduler
}

// Schedulers lists the schedulers that the kernel's IPVS has, each as a module ip_vs_NAME. A new
// scheduler of package vip is not one of them.
func Schedulers() []vip.Scheduler { return slices.Clone(schedulers) }

// HasScheduler reports whether s is one of Schedulers.
func HasScheduler(s vip.Scheduler) bool { return slices.Contains(schedulers, s) }

var schedulers = []vip.Scheduler{vip.RoundRobin, vip.WeightedRoundRobin, vip.LeastConnection, vip.WeightedLeastConnection, vip.SourceHash,
	vip.MaglevHash, vip.ShortestExpectedDelay, vip.NeverQueue, vip.WeightedFailover, vip.DestinationHash}

var ErrNoIPVS = vip.Problem{Code: vip.CodeDataplane, Message: "the kernel has no IPVS, or it isn't loaded", Hint: "modprobe ip_vs"}

// LookupFamily returns the number of the IPVS family. The request makes the kernel load
// the module if it can.
func LookupFamily(ctx context.Context, c netlink.Socket) (uint16, error) {
	id, err := netlink.FamilyID(ctx, c, familyName)
	if err == unix.ENOENT {
		return 0, ErrNoIPVS
	}
	if err != nil {
		return 0, fmt.Errorf("look for IPVS in the kernel: %w", err)
	}
	return id, nil
}
