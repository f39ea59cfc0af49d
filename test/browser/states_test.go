//go:build system

package browser

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"testing"

	"github.com/chromedp/chromedp"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/freeport"
	"github.com/ironvip/ironvip/test/must"
)

// The map of a pool shows what each address is, and its legend has a different shape for each kind, also
// without colors. Of a range that another network uses, which only a cluster reports, the page learns from a changed
// response.
func TestPoolMap(t *testing.T) {
	t.Parallel()
	a := start(t, loopback+"\n[[pool]]\nname = \"home\"\ncidrs = [\"127.0.0.0/28\"]\nexclude = [\"127.0.0.12/31\"]\nauto_assign = false")
	const overlap = `{ prefix: '127.0.0.8/30', reason: 'overlap', message: 'in range 127.0.0.8/30, which source kubernetes says is in use' }`
	port := int(freeport.Reserve(t, nil, netip.MustParseAddr("127.0.0.1"))[1])
	want := map[string]string{"127.0.0.0": "own", "127.0.0.1": "own"} // the network address of the subnet, and the host's
	for _, i := range []int{8, 9, 10, 11} {
		want[fmt.Sprintf("127.0.0.%d", i)] = "overlap"
	}
	for _, i := range []int{12, 13} {
		want[fmt.Sprintf("127.0.0.%d", i)] = "excluded"
	}
	for name, kind := range map[string]string{"stays": "used", "goes": "cooling"} {
		s := spec(port, "127.1.1.1:9") // in no pool
		s["pool"] = "home"
		a.call(http.MethodPut, "/v1/services/default/"+name, s)
		want[read[v1.Service](a, "/v1/services/default/"+name).Status.VIPs[0].String()] = kind
	}
	a.call(http.MethodDelete, "/v1/services/default/goes", nil)
	a.call(http.MethodPost, "/v1/vips", object{"address": "127.0.0.7", "for": "shop/cart"})
	want["127.0.0.7"] = "reserved"

	b := open(t, a.base, "/ui/")
	b.before(`const real = fetch; globalThis.fetch = async (...of) => {
		const response = await real(...of);
		if (!String(of[0]).startsWith('/v1/pools')) return response;
		const list = await response.json();
		list.items.find((p) => p.name === 'home').held_out_ranges.push(` + overlap + `);
		return Response.json(list);
	}`)
	b.show("/ui/addresses")
	b.see("main", "home", "excluded: 127.0.0.12/31", "held out")
	kinds := eval[[]string](b, `[...document.querySelectorAll('.pool')].find((p) => p.innerText.startsWith('home')).querySelector('.map').querySelectorAll('rect').values().map((r) => r.classList[1]).toArray()`)
	must.Equal(t, len(kinds), 16, "the map of 16 addresses has %d cells", len(kinds))
	for i, kind := range kinds {
		address := fmt.Sprintf("127.0.0.%d", i)
		if w := want[address]; kind != w && (w != "" || kind != "free") {
			t.Errorf("%s is %q on the map, want %q", address, kind, w)
		}
	}
	legend := eval[[]string](b, `[...document.querySelectorAll('.pool')].find((p) => p.innerText.startsWith('home')).querySelectorAll('.legend li').values().map((l) => l.innerText.trim()).toArray()`)
	words := []string{"used 1", "reserved 1", "cooling 1", "this host’s own", "overlap", "excluded", "free 9"}
	expect.SameList(t, legend, words, "the legend")
	b.accessible()

	// The copies stay as they are while the page follows the agent.
	eval[any](b, `[...document.querySelectorAll('.pool')].find((p) => p.innerText.startsWith('home')).querySelectorAll('.legend .key').forEach((k, i) => {
		const copy = k.cloneNode(true);
		Object.assign(copy.style, { position: 'fixed', top: 0, left: 100 * i + 'px', width: '90px', height: '90px', zIndex: 99, background: 'var(--panel)', filter: 'grayscale(1)' });
		copy.id = 'key' + i;
		document.body.append(copy);
	})`)
	for _, theme := range []string{"light", "dark"} {
		b.theme(theme)
		var shots [][]byte
		for i := range legend {
			shot := must.Get(chromedp.Run(b.ctx, chromedp.Screenshot(chromedp.CSS(fmt.Sprintf("#key%d", i)))))(t)
			shots = append(shots, shot)
		}
		for i := range shots {
			for j := range i {
				one, other := decode(t, shots[i]), decode(t, shots[j])
				if share := difference(one, other); share < 0.1 {
					t.Errorf("%s theme: without colors, %q and %q differ in %.0f%% of their pixels", theme, legend[i], legend[j], share*100)
				}
			}
		}
	}
	b.quiet()
}

// Unknown health of a backend is shown as unknown, with a shape of its own, and not as healthy: without checks, and before
// the first result.
func TestUnknownHealth(t *testing.T) {
	t.Parallel()
	a := start(t, loopback)
	silent, err := net.Listen("tcp", "127.0.0.1:0") // the kernel accepts connections, and nobody answers
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	at := silent.Addr().String()
	for name, health := range map[string]object{"unchecked": {"type": "none"}, "unknown": {"type": "http", "interval": "1m", "timeout": "1m"}} {
		s := spec(80, at)
		s["health"] = health
		a.call(http.MethodPut, "/v1/services/default/"+name, s)
	}
	b := open(t, a.base, "/ui/")
	for word, why := range map[string]string{"unknown": "the first health check of it is pending", "unchecked": "it has no health check"} {
		b.show("/ui/services/default/" + word)
		b.row("Backends", at, "ready", word)
		shapes := eval[[]string](b, `document.querySelectorAll('#backends .badge').values().map((s) => s.innerText.trim() + ' ' + s.querySelector('path').dataset.shape).toArray()`)
		expect.SameList(t, shapes, []string{"ready check", word + " ring"}, "the badges of the backend")
		b.accessible()
		b.see("h1", "unchecked")
		b.see("#about", why)
	}
	b.quiet()
}
