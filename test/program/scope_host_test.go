//go:build system

package program

import (
	"fmt"
	"strings"
	"testing"
)

// A host serves the services of its namespaces only. A reload changes them: open connections of a service that leaves go on,
// and new clients have no VIP.
func TestScope(t *testing.T) {
	parallel(t)
	h := newHost(t)
	h.edit("ironvip.toml", "[dataplane]", "[dataplane]\nnamespaces = [\"shop\"]")
	a, b := newBackend(t, "a"), newBackend(t, "b")
	h.write("services.d/all.toml", fmt.Sprintf(`[[service]]
name = "web"
namespace = "shop"
vips = ["%[3]s.9"]
ports = [ { port = 8080 } ]
backends = [ { address = "127.0.0.1", port = %[1]d } ]
[[service]]
name = "web"
vips = ["%[3]s.8"]
ports = [ { port = 8080 } ]
backends = [ { address = "127.0.0.1", port = %[2]d } ]
`, a.port, b.port, h.pool))
	h.start()
	shop, own := h.pool+".9:8080", h.pool+".8:8080"
	h.serves(shop, "a")
	refused := func(at string) {
		h.eventually(at+" is not served", func() error {
			if name, err := who(at); err == nil {
				return fmt.Errorf("%s answers", name)
			}
			return nil
		})
	}
	refused(own)
	h.status("ok", "scope", "this host serves 1 of 2 services")
	h.explains("web", "not served by this host (scope)")
	mentions(t, "service get", h.ok("service", "get", "web"), "elsewhere", "not served by this host (scope)")
	if text := h.ok("debug", "table", "frontends"); strings.Contains(text, strings.TrimSuffix(own, ":8080")) {
		t.Errorf("a frontend of another host:\n%s", text)
	}
	mentions(t, "metrics", h.scrape(), "\nironvip_health_targets 1\n", "\nironvip_usable_backends 1\n")

	open := dial(t, shop, "a")
	h.edit("ironvip.toml", `["shop"]`, `["default"]`)
	mentions(t, "reload", h.cli("reload").stderr, "dataplane.namespaces")
	h.serves(own, "b")
	refused(shop)
	open.lives("after its service has left")
	h.explains("shop/web", "not served by this host (scope)")

	h.edit("ironvip.toml", `["default"]`, `["nobody"]`)
	h.ok("reload")
	h.status("warn", "scope", "this host serves 0 of 2 services; none of namespace nobody")
	h.edit("ironvip.toml", `["nobody"]`, `["No Body"]`)
	mentions(t, "a refused reload", h.cli("reload").stderr, "ironvip.toml:7: dataplane.namespaces[0]")
}
