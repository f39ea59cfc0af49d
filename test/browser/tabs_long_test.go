//go:build system && long

package browser

import (
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/ironvip/ironvip/test/wait"
)

// The agent of many windows dies, and a new one is there: every window says so, and recovers.
func TestManyTabsRecover(t *testing.T) {
	w := openWindows(t)
	first := w.tabs[0]
	w.agent.Kill()
	for _, b := range w.tabs {
		b.see(".lost", "not reachable")
	}
	w.agent.begin()
	for _, b := range w.tabs {
		b.until("the message is gone", "document.querySelector('.lost').hidden")
	}
	w.two.stop()
	w.live("degraded")

	// The worker ends: the pages begin another one.
	worker := first.workers()[0]
	ctx, cancel := chromedp.NewContext(first.ctx, chromedp.WithTargetID(worker))
	if _, err := chromedp.Run(ctx, chromedp.Evaluate[any]("close()")); err != nil {
		t.Logf("end the worker: %v", err)
	}
	cancel()
	wait.Until(t, "another worker runs", func() bool { ids := first.workers(); return len(ids) == 1 && ids[0] != worker }, func() any { return first.workers() })
	w.two.start()
	w.live("healthy")
}
