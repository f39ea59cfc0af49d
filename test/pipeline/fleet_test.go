package pipeline

import (
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

// of returns a function that creates services with the given number of backends.
func of(backends int) func(*line, int) vip.Service {
	return func(_ *line, i int) vip.Service {
		all := make([]vip.Backend, backends)
		for b := range all {
			all[b] = vip.Backend{Address: netip.AddrFrom4([4]byte{172, 16 + byte(i>>8)&15, byte(i), byte(b + 1)}), Weight: 1, State: vip.Ready}
		}
		return serviceOf(i, all)
	}
}

// The cost per service of filling an empty line doesn't grow with their number, because no stage
// iterates over all services for each one. Faster growth is visible in the number and bytes of
// allocations. BenchmarkFleet covers steps without allocations.
func TestFillingGrowsLinearly(t *testing.T) {
	perService := func(n int) (objects, bytes float64) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		newLineOf(t, n, of(10))
		runtime.ReadMemStats(&after)
		return float64(after.Mallocs-before.Mallocs) / float64(n), float64(after.TotalAlloc-before.TotalAlloc) / float64(n)
	}
	perService(500) // allocates what is created only once
	firstObjects, firstBytes := perService(1_000)
	for n := 4_000; n <= 16_000; n *= 4 {
		objects, bytes := perService(n)
		t.Logf("%d services: %.0f objects and %.0f bytes a service", n, objects, bytes)
		if objects > 1.2*firstObjects || bytes > 1.5*firstBytes { // maps double, so bytes come in steps
			t.Errorf("%d services take %.0f objects and %.0f bytes each, 1,000 took %.0f and %.0f", n, objects, bytes, firstObjects, firstBytes)
		}
	}
}

// BenchmarkFleet fills a line with a whole fleet, into a recording Target that keeps a map of all
// frontends. It reports the time per service in units of that for a tenth of the fleet, and the
// process's memory in bytes per backend: the peak since before the first service, including
// garbage, and the rest after a collection.
func BenchmarkFleet(b *testing.B) {
	for _, fleet := range []struct{ services, backends int }{{10_000, 10}, {100_000, 1}} {
		b.Run(fmt.Sprintf("%dx%d", fleet.services, fleet.backends), func(b *testing.B) {
			if os.Getenv("GOGC") == "" {
				debug.SetGCPercent(50) // as the agent does
			}
			for b.Loop() {
				small := fill(b, fleet.services/10, fleet.backends)
				before := resetPeak(b)
				large := fill(b, fleet.services, fleet.backends)
				backends := float64(fleet.services * fleet.backends)
				b.ReportMetric(float64(peak(b)-before)/backends, "peak-B/backend")
				debug.FreeOSMemory()
				b.ReportMetric(float64(status(b, "VmRSS:")-before)/backends, "live-B/backend")
				b.ReportMetric(float64(large)/float64(small), "ratio")
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// fill returns the average time per service.
func fill(b *testing.B, services, backends int) time.Duration {
	start := time.Now()
	newLineOf(b, services, of(backends))
	return time.Since(start) / time.Duration(services)
}

// resetPeak restarts the measurement of the peak, and returns the present resident memory.
func resetPeak(b *testing.B) int64 {
	b.Helper()
	debug.FreeOSMemory()
	if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0); err != nil {
		b.Fatalf("reset the peak: %v", err)
	}
	return status(b, "VmRSS:")
}

func peak(b *testing.B) int64 { b.Helper(); return status(b, "VmHWM:") }

// status returns one line of this process's status, in bytes.
func status(b *testing.B, name string) int64 {
	b.Helper()
	text := must.Get(os.ReadFile("/proc/self/status"))(b)
	for line := range strings.Lines(string(text)) {
		var kb int64
		if n, _ := fmt.Sscanf(line, name+" %d kB", &kb); n == 1 {
			return kb << 10
		}
	}
	b.Fatalf("no %s", name)
	return 0
}
