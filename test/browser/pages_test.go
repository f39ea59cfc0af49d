//go:build system

package browser

import (
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/wait"
)

// vipOf returns the VIP and port of a service, once it has one.
func (a *agent) vipOf(name string) string {
	a.Helper()
	s := read[v1.Service](a, "/v1/services/"+name)
	must.True(a, len(s.Status.VIPs) > 0, "%s has no VIP: %s", name, s.Status.Summary)
	return fmt.Sprintf("%s:%d", s.Status.VIPs[0], s.Status.Ports[0].Port)
}

// Every page shows what the API says, in both themes, without a violation of accessibility, an error of
// its HTML, or a message on the console.
// Slow: 33 pages in a browser.
func TestPages(t *testing.T) {
	t.Parallel()
	a := start(t, loopback)
	one, two := newBackend(t), newBackend(t)
	a.put("default/web", 80, one.at, two.at)
	a.put("shop/mail", 25, one.at, two.at)
	dial(t, a.vipOf("default/web"))
	a.call(http.MethodPost, "/v1/vips", object{"address": a.pool + ".77", "for": "shop/cart"})
	two.stop()

	b := open(t, a.base, "/ui/")
	pages := []struct {
		path string
		see  map[string][]string
	}{
		{"/ui/", map[string][]string{"#wrong": {"degraded", "web", "shop/mail", two.at, "unhealthy", "connection refused"}, "main": {"Busiest services", "lb1", "proxy, in sync"}}},
		{"/ui/services", map[string][]string{"main": {"2 services", "web", "shop/mail", "80/tcp", "1/2", "rest"}}},
		{"/ui/services/default/web", map[string][]string{"h1": {"web", "degraded"}, "#backends": {one.at, two.at, "healthy", "unhealthy", "connection refused"}, "#why": {"web is degraded"}, "#frontends": {"80/tcp", "yes"}, "#events": {"lease_given"}}},
		{"/ui/services/shop/mail", map[string][]string{"h1": {"shop/mail", "degraded"}}},
		{"/ui/services/default/nothing", map[string][]string{"main": {"does not exist"}}},
		{"/ui/addresses", map[string][]string{"main": {"main", a.pool + ".0/24", a.pool + ".77", "reserved", "for shop/cart", "shop/mail", "2 of 256 used"}}},
		{"/ui/fleet", map[string][]string{"main": {"lb1", "present", "answers", "no pool is announced"}}},
		{"/ui/dataplane", map[string][]string{"main": {"proxy", "in sync: 2 services"}}},
		{"/ui/events", map[string][]string{"main": {"service_degraded", "backend_unhealthy"}}},
		{"/ui/plan", map[string][]string{"main": {"the files are in effect"}}},
		{"/ui/no/such/page", map[string][]string{"main": {"Not found"}}},
	}
	for _, theme := range []string{"light", "dark"} {
		b.theme(theme)
		for _, p := range pages {
			b.show(p.path)
			for where, parts := range p.see {
				b.see(where, parts...)
			}
			if theme == "dark" { // nothing else than its colors is different
				b.accessible("color-contrast")
				continue
			}
			b.accessible()
			b.valid()
			if width := eval[int](b, "document.documentElement.scrollWidth"); width > 1200 {
				t.Errorf("%s is %d pixels wide", p.path, width)
			}
		}
	}
	b.resize(400, 800)
	for _, p := range pages {
		b.show(p.path)
		for where, parts := range p.see {
			if where != "main" { // columns of the long tables are hidden
				b.see(where, parts...)
			}
		}
		if width := eval[int](b, "document.documentElement.scrollWidth"); width > 400 {
			t.Errorf("%s is %d pixels wide in a window of 400", p.path, width)
		}
		for what, all := range map[string]string{
			"the link to the page is visible":              `'nav [aria-current]', (a) => a.getBoundingClientRect().left >= 0 && a.getBoundingClientRect().right <= 400`,
			"a label is on the line of what it belongs to": `'.filters label', (l) => l.getBoundingClientRect().right <= document.getElementById(l.htmlFor).getBoundingClientRect().left`,
		} {
			if !eval[bool](b, "((of, is) => [...document.querySelectorAll(of)].every(is))("+all+")") {
				t.Errorf("%s in a window of 400: not true that %s", p.path, what)
			}
		}
	}
	b.quiet()
}

