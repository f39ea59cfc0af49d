//go:build system

package browser

import (
	"bytes"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/ironvip/ironvip/test/exclusive"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/process"
	"github.com/ironvip/ironvip/test/wait"
)

// references is the folder of the screenshots in the documentation. With IRONVIP_SCREENSHOTS=update, the
// test writes them anew: look at them before a commit.
const references = "../../docs/images"

// tolerance is the part of the pixels with something on them that may differ from the reference: ports, rates and the
// host's name are others in each run. An empty page differs in all of them.
const tolerance = 0.4

// demo starts the demo, and adds a service with a backend that is down.
func demo(t *testing.T) *agent {
	t.Helper()
	exclusive.Use(t, exclusive.Demo)
	dir := t.TempDir()
	a := &agent{TB: t, dir: dir, Process: process.New(need.Binary(t), filepath.Join(dir, "log"), nil, "agent", "--demo")}
	must.Succeed(t, a.Start())
	t.Cleanup(func() { _ = a.Stop() })
	wait.For(t, "the demo prints the address of its dashboard", func() error {
		found := regexp.MustCompile(`(http://\S+)/ui/`).FindStringSubmatch(a.LogEnd(1 << 16))
		if found == nil {
			return fmt.Errorf("no address in %s", a.LogEnd(1<<16))
		}
		a.base = found[1]
		return nil
	})
	go visit(t, regexp.MustCompile(`curl -s (http://\S+/)`).FindStringSubmatch(a.LogEnd(1 << 16))[1])
	one := newBackend(t)
	s := spec(443, one.at, "127.0.0.1:9")
	s["labels"] = object{"team": "shop"}
	a.call(http.MethodPut, "/v1/services/shop/checkout", s)
	return a
}

// visit sends requests until the end of the test.
func visit(t *testing.T, url string) {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for t.Context().Err() == nil {
		if response, err := client.Get(url); err == nil {
			response.Body.Close()
		}
		select {
		case <-t.Context().Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// The pages of the demo look as in the documentation.
func TestScreenshots(t *testing.T) {
	a := demo(t)
	b := open(t, a.base, "/ui/")
	pages := []struct {
		name, path string
		see        []string
	}{
		{"overview", "/ui/", []string{"unhealthy", "Busiest services", "3 of 256 used"}},
		{"services", "/ui/services", []string{"3 services", "shop/checkout"}},
		{"service", "/ui/services/shop/checkout", []string{"unhealthy", "shop/checkout is degraded", "443/tcp", "lease_given"}},
		{"addresses", "/ui/addresses", []string{"3 of 256 used", "shop/checkout"}},
		{"dataplane", "/ui/dataplane", []string{"in sync"}},
		{"events", "/ui/events", []string{"lease_given", "backend_unhealthy"}},
		{"plan", "/ui/plan", []string{"the files are in effect"}},
	}
	for _, p := range pages {
		b.show(p.path)
		b.see("main", p.see...)
		b.see("header", "degraded")
		b.shoot(p.name)
	}
	b.quiet()
}

// alike makes the host's name and all ages of the page the same in every run, also those that it draws later.
const alike = `document.activeElement.blur();
(() => {
	const put = (selector, text) => document.querySelectorAll(selector).forEach((e) => { if (e.textContent !== text) e.textContent = text; });
	const set = () => { put('time', '3m 20s'); put('.brand .node', 'lb1'); };
	new MutationObserver(set).observe(document, { subtree: true, childList: true, characterData: true });
	set();
})()`

// shoot compares the page with its references, in both themes.
func (b *tab) shoot(name string) {
	b.Helper()
	for _, theme := range []string{"light", "dark"} {
		b.theme(theme)
		eval[any](b, alike)
		b.compare(name + "-" + theme + ".png")
	}
}

// compare waits until the page looks as its reference does, or replaces the reference.
func (b *tab) compare(name string) {
	b.Helper()
	take := func() []byte { return must.Get(chromedp.Run(b.ctx, chromedp.CaptureScreenshot()))(b) }
	path := filepath.Join(references, "dashboard-"+name)
	if os.Getenv("IRONVIP_SCREENSHOTS") == "update" {
		must.Succeed(b, os.WriteFile(path, take(), 0o644))
		return
	}
	want := decode(b, must.Get(os.ReadFile(path))(b))
	share, shot := 0.0, []byte(nil)
	wait.Until(b, name+" looks as the reference", func() bool {
		shot = take()
		got := decode(b, shot)
		must.Equal(b, got.Bounds(), want.Bounds(), "%s: size", name)
		share = difference(got, want)
		return share <= tolerance
	}, func() any {
		kept := filepath.Join(b.ArtifactDir(), name)
		_ = os.WriteFile(kept, shot, 0o644)
		return fmt.Sprintf("%.0f%% of what is on the page differs; the screenshot is %s", share*100, kept)
	})
	b.Logf("%s: %.0f%%", name, share*100)
}

func decode(t testing.TB, data []byte) image.Image {
	t.Helper()
	i := must.Get(png.Decode(bytes.NewReader(data)))(t)
	return i
}

// difference returns the part of the pixels that differ, of those that are not background in one of the images.
func difference(a, b image.Image) float64 {
	bounds := a.Bounds()
	background := b.At(bounds.Min.X+1, bounds.Max.Y-1)
	drawn, differ := 0, 0
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			p, q := a.At(x, y), b.At(x, y)
			if distinct(p, background) || distinct(q, background) {
				drawn++
			}
			if distinct(p, q) {
				differ++
			}
		}
	}
	return float64(differ) / float64(max(1, drawn))
}

// distinct reports whether an eye tells two colors apart.
func distinct(p, q color.Color) bool {
	r, g, b, _ := p.RGBA()
	r2, g2, b2, _ := q.RGBA()
	far := func(x, y uint32) bool { return max(x, y)-min(x, y) > 0x2000 }
	return far(r, r2) || far(g, g2) || far(b, b2)
}
