//go:build system

package browser

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/wait"
)

// inSight returns the text that the user sees without scrolling: every line of which both ends are in the window, and
// under nothing else.
func (b *tab) inSight() string {
	b.Helper()
	return eval[string](b, `(() => {
		const lines = [];
		const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
		while (walker.nextNode()) {
			const node = walker.currentNode;
			const range = document.createRange();
			range.selectNodeContents(node);
			const parent = node.parentElement;
			// The line of an inline element is higher than the element, and is that of its parent.
			const seen = (x, y) => { const e = document.elementFromPoint(x, y); return e && (parent.contains(e) || e === parent.parentElement && getComputedStyle(parent).display === 'inline'); };
			const rects = [...range.getClientRects()].filter((r) => r.width > 0);
			if (node.data.trim() && rects.length && rects.every((r) => seen(r.left + 1, r.top + r.height / 2) && seen(r.right - 1, r.top + r.height / 2))) lines.push(node.data.trim());
		}
		return lines.join(' ');
	})()`)
}

// sees waits until the user sees these texts without scrolling.
func (b *tab) sees(parts ...string) string {
	b.Helper()
	var text string
	wait.For(b, "the user sees it", func() error {
		text = b.inSight()
		for _, p := range parts {
			if !strings.Contains(text, p) {
				return fmt.Errorf("%q is not in sight: %s", p, text)
			}
		}
		return nil
	})
	return text
}

// follow clicks a link by its text, as a user does who sees it.
func (b *tab) follow(text string) {
	b.Helper()
	b.sees(text)
	if !eval[bool](b, fmt.Sprintf(`(() => { const a = [...document.querySelectorAll('a')].find((a) => a.innerText.trim() === %s); a?.click(); return Boolean(a) })()`, quote(text))) {
		b.Fatalf("no link %q", text)
	}
}

// since returns the time of day after "since" in a text, on the day of another time.
func since(t testing.TB, text string, day time.Time) time.Time {
	t.Helper()
	found := regexp.MustCompile(`since (\d\d:\d\d:\d\d)`).FindStringSubmatch(text)
	must.True(t, found != nil, "no time in %s", text)
	at := must.Get(time.ParseInLocation(time.DateTime, day.Format(time.DateOnly)+" "+found[1], time.Local))(t)
	return at
}

// One backend of 200 services is down. A user who has never seen the dashboard finds which one, since when, why, and
// what to do, with nothing but what the window shows: at once on the first page, and with one click from it or two from
// elsewhere on the page of the service.
func TestNewcomer(t *testing.T) {
	t.Parallel()
	a := start(t, loopback)
	one, two := newBackend(t), newBackend(t)
	var list []object
	for i := range 200 {
		s := spec(80, one.at)
		s["name"] = fmt.Sprintf("s%03d", i)
		if i == 137 {
			s["backends"] = append(s["backends"].([]object), spec(80, two.at)["backends"].([]object)...)
		}
		list = append(list, s)
	}
	a.call(http.MethodPost, "/v1/services:apply", object{"services": list})
	b := open(t, a.base, "/ui/")
	b.see("main", "200 of 200 healthy")
	began := time.Now().Truncate(time.Second)
	two.stop()
	b.see("#wrong", two.at)
	noticed := time.Now()
	check := func(text string) {
		t.Helper()
		if at := since(t, text, began); at.Before(began) || at.After(noticed) {
			t.Errorf("since %s, want a time from %s to %s", at, began, noticed)
		}
	}
	said := []string{"s137", two.at, "unhealthy", "connection refused", "start the server on the backend"}
	for _, size := range [][2]int64{{1200, 900}, {400, 800}} {
		b.resize(size[0], size[1])
		b.show("/ui/")
		check(b.sees(said...))
		b.follow("s137") // one click
		check(b.sees(said...))
		b.show("/ui/events")
		b.follow("1 degraded") // from everywhere, the header leads to the services that are wrong
		b.see("main", "1 of 200 services")
		b.follow("s137")
		check(b.sees(said...))
	}
	two.start()
	b.see("h1", "healthy")
	b.show("/ui/")
	b.see("#wrong", "nothing")
	b.quiet()
}