// A change is on the page without a reload: a new service, a backend that fails, a service that ends.
func TestLive(t *testing.T) {
	t.Parallel()
	a := start(t, loopback)
	one, two := newBackend(t), newBackend(t)
	b := open(t, a.base, "/ui/services")
	b.see("main", "0 services")
	a.put("default/web", 80, one.at, two.at)
	b.see("main", "1 service", "web", "2/2")
	two.stop()
	b.see("main", "degraded", "1/2")
	b.see(".tally", "1 degraded")
	b.click(".row a")
	b.see("#backends", two.at, "unhealthy", "connection refused")
	two.start()
	b.see("h1", "healthy")
	a.call(http.MethodDelete, "/v1/services/default/web", nil)
	b.see("h1", "does not exist")
	a.put("default/web", 80, one.at)
	b.see("h1", "healthy")
	b.see("#backends", one.at)
	b.quiet("404 (Not Found)") // of a service that has ended
}

// Every page shows a change without a reload. A page that asks for its state asks once, or again if it had just asked.
// Slow: five pages wait for their next question.
func TestEveryPageIsLive(t *testing.T) {
	t.Parallel()
	a := start(t, loopback)
	one, two := newBackend(t), newBackend(t)
	a.put("default/web", 80, one.at, two.at)
	b := open(t, a.base, "/ui/")
	for _, c := range []struct {
		path, where, before string
		change              func()
		after               string
	}{
		{"/ui/", "#overrides", "none", func() {
			a.call(http.MethodPut, "/v1/services/default/web/backends/"+one.at+"/state", object{"state": "drain"})
		}, one.at},
		{"/ui/addresses", "main", "1 of 256 used", func() { a.call(http.MethodPost, "/v1/vips", object{"address": a.pool + ".77", "for": "shop/cart"}) }, a.pool + ".77"},
		{"/ui/dataplane", "main", "in sync: 1 service", func() { a.put("default/more", 80, two.at) }, "in sync: 2 services"},
		{"/ui/fleet", "main", "present", func() { a.call(http.MethodPut, "/v1/nodes/lb1/drain", nil) }, "draining"},
		{"/ui/services/default/web", "#events", "lease_given", func() {
			a.call(http.MethodPut, "/v1/services/default/web/backends/"+two.at+"/state?force=true", object{"state": "drain"})
		}, "backend_state"},
		{"/ui/events", "main", "backend_state", func() { a.call(http.MethodPost, "/v1/vips", object{"address": a.pool + ".78", "for": "shop/basket"}) }, "shop/basket"},
	} {
		b.show(c.path)
		b.see(c.where, c.before)
		c.change()
		began := time.Now()
		wait.Until(t, c.path+" shows the change", func() bool { return strings.Contains(b.text(c.where), c.after) })
		t.Logf("%s: after %s", c.path, time.Since(began).Round(time.Millisecond))
	}
	b.quiet()
}

// The button drains a backend in the dataplane. The question names the open connections. The last
// backend needs a second confirmation, and a button ends the drain.
func TestDrainByButton(t *testing.T) {
	t.Parallel()
	a := start(t, loopback)
	one, two := newBackend(t), newBackend(t)
	a.put("default/web", 80, one.at, two.at)
	vip := a.vipOf("default/web")
	connections := map[string]int{}
	for range 6 {
		dial(t, vip)
	}
	for _, at := range []string{one.at, two.at} {
		connections[at] = int(read[v1.BackendConnections](a, "/v1/services/default/web/backends/"+at+"/connections").Connections)
	}
	if connections[one.at] == 0 || connections[one.at]+connections[two.at] != 6 {
		t.Fatalf("connections: %v", connections)
	}
	b := open(t, a.base, "/ui/services/default/web")
	b.click(`button[aria-label="Drain ` + one.at + `"]`)
	b.see("dialog", "Drain: "+one.at+" of web", "the other backends, of which 1 is usable", fmt.Sprintf("%d connection", connections[one.at]), "may stay until they end")
	b.accessible()
	b.click("dialog .danger")
	b.see("[role=status].note", "is set to drain")
	weight := func() (of map[string]uint32) {
		of = map[string]uint32{}
		for _, f := range read[v1.FrontendList](a, "/v1/dataplane/frontends?service=web").Items {
			for _, e := range f.Backends {
				of[e.Address] = e.Weight
			}
		}
		return of
	}
	wait.Until(t, "the dataplane drains the backend", func() bool { w := weight(); return w[one.at] == 0 && w[two.at] > 0 }, func() any { return weight() })
	b.see("#backends", "drain", "Ready")
	for range 4 {
		dial(t, vip)
	}
	if n := read[v1.BackendConnections](a, "/v1/services/default/web/backends/"+one.at+"/connections").Connections; int(n) != connections[one.at] {
		t.Errorf("%d connections of the backend that drains, want the %d from before", n, connections[one.at])
	}

	b.click(`button[aria-label="Maintenance ` + two.at + `"]`)
	b.see("dialog", "the last usable backend", "may stay until they end")
	b.click("dialog .danger") // refused by the form: the box isn't checked
	b.until("the question is still there", `document.querySelector('dialog[open]')`)
	b.click("dialog [type=button]")
	b.until("the question is gone", `!document.querySelector('dialog')`)

	b.click(`button[aria-label="Ready ` + one.at + `"]`)
	b.click("dialog .primary")
	wait.Until(t, "the backend takes new connections", func() bool { return weight()[one.at] > 0 })
	b.see("h1", "healthy")

	// The last usable backend needs the box.
	a.call(http.MethodPut, "/v1/services/default/web/backends/"+two.at+"/state?force=true", object{"state": "drain"})
	b.until("the page shows both changes", fmt.Sprintf("document.querySelector('button[aria-label=\"Ready %s\"]') && !document.querySelector('button[aria-label=\"Ready %s\"]')", two.at, one.at))
	b.click(`button[aria-label="Drain ` + one.at + `"]`)
	b.click("dialog input[name=force]")
	b.click("dialog .danger")
	b.see("h1", "down")
	b.quiet()
}

