package kernel

import (
	"cmp"
	"net/netip"

	"github.com/ironvip/ironvip/internal/netlink"
	"github.com/ironvip/ironvip/internal/reconcile"
)

// Attributes of the nested 64-bit statistics of services and destinations, which kernels
// send since 4.1.
const (
	statsConns    = 1
	statsInPkts   = 2
	statsOutPkts  = 3
	statsInBytes  = 4
	statsOutBytes = 5
	statsCPS      = 6
	statsInPPS    = 7
	statsOutPPS   = 8
	statsInBPS    = 9 // bytes, not bits
	statsOutBPS   = 10
)

// decodeStats reads the nested statistics, which don't contain Active and Inactive.
func decodeStats(b []byte) (reconcile.Traffic, error) {
	var t reconcile.Traffic
	fields := [...]*uint64{
		statsConns:    &t.Connections,
		statsInPkts:   &t.In.Packets,
		statsOutPkts:  &t.Out.Packets,
		statsInBytes:  &t.In.Bytes,
		statsOutBytes: &t.Out.Bytes,
		statsCPS:      &t.Rates.Connections,
		statsInPPS:    &t.Rates.In.Packets,
		statsOutPPS:   &t.Rates.Out.Packets,
		statsInBPS:    &t.Rates.In.Bytes,
		statsOutBPS:   &t.Rates.Out.Bytes,
	}
	a := netlink.Attrs{B: b}
	for typ, v, ok := a.Next(); ok; typ, v, ok = a.Next() {
		if int(typ) < len(fields) && fields[typ] != nil {
			*fields[typ] = a.Uint64(v)
		}
	}
	return t, a.Err
}

// DestStatus is a destination with its current connections and its traffic, which lags by
// 2 s.
type DestStatus struct {
	Dest
	Active, Inactive uint32
	Traffic          reconcile.Traffic
}

// DecodeDestStatus is DecodeDest with connections and traffic, which are the greater part
// of the message.
func DecodeDestStatus(data []byte, svc netip.Addr) (DestStatus, error) {
	var d DestStatus
	var err error
	if d.Dest, err = DecodeDest(data, svc); err != nil {
		return d, err
	}
	body, err := nested(data, attrDest)
	if err != nil {
		return d, err
	}
	a := netlink.Attrs{B: body}
	for typ, v, ok := a.Next(); ok && err == nil; typ, v, ok = a.Next() {
		switch typ {
		case destActive:
			d.Active = a.Uint32(v)
		case destInactive:
			d.Inactive = a.Uint32(v)
		case destStats64:
			d.Traffic, err = decodeStats(v)
		}
	}
	return d, cmp.Or(err, a.Err)
}

// DecodeServiceStats reads the body of a message about a service with its
// statistics.
func DecodeServiceStats(data []byte) (s Service, t reconcile.Traffic, err error) {
	if s, err = DecodeService(data); err != nil {
		return s, t, err
	}
	body, err := nested(data, attrService)
	if err != nil {
		return s, t, err
	}
	a := netlink.Attrs{B: body}
	for typ, v, ok := a.Next(); ok; typ, v, ok = a.Next() {
		if typ == svcStats64 {
			t, err = decodeStats(v)
		}
	}
	return s, t, err
}
