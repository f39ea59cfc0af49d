//go:build system

package browser

import (
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/target"
	"github.com/chromedp/chromedp"

	"github.com/ironvip/ironvip/test/wait"
)

// another opens a window of the same profile at a path of the dashboard. close closes it.
func (b *tab) another(path string) (out *tab, closeTab func()) {
	b.Helper()
	ctx, cancel := chromedp.NewContext(b.ctx)
	b.Cleanup(cancel)
	out = &tab{TB: b.TB, ctx: ctx, base: b.base}
	out.show(path)
	return out, func() {
		if err := chromedp.Cancel(ctx); err != nil {
			b.Error(err)
		}
	}
}

// workers returns the shared workers of the tab's agent.
func (b *tab) workers() (ids []target.ID) {
	b.Helper()
	all, err := chromedp.Targets(b.ctx)
	if err != nil {
		b.Fatal(err)
	}
	for _, t := range all {
		if t.Type == "shared_worker" && strings.HasPrefix(t.URL, b.base) {
			ids = append(ids, t.TargetID)
		}
	}
	return ids
}

// More windows than a browser has connections are live at once, because they share their streams: also after the window
// that was first has gone, after the agent has died, and after the worker with the streams has ended.
func TestManyTabs(t *testing.T) {
	a := start(t, loopback)
	one, two := newBackend(t), newBackend(t)
	for i := range 4 {
		a.put(fmt.Sprintf("default/web%d", i), 80+i, one.at, two.at)
	}
	first := open(t, a.base, "/ui/services")
	first.see("main", "4 services")
	tabs := []*tab{first}
	var closers []func()
	for i, path := range []string{"/ui/services/default/web0", "/ui/services/default/web1", "/ui/services/default/web2", "/ui/services/default/web3", "/ui/", "/ui/", "/ui/events"} {
		b, closeTab := first.another(path)
		tabs, closers = append(tabs, b), append(closers, closeTab)
		if i < 4 {
			b.see("h1", fmt.Sprintf("web%d", i), "healthy")
		}
	}
	for i, b := range tabs {
		if eval[bool](b, "document.hidden") {
			t.Fatalf("window %d is hidden", i)
		}
	}
	if n := len(first.workers()); n != 1 {
		t.Fatalf("%d workers", n)
	}
	live := func(state string) {
		t.Helper()
		number := map[string]string{"healthy": "4", "degraded": "4"}[state]
		for _, b := range tabs {
			switch path := eval[string](b, "location.pathname"); {
			case path == "/ui/events":
				b.see("main", "service_"+state)
			case path == "/ui/":
				b.see(".tiles", number+"\n"+state)
			case path == "/ui/services":
				b.see(".rows", state)
			default:
				b.see("h1", state)
			}
		}
	}
	two.stop()
	live("degraded")
	two.start()
	live("healthy")

	// The agent dies, and a new one is there: every window says so, and recovers.
	a.Kill()
	for _, b := range tabs {
		b.see(".lost", "not reachable")
	}
	a.begin()
	for _, b := range tabs {
		b.until("the message is gone", "document.querySelector('.lost').hidden")
	}
	two.stop()
	live("degraded")

	// The worker ends: the pages begin another one.
	worker := first.workers()[0]
	ctx, cancel := chromedp.NewContext(first.ctx, chromedp.WithTargetID(worker))
	if _, err := chromedp.Run(ctx, chromedp.Evaluate[any]("close()")); err != nil {
		t.Logf("end the worker: %v", err)
	}
	cancel()
	wait.Until(t, "another worker runs", func() bool { ids := first.workers(); return len(ids) == 1 && ids[0] != worker }, func() any { return first.workers() })
	two.start()
	live("healthy")

	// All but one are closed, the first one first: the last one is live.
	for _, closeTab := range closers[:len(closers)-1] {
		closeTab()
	}
	tabs = []*tab{first, tabs[len(tabs)-1]}
	two.stop()
	live("degraded")
	if err := chromedp.Cancel(first.ctx); err != nil {
		t.Error(err)
	}
}

// In a browser without shared workers, the page itself follows the agent, also a new process of it.
func TestWithoutWorkers(t *testing.T) {
	a := start(t, loopback)
	one, two := newBackend(t), newBackend(t)
	a.put("default/web", 80, one.at, two.at)
	b := open(t, a.base, "/ui/")
	var first []target.ID // the worker of this page may outlive it for a while
	wait.Until(t, "the first page has a worker", func() bool { first = b.workers(); return len(first) == 1 }, func() any { return first })
	b.before("delete globalThis.SharedWorker")
	b.show("/ui/services/default/web")
	b.see("h1", "healthy")
	if eval[bool](b, "'SharedWorker' in globalThis") {
		t.Fatal("the page has shared workers")
	}
	two.stop()
	b.see("h1", "degraded")
	a.Kill()
	b.see(".lost", "not reachable")
	b.see("#backends", two.at)
	a.begin()
	b.until("the message is gone", "document.querySelector('.lost').hidden")
	two.start()
	b.see("h1", "healthy")
	for _, w := range b.workers() {
		if w != first[0] {
			t.Errorf("worker %s runs", w)
		}
	}
}