// The user's input on a page outlasts its changes: the focus, the selected text, the text of the filter and the
// position of a list. The back button leads to the same filter and order.
func TestPageKeepsItsPlace(t *testing.T) {
	t.Parallel()
	a := start(t, loopback)
	one, two := newBackend(t), newBackend(t)
	a.put("default/web", 80, one.at, two.at)
	b := open(t, a.base, "/ui/services/default/web")
	b.see("#backends", one.at, "Drain")
	focused := "document.activeElement.getAttribute('aria-label')"
	eval[any](b, `document.querySelector('button[aria-label="Maintenance `+two.at+`"]').focus(); getSelection().selectAllChildren(document.querySelector('#about .summary'))`)
	selected := eval[string](b, "String(getSelection())")
	two.stop()
	b.see("h1", "degraded")
	a.call(http.MethodPut, "/v1/services/default/web/backends/127.0.0.1:9", object{}) // a new row before or after
	b.see("#backends", "127.0.0.1:9")
	expect.Equal(t, eval[string](b, focused), "Maintenance "+two.at, "the focus is at")
	if selected == "" || eval[bool](b, "getSelection().isCollapsed") {
		t.Errorf("the selection %q is lost", selected)
	}

	for i := range 60 {
		a.put(fmt.Sprintf("default/n%d", i), 80+i, one.at)
	}
	b.show("/ui/services")
	b.see("main", "61 services")
	b.click("[role=columnheader] button")
	b.enter("#filter", "n")
	b.see("main", "60 of 61 services")
	eval[any](b, "document.querySelector('.list').scrollTop = 36 * 20")
	b.see(".rows", "n25")
	a.put("default/n99", 99, one.at)
	b.see("main", "61 of 62 services")
	b.see(".rows", "n25")
	b.until("the position is kept for later", "history.state?.top === 720")
	b.click(`a[href="/ui/services/default/n25"]`)
	b.see("h1", "n25")
	eval[any](b, "history.back()")
	b.see("main", "61 of 62 services")
	b.see(".rows", "n25")
	top := eval[int](b, "document.querySelector('.list').scrollTop")
	expect.Equal(t, top, 720, "the list is at %d, want 720", top)
	b.quiet()
}

// The agent dies and starts again under an open page. The page says so, keeps what it shows, and then
// shows the new state.
func TestAgentRestarts(t *testing.T) {
	t.Parallel()
	a := start(t, loopback)
	one := newBackend(t)
	a.put("default/web", 80, one.at)
	a.put("default/gone", 81, one.at)
	b := open(t, a.base, "/ui/services")
	b.see("main", "2 services")
	a.Kill()
	b.see(".lost", "not reachable")
	b.see("main", "2 services", "web")
	a.begin()
	b.until("the message is gone", "document.querySelector('.lost').hidden")
	a.call(http.MethodDelete, "/v1/services/default/gone", nil)
	a.put("default/new", 82, one.at)
	b.until("the page follows the new process", `document.querySelector('main').innerText.includes('new') && !document.querySelector('main').innerText.includes('gone')`)

	b.show("/ui/")
	b.see("main", "Busiest services")
	a.Kill()
	b.see(".lost", "not reachable")
	a.begin()
	b.until("the message is gone", "document.querySelector('.lost').hidden")
}

