//go:build system

package browser

import (
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/target"
	"github.com/chromedp/chromedp"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
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
		expect.Succeed(b, chromedp.Cancel(ctx))
	}
}

// workers returns the shared workers of the tab's agent.
func (b *tab) workers() (ids []target.ID) {
	b.Helper()
	all := must.Get(chromedp.Targets(b.ctx))(b)
	for _, t := range all {
		if t.Type == "shared_worker" && strings.HasPrefix(t.URL, b.base) {
			ids = append(ids, t.TargetID)
		}
	}
	return ids
}

// windows are more windows of one profile than a browser has connections, of an agent with four services.
type windows struct {
	testing.TB
	agent    *agent
	one, two *backend // of each service
	tabs     []*tab
	close    []func()
}

func openWindows(t testing.TB) *windows {
	t.Helper()
	w := &windows{TB: t, agent: start(t, loopback), one: newBackend(t), two: newBackend(t)}
	for i := range 4 {
		w.agent.put(fmt.Sprintf("default/web%d", i), 80+i, w.one.at, w.two.at)
	}
	first := open(t, w.agent.base, "/ui/services")
	first.see("main", "4 services")
	w.tabs = []*tab{first}
	for i, path := range []string{"/ui/services/default/web0", "/ui/services/default/web1", "/ui/services/default/web2", "/ui/services/default/web3", "/ui/", "/ui/", "/ui/events"} {
		b, closeTab := first.another(path)
		w.tabs, w.close = append(w.tabs, b), append(w.close, closeTab)
		if i < 4 {
			b.see("h1", fmt.Sprintf("web%d", i), "healthy")
		}
	}
	for i, b := range w.tabs {
		must.False(t, eval[bool](b, "document.hidden"), "window %d is hidden", i)
	}
	must.Equal(t, len(first.workers()), 1, "workers")
	return w
}

// live waits until all windows show that the services are in a state.
func (w *windows) live(state string) {
	w.Helper()
	for _, b := range w.tabs {
		switch path := eval[string](b, "location.pathname"); path {
		case "/ui/events":
			b.see("main", "service_"+state)
		case "/ui/":
			b.see(".tiles", "4\n"+state)
		case "/ui/services":
			b.see(".rows", state)
		default:
			b.see("h1", state)
		}
	}
}

// More windows than a browser has connections are live at once, because they share their streams: also after the window
// that was first has gone.
// Slow: eight windows in a browser.
func TestManyTabs(t *testing.T) {
	w := openWindows(t)
	w.two.stop()
	w.live("degraded")
	w.two.start()
	w.live("healthy")

	// All but one are closed, the first one first: the last one is live.
	first, last := w.tabs[0], len(w.close)-1
	for _, closeTab := range w.close[:last] {
		closeTab()
	}
	w.tabs = []*tab{first, w.tabs[last+1]}
	w.two.stop()
	w.live("degraded")
	expect.Succeed(t, chromedp.Cancel(first.ctx))
}

// In a browser without shared workers, the page itself follows the agent, also a new process of it.
func TestWithoutWorkers(t *testing.T) {
	t.Parallel()
	a := start(t, loopback)
	one, two := newBackend(t), newBackend(t)
	a.put("default/web", 80, one.at, two.at)
	b := open(t, a.base, "/ui/")
	var first []target.ID // the worker of this page may outlive it for a while
	wait.Until(t, "the first page has a worker", func() bool { first = b.workers(); return len(first) == 1 }, func() any { return first })
	b.before("delete globalThis.SharedWorker")
	b.show("/ui/services/default/web")
	b.see("h1", "healthy")
	must.False(t, eval[bool](b, "'SharedWorker' in globalThis"), "the page has shared workers")
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
		expect.Equal(t, w, first[0], "worker %s runs", w)
	}
}
