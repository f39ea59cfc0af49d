package output

import (
	"math/bits"
	"strconv"
)

// Bytes returns an amount of bytes in its largest binary unit, truncated to one decimal: "0 B",
// "1.5 KiB", "16.0 EiB".
func Bytes(n uint64) string {
	if n < 1<<10 {
		return strconv.FormatUint(n, 10) + " B"
	}
	unit := (bits.Len64(n) - 1) / 10
	shift := 10 * unit
	tenths := (n >> (shift - 10) & (1<<10 - 1)) * 10 >> 10
	return strconv.FormatUint(n>>shift, 10) + "." + strconv.FormatUint(tenths, 10) + " " + "KMGTPE"[unit-1:unit] + "iB"
}