// A name that users give is text on every page, never HTML.
func TestHostileNames(t *testing.T) {
	t.Parallel()
	a := start(t, loopback)
	one := newBackend(t)
	const evil = `<img/src=x/onerror="window.hit=1"><svg/onload=window.hit=1>` // names have no spaces
	s := spec(80, one.at, "127.0.0.1:9")
	s["labels"] = object{"owner": evil}
	for _, b := range s["backends"].([]object) {
		b["node"], b["zone"] = evil, `javascript:window.hit=1//'"`
	}
	a.call(http.MethodPut, "/v1/services/default/web", s)
	b := open(t, a.base, "/ui/services/default/web")
	b.see("#backends", "127.0.0.1:9", "unhealthy", "<img/src=x", "javascript:window.hit")
	b.see("#about", "owner=<img")
	inert := func(path string) {
		t.Helper()
		b.show(path)
		b.until("the page is there", "document.querySelector('h1')")
		b.enter("search input", "<img")
		b.until("the search has an answer", "!document.querySelector('#found').hidden")
		if eval[bool](b, "Boolean(window.hit || document.querySelector('img, main script, main iframe, main object'))") {
			t.Errorf("%s: a name has become HTML", path)
		}
	}
	for _, path := range []string{"/ui/", "/ui/services", "/ui/services/default/web", "/ui/events", "/ui/addresses", "/ui/fleet", "/ui/services?filter=%3Cimg%20src%3Dx%20onerror%3Dwindow.hit%3D1%3E"} {
		inert(path)
	}
	b.quiet()
	inert("/ui/services/%3Cimg%20src%3Dx%20onerror%3Dwindow.hit%3D1%3E/%22%3E%3Cscript%3E") // the agent refuses to follow it
	b.see("header", "is not a DNS label")
}

// The search finds services, VIPs and backends by any part, and the keyboard is enough.
func TestSearch(t *testing.T) {
	t.Parallel()
	a := start(t, loopback)
	one := newBackend(t)
	a.put("shop/basket", 80, one.at)
	b := open(t, a.base, "/ui/")
	b.see("main", "Services")
	for _, q := range []string{"aske", a.pool + ".", one.at} {
		b.enter("search input", q)
		b.see("#found", "basket")
		b.enter("search input", "\r")
		b.see("h1", "shop/basket")
		b.show("/ui/")
	}
	b.enter("search input", "no such thing")
	b.see("#found", "nothing found")
	b.quiet()
}

// A page without JavaScript says what to use instead.
func TestWithoutScripts(t *testing.T) {
	t.Parallel()
	a := start(t, loopback)
	b := open(t, a.base, "/ui/")
	b.scripts(false)
	b.show("/ui/services")
	b.see("main", "needs JavaScript", "ironvip status", "/v1/status")
}

// A page of a service also reads the service every ten seconds. It does not show an answer that is older than what
// the stream has told since.
func TestLateAnswer(t *testing.T) {
	t.Parallel()
	a := start(t, loopback)
	one, two := newBackend(t), newBackend(t)
	a.put("default/web", 80, one.at, two.at)
	agent := must.Get(url.Parse(a.base))(t)
	// The proxy asks the agent at once, and waits with the answer until the test takes it, and for a step of the test.
	forward := &httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(agent)
		r.Out.Host = r.In.Host // the page's origin, or the agent refuses the request
	}}
	held, step := make(chan *http.Request), make(chan struct{})
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/services/default/web" {
			forward.ServeHTTP(w, r)
			return
		}
		answer := httptest.NewRecorder()
		forward.ServeHTTP(answer, r)
		select {
		case held <- r:
			<-step
		case <-t.Context().Done():
		}
		maps.Copy(w.Header(), answer.Header())
		w.WriteHeader(answer.Code)
		_, _ = w.Write(answer.Body.Bytes())
	}))
	t.Cleanup(proxy.CloseClientConnections) // streams don't end by themselves

	b := open(t, proxy.URL, "/ui/")
	b.before("const real = setTimeout; globalThis.setTimeout = (f, ms, ...of) => real(f, Math.min(ms, 100), ...of)") // ten seconds
	b.show("/ui/services/default/web")
	b.see("h1", "healthy")
	r := <-held
	two.stop()
	b.see("h1", "degraded")
	must.Succeed(t, r.Context().Err(), "the page has not waited for the answer")
	step <- struct{}{} // an answer from before
	<-held             // the page asks again, so it has dealt with that one
	h1 := b.text("h1")
	expect.Contains(t, h1, "degraded", "the page shows %q after an answer from before the change", h1)
	step <- struct{}{}
	b.quiet()
}
