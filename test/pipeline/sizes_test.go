package pipeline

import (
	"testing"
	"unsafe"

	"github.com/ironvip/ironvip/internal/pipeline"
	"github.com/ironvip/ironvip/internal/reconcile"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/vip"
)

// What a fleet has most of is no larger than it has to be: there is a row for
// each service, frontend or lease, and a backend and an endpoint for each server
// of each service. A table adds 24 bytes to a row, and Go rounds up to its size
// classes (… 48 64 80 96 112 128 144 160 176 192 208 224 240 256 288 320 352 …).
//
// Where this fails because a struct shrank, write the new size down. Where one
// grew, first see that nothing is lost to padding (bytes and bools stand
// together, behind what is larger), whether a word can be a number (vip/enums.go), a
// time a vip.Instant, and whether there is something twice; then whether BenchmarkFleet
// minds, and then write the new size down.
func TestSizes(t *testing.T) {
	if unsafe.Sizeof(uintptr(0)) != 8 {
		return // the sizes are those of 64-bit hosts
	}
	for name, c := range map[string]struct{ is, want uintptr }{
		"vip.Service":       {unsafe.Sizeof(vip.Service{}), 232},
		"vip.Backend":       {unsafe.Sizeof(vip.Backend{}), 120},
		"vip.Port":          {unsafe.Sizeof(vip.Port{}), 32},
		"vip.Allocation":    {unsafe.Sizeof(vip.Allocation{}), 96},
		"pipeline.Compiled": {unsafe.Sizeof(pipeline.Compiled{}), 72},
		"vip.Frontend":      {unsafe.Sizeof(vip.Frontend{}), 152},
		"vip.Endpoint":      {unsafe.Sizeof(vip.Endpoint{}), 48},
		"reconcile.Applied": {unsafe.Sizeof(reconcile.Applied[vip.Frontend]{}), 32},
		"ipam.Lease":        {unsafe.Sizeof(ipam.Lease{}), 128},
		"ipam.Holder":       {unsafe.Sizeof(ipam.Holder{}), 96},
		"table.Row, beside": {unsafe.Sizeof(table.Row[vip.Service]{}) - unsafe.Sizeof(vip.Service{}), 8},
	} {
		if c.is != c.want {
			t.Errorf("%s takes %d bytes, want %d", name, c.is, c.want)
		}
	}
}
