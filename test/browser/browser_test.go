//go:build system

package browser

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/wait"
)

// chromium is the browser of all tests. Its tabs share no cookies.
var chromium = sync.OnceValues(func() (context.Context, error) {
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.NoSandbox, chromedp.DisableGPU, chromedp.Flag("hide-scrollbars", true))
	allocator, _ := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, _ := chromedp.NewContext(allocator)
	return ctx, chromedp.Do(ctx)
})

func TestMain(m *testing.M) {
	code := m.Run()
	if ctx, err := chromium(); err == nil {
		_ = chromedp.Cancel(ctx)
	}
	os.Exit(code)
}

// tab is one open page. It fails the test if the page reports an error that the test does not expect.
type tab struct {
	testing.TB
	ctx  context.Context
	base string // of the agent: "http://127.0.0.1:7480"

	html string // the folder of the pages that html-validate checks at the end of the test

	mu       sync.Mutex
	reported []string
}

// open opens a tab of its own profile at a path of the dashboard.
func open(t testing.TB, base, path string) *tab {
	t.Helper()
	need.Daemon(t, "chromium")
	parent := must.Get(chromium())(t)
	ctx, cancel := chromedp.NewContext(parent, chromedp.WithNewBrowserContext())
	b := &tab{TB: t, ctx: ctx, base: base, html: t.TempDir()}
	if err := chromedp.Do(ctx, chromedp.EmulateViewport(1200, 900)); err != nil {
		cancel()
		t.Fatal(err)
	}
	messages := chromedp.Console(ctx)
	var reading sync.WaitGroup
	reading.Go(func() {
		for m, err := range messages {
			if err != nil {
				return
			}
			b.mu.Lock()
			b.reported = append(b.reported, m.String())
			b.mu.Unlock()
		}
	})
	t.Cleanup(func() {
		b.validate()
		if t.Failed() {
			t.Logf("the page: %s\nits console: %q", b.text("body"), b.console())
		}
		cancel()
		reading.Wait()
	})
	b.show(path)
	return b
}

// show opens another page of the dashboard, as after typing its address.
func (b *tab) show(path string) {
	b.Helper()
	must.Succeed(b, chromedp.Do(b.ctx, chromedp.Navigate(b.base+path)))
}

// console returns what the page has written to its console, such as errors and violations of the policy.
func (b *tab) console() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]string(nil), b.reported...)
}

// theme makes the browser prefer light or dark pages.
func (b *tab) theme(name string) {
	b.Helper()
	features := []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}}
	must.Get(chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: features}))(b)
}

// eval returns the value of a JavaScript expression, or of its promise.
func eval[T any](b *tab, expression string) T {
	b.Helper()
	value, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	must.Succeed(b, err, "%.300s", expression)
	return value
}

// peek is eval of an expression that changes nothing. The browser ends an evaluation when another document takes
// the place of the page: peek asks the new document.
func peek[T any](b *tab, expression string) (value T) {
	b.Helper()
	wait.For(b, "the page answers", func() (err error) {
		value, err = chromedp.Run(b.ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
		if _, refused := errors.AsType[*cdproto.Error](err); err != nil && !refused {
			b.Fatalf("%.300s: %v", expression, err)
		}
		return err
	})
	return value
}

// text returns the text of the first element of a CSS selector, as the user sees it; "" without one.
func (b *tab) text(selector string) string {
	b.Helper()
	return peek[string](b, fmt.Sprintf("document.querySelector(%s)?.innerText ?? ''", quote(selector)))
}

// see waits until the text of an element contains every one of these.
func (b *tab) see(selector string, parts ...string) {
	b.Helper()
	wait.For(b, "the page shows it", func() error {
		text := b.text(selector)
		for _, p := range parts {
			if !strings.Contains(text, p) {
				return fmt.Errorf("%s does not show %q: %.2000s", selector, p, text)
			}
		}
		return nil
	})
}

// until waits until a JavaScript expression is true.
func (b *tab) until(what, expression string) {
	b.Helper()
	wait.Until(b, what, func() bool { return peek[bool](b, "Boolean("+expression+")") })
}

// click clicks what a CSS selector finds, once it is there. A page that is live moves its elements, also between
// the moment when the browser says where an element is and the click: a click that would meet something else has
// no effect, and is done again.
func (b *tab) click(selector string) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, wait.Timeout)
	defer cancel()
	for {
		eval[any](b, fmt.Sprintf(aim, quote(selector)))
		must.Succeed(b, chromedp.Do(ctx, chromedp.Click(chromedp.CSS(selector))), "click %s", selector)
		// The click may have led to another document, which has missed nothing.
		if missed := peek[string](b, "(window.aim?.abort(), window.missed ?? '')"); missed == "" {
			return
		} else if ctx.Err() != nil {
			b.Fatalf("click %s: it meets %s", selector, missed)
		} else {
			b.Logf("click %s: once more: it met %s", selector, missed)
		}
	}
}

