package kernel

import (
	"github.com/ironvip/ironvip/internal/netlink"
	"github.com/ironvip/ironvip/plane/reconcile"
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
