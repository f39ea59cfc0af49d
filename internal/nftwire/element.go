package nftwire

import (
	"cmp"
	"encoding/binary"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/netlink"
)

// Element is an element of a set or map in the kernel's layout. Sets of intervals
// without concatenation have two elements for each interval, and edge marks the
// one that is the first value after the interval.
type Element struct {
	Key     []byte
	End     []byte        // last key of an interval in a concatenation
	Value   []byte        // of a map
	Verdict *expr.Verdict // of a map of verdicts. Only its chain is read back
	Timeout time.Duration // of sets with a timeout, in whole milliseconds; 0: the set's. It is not read back
	Packets uint64        // of its counter, which is not written
	Bytes   uint64
	edge    bool
}

// next reads the next element of a list.
func (e *Element) next(list *netlink.Attrs) bool {
	_, one, ok := list.Next()
	if !ok {
		return false
	}
	*e = Element{}
	var err error
	parts := netlink.Attrs{B: one}
	for typ, v, ok := parts.Next(); ok && err == nil; typ, v, ok = parts.Next() {
		switch typ {
		case unix.NFTA_SET_ELEM_KEY:
			e.Key, err = dataValue(v)
		case nftables.NFTA_SET_ELEM_KEY_END:
			e.End, err = dataValue(v)
		case unix.NFTA_SET_ELEM_DATA:
			if e.Verdict, err = verdictOf(v); e.Verdict == nil && err == nil {
				e.Value, err = dataValue(v)
			}
		case unix.NFTA_SET_ELEM_EXPR:
			e.Packets, e.Bytes, err = counterOf(v)
		case unix.NFTA_SET_ELEM_FLAGS:
			e.edge = len(v) >= 4 && binary.BigEndian.Uint32(v)&unix.NFT_SET_ELEM_INTERVAL_END != 0
		}
	}
	if list.Err == nil {
		list.Err = cmp.Or(err, parts.Err)
	}
	return list.Err == nil
}

// verdictOf reads the format of appendVerdict. It returns nil for a value of another type.
func verdictOf(v []byte) (*expr.Verdict, error) {
	data, err := netlink.Find(v, unix.NFTA_DATA_VERDICT)
	if data == nil || err != nil {
		return nil, err
	}
	chain, err := netlink.Find(data, unix.NFTA_VERDICT_CHAIN)
	return &expr.Verdict{Chain: netlink.String(chain)}, err
}

// dataValue reads the format of appendData.
// counterOf returns the values of a counter.
func counterOf(v []byte) (packets, bytes uint64, err error) {
	data, err := netlink.Find(v, unix.NFTA_EXPR_DATA)
	a := netlink.Attrs{B: data}
	for typ, v, ok := a.Next(); ok; typ, v, ok = a.Next() {
		switch {
		case typ == unix.NFTA_COUNTER_PACKETS && len(v) == 8:
			packets = binary.BigEndian.Uint64(v)
		case typ == unix.NFTA_COUNTER_BYTES && len(v) == 8:
			bytes = binary.BigEndian.Uint64(v)
		}
	}
	return packets, bytes, cmp.Or(err, a.Err)
}

func dataValue(v []byte) ([]byte, error) {
	value, err := netlink.Find(v, unix.NFTA_DATA_VALUE)
	if value == nil && err == nil {
		err = netlink.ErrMalformed
	}
	return value, err
}

// elementList returns the list of elements in the body of a message.
func elementList(data []byte) (netlink.Attrs, error) {
	if len(data) < 4 {
		return netlink.Attrs{}, netlink.ErrMalformed
	}
	list, err := netlink.Find(data[4:], unix.NFTA_SET_ELEM_LIST_ELEMENTS)
	return netlink.Attrs{B: list}, err
}