// aim is a script that stops each event of the mouse that doesn't meet an element, and then has what it meets in
// window.missed.
const aim = `(() => {
  window.missed = '';
  window.aim = new AbortController();
  for (const type of ['pointerdown', 'mousedown', 'pointerup', 'mouseup', 'click']) {
    addEventListener(type, (e) => {
      if (!window.missed && document.querySelector(%s)?.contains(e.target)) return;
      window.missed ||= type + ' ' + (e.target.outerHTML ?? e.target.nodeName).slice(0, 200);
      e.preventDefault();
      e.stopImmediatePropagation();
    }, { capture: true, signal: window.aim.signal });
  }
})()`

// enter types into an input.
func (b *tab) enter(selector, text string) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, wait.Timeout)
	defer cancel()
	must.Succeed(b, chromedp.Do(ctx, chromedp.SendKeys(chromedp.CSS(selector), text)), "type into %s", selector)
}

// resize sets the size of the window, in CSS pixels.
func (b *tab) resize(width, height int64) {
	b.Helper()
	must.Succeed(b, chromedp.Do(b.ctx, chromedp.EmulateViewport(width, height)))
}

// scripts allows or forbids scripts on the pages that are opened from now on.
func (b *tab) scripts(allowed bool) {
	b.Helper()
	if _, err := chromedp.Call(b.ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: !allowed}); err != nil {
		b.Fatal(err)
	}
}

// before runs a script before those of each page that is opened from now on.
func (b *tab) before(script string) {
	b.Helper()
	if _, err := chromedp.Call(b.ctx, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: script}); err != nil {
		b.Fatal(err)
	}
}

// quiet fails the test if the page has reported anything but what contains one of these.
func (b *tab) quiet(except ...string) {
	b.Helper()
	for _, line := range b.console() {
		if !slices.ContainsFunc(except, func(x string) bool { return strings.Contains(line, x) }) {
			b.Errorf("the page reports: %s", line)
		}
	}
}

func quote(s string) string {
	q, _ := json.Marshal(s) // a string
	return string(q)
}

// script returns the text of a file of an npm package that setup.sh has installed.
func script(t testing.TB, path string) string {
	t.Helper()
	text, err := os.ReadFile("../../.cache/browser/node_modules/" + path)
	must.Succeed(t, err, "run test/browser/setup.sh")
	return string(text)
}

// wcag are the tags of all rules of axe-core that the pages fulfill.
var wcag = []string{"wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"}

// accessible fails the test for each violation that axe-core finds on the page: of all rules, or of these.
func (b *tab) accessible(rules ...string) {
	b.Helper()
	if rules == nil {
		rules = wcag
	}
	names, _ := json.Marshal(rules) // strings
	eval[any](b, script(b, "axe-core/axe.min.js")+";undefined")
	found := eval[[]struct {
		ID, Help string
		Nodes    []struct{ HTML, FailureSummary string }
	}](b, `axe.run(document, {runOnly: `+string(names)+`}).then(r => r.violations.map(v => ({ID: v.id, Help: v.help, Nodes: v.nodes.map(n => ({HTML: n.html, FailureSummary: n.failureSummary}))})))`)
	for _, v := range found {
		for _, n := range v.Nodes {
			b.Errorf("%s: %s: %s: %s", eval[string](b, "location.pathname"), v.ID, n.HTML, n.FailureSummary)
		}
	}
}

// valid lets html-validate check the page as it is now, at the end of the test: its start takes longer than a check.
func (b *tab) valid() {
	b.Helper()
	name := strings.ReplaceAll(strings.Trim(eval[string](b, "location.pathname"), "/"), "/", "-")
	if err := os.WriteFile(filepath.Join(b.html, name+".html"), []byte("<!DOCTYPE html>\n"+eval[string](b, "document.documentElement.outerHTML")), 0o600); err != nil {
		b.Fatal(err)
	}
}

// validate fails the test if html-validate finds an error in a page.
func (b *tab) validate() {
	pages, _ := filepath.Glob(filepath.Join(b.html, "*.html"))
	if len(pages) == 0 {
		return
	}
	cmd := exec.Command("../../.cache/browser/node_modules/.bin/html-validate", append([]string{"--config", "htmlvalidate.json"}, pages...)...)
	out, err := cmd.CombinedOutput()
	expect.Succeed(b, err, "%s", out)
}
