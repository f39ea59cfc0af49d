//go:build system || vm

package program

import (
	"encoding/json"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

// save runs `ironvip snapshot save` and returns the document without its time.
func (h *host) save(args ...string) (text string, document map[string]any) {
	h.t.Helper()
	r := command(h.t, append([]string{"snapshot", "save"}, args...)...)
	must.Equal(h.t, r.code, 0, "snapshot save: exit %d\n%s", r.code, r.stderr)
	err := json.Unmarshal([]byte(r.stdout), &document)
	must.Succeed(h.t, err, "snapshot save: %v\n%s", err, r.stdout)
	delete(document, "taken")
	return r.stdout, document
}

// hoard registers services and deletes some of them, so that the addresses differ from those of an
// empty store, and drains a backend. It returns the addresses.
func (h *host) hoard(a, b *backend) map[string]string {
	h.t.Helper()
	addresses := map[string]string{}
	for _, name := range []string{"early", "gone", "late"} {
		addresses[name] = h.put(name, a, b)
	}
	code, tree := h.rest("DELETE", "/v1/services/default/gone", "", "Prefer", "wait=300")
	must.Equal(h.t, code/100, 2, "DELETE: %d %v", code, tree)
	delete(addresses, "gone")
	h.write("services.d/web.toml", service("web", "", a))
	addresses["web"] = h.vip("web")
	h.ok("backend", "drain", "early", a.addr)
	return addresses
}

// kept checks that nothing of a hoard has changed.
func (h *host) kept(addresses map[string]string, a, b *backend) {
	h.t.Helper()
	for name, want := range addresses {
		expect.Equal(h.t, h.vip(name), want, "%s moved from %s to", name, want)
	}
	h.serves(addresses["early"]+":8080", b.name) // a is drained
	h.serves(addresses["late"]+":8080", a.name, b.name)
	h.serves(addresses["web"]+":8080", a.name)
}
