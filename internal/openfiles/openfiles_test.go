package openfiles

import (
	"testing"

	"github.com/ironvip/ironvip/test/expect"
)

func TestDivide(t *testing.T) {
	for _, limit := range []uint64{0, 1, 64, 256, 512, 1024, 2048, 20000, 1 << 20, 1 << 30, 1<<64 - 1} {
		b := Divide(limit)
		if sum := b.Agent + b.API + b.Probes + b.Pipes + b.Traffic; sum != b.Limit || uint64(sum) > limit {
			t.Errorf("%d: %+v is %d in total", limit, b, sum)
		}
		if b.Agent < 0 || b.API < 0 || b.Probes < 0 || b.Pipes < 0 || b.Traffic < b.Limit*2/3 {
			t.Errorf("%d: %+v", limit, b)
		}
		if limit >= 1024 && (b.Agent < 64 || b.API < 64 || b.Probes < 64 || b.Pipes < 16) {
			t.Errorf("%d: too little for the agent: %+v", limit, b)
		}
	}
	if b := Divide(1 << 20); b.Agent != mostOfAgent || b.API != mostOfAgent || b.Probes != mostProbes {
		t.Errorf("of a million: %+v", b)
	}
	expect.AtLeast(t, Divide(20_000).Traffic/2, 9_500, "connections with 20,000 descriptors")
}
