package nftwire

import (
	"cmp"
	"encoding/binary"
	"time"

	"github.com/google/nftables"
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
	Timeout time.Duration // of sets with a timeout, in whole milliseconds; 0: the set's. It is not read back
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
			e.Value, err = dataValue(v)
		case unix.NFTA_SET_ELEM_FLAGS:
			e.edge = len(v) >= 4 && binary.BigEndian.Uint32(v)&unix.NFT_SET_ELEM_INTERVAL_END != 0
		}
	}
	if list.Err == nil {
		list.Err = cmp.Or(err, parts.Err)
	}
	return list.Err == nil
}

// dataValue reads the format of appendData.
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
