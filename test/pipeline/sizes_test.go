package pipeline

import (
	"testing"
	"unsafe"

	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/pipeline"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/vip"
)

// The most numerous structs of a fleet are no larger than necessary. There is a row for each
// service, frontend or lease, and a backend and an endpoint for each server of each service. A
// table adds 24 bytes to a row, and Go rounds up to its size classes (… 48 64 80 96 112 128 144 160
// 176 192 208 224 240 256 288 320 352 …).
//
// If a struct shrank, update the size. If one grew, first check that nothing is lost to padding
// (bytes and bools belong together, behind larger fields), whether a string can be a number
// (vip/enums.go) and a time a vip.Instant, and whether a fact is stored twice. Then check the
// effect on BenchmarkFleet, and update the size.
func TestSizes(t *testing.T) {
	if unsafe.Sizeof(uintptr(0)) != 8 {
		return // the sizes are those of 64-bit hosts
	}
	for name, c := range map[string]struct{ is, want uintptr }{
		"vip.Service":       {unsafe.Sizeof(vip.Service{}), 320},
		"vip.Backend":       {unsafe.Sizeof(vip.Backend{}), 144},
		"vip.Port":          {unsafe.Sizeof(vip.Port{}), 32},
		"vip.Allocation":    {unsafe.Sizeof(vip.Allocation{}), 104},
		"pipeline.Compiled": {unsafe.Sizeof(pipeline.Compiled{}), 72},
		"vip.Frontend":      {unsafe.Sizeof(vip.Frontend{}), 168},
		"vip.Endpoint":      {unsafe.Sizeof(vip.Endpoint{}), 48},
		"reconcile.Applied": {unsafe.Sizeof(reconcile.Applied[vip.Frontend]{}), 32},
		"ipam.Lease":        {unsafe.Sizeof(ipam.Lease{}), 136},
		"ipam.Holder":       {unsafe.Sizeof(ipam.Holder{}), 96},
		"table.Row, beside": {unsafe.Sizeof(table.Row[vip.Service]{}) - unsafe.Sizeof(vip.Service{}), 8},
	} {
		expect.Equal(t, c.is, c.want, "%s takes %d bytes", name, c.is)
	}
}
