package ipvs

import (
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/vip"
)

// While a module that the rules need is missing, the dataplane's error names it. The error ends
// only when the module is loaded, because a successful read of the kernel says nothing about
// writes. Then the table is rebuilt.
func TestMissingModuleIsReportedUntilLoaded(t *testing.T) {
	inWorld(t, "a missing module", func(w *world) {
		w.resync = time.Second
		w.start()
		w.k.alter(func() { w.k.noModule = "nft_masq" })
		w.put(listener("10.96.0.1:80", vip.TCP, "10.1.0.1:80"))
		w.waitIdle()
		for range 200 { // beyond resyncs
			if got := w.r.Stats().TargetError; !strings.Contains(got, "the dataplane needs kernel module nft_masq") {
				w.errorf("the dataplane's error is %q", got)
			}
			time.Sleep(testBackoff / 3)
			w.waitIdle()
		}
		w.k.alter(func() { w.k.noModule = "" })
		time.Sleep(2 * time.Second)
		w.waitIdle()
		w.checkApplied()
		w.stop()
	})
}
