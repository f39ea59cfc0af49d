package output

import (
	"math"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
)

func TestBytes(t *testing.T) {
	for n, want := range map[uint64]string{
		0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1535: "1.4 KiB", 1536: "1.5 KiB", 1<<20 - 1: "1023.9 KiB", 1 << 20: "1.0 MiB",
		5<<30 + 700<<20: "5.6 GiB", 1 << 40: "1.0 TiB", 3 << 50: "3.0 PiB", math.MaxUint64: "15.9 EiB",
	} {
		expect.Equal(t, Bytes(n), want, "Bytes(%d)", n)
	}
}
