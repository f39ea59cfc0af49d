package nft

import (
	"encoding/binary"
	"fmt"

	"github.com/ironvip/ironvip/vip"
)

// origin is the part of the table that a service is in. Services of single ports are spread over
// shards, because the kernel takes quadratic time to list a large set. The others have one part
// each.
type origin uint8

const (
	shards             origin = 64
	fromRanges                = shards     // ranges of ports
	fromInternal              = shards + 1 // internal clients' own services
	fromInternalRanges        = shards + 2 // the same for ranges of ports
	origins                   = shards + 3 // the number of origins
)

// shardSeed is arbitrary, but part of the layout.
const shardSeed uint32 = 0x69726f6e

func (o origin) String() string {
	switch o {
	case fromRanges:
		return "ranges"
	case fromInternal:
		return "internal"
	case fromInternalRanges:
		return "internal_ranges"
	}
	return fmt.Sprintf("%02d", uint8(o))
}

func (o origin) ranged() bool { return o == fromRanges || o == fromInternalRanges }

// originOf returns the origin of a frontend's service.
func originOf(k vip.FrontendKey) origin {
	switch {
	case k.Audience != vip.Everyone && k.Ranged():
		return fromInternalRanges
	case k.Audience != vip.Everyone:
		return fromInternal
	case k.Ranged():
		return fromRanges
	}
	return origin(jhash(appendListener(nil, k, k.Port), shardSeed, uint32(shards)))
}

// appendListener appends address . protocol . port, as the registers have it.
func appendListener(b []byte, k vip.FrontendKey, port uint16) []byte {
	b, _ = k.Addr.AppendBinary(b) // it returns no error
	b = append(b, byte(k.Protocol), 0, 0, 0)
	return append(binary.BigEndian.AppendUint16(b, port), 0, 0)
}
