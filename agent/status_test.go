package agent

import (
	"testing"

	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/vip"
)

// The status counts the services that this host serves, and warns about a scope that matches nothing.
func TestScopeChecks(t *testing.T) {
	for text, want := range map[string]string{
		"":                                    "",
		"namespaces = ['a', 'b']":             "ok: this host serves 2 of 3 services",
		"namespaces = ['a', 'x', 'y']":        "warn: this host serves 1 of 3 services; none of namespace x, y, check dataplane.namespaces in c.toml:2; ironvip service list shows all services",
		"labels = ['tier=db']":                "warn: this host serves 0 of 3 services, check dataplane.labels in c.toml:2; ironvip service list shows all services",
		"namespaces = ['c']\nlabels = ['no']": "warn: this host serves 0 of 3 services; none of namespace c, check dataplane.namespaces in c.toml:2; ironvip service list shows all services",
	} {
		cfg, problems := configs.Parse("c.toml", []byte("[dataplane]\n"+text))
		expect.Empty(t, problems)
		services := table.New(&table.Clock{}, vip.KeyOfService, nil)
		a := &agent{config: newLiveConfig(cfg, nil), serving: countServing(services)}
		for _, namespace := range []string{"a", "b", "c"} {
			s := vip.Service{Key: vip.ServiceKey{Namespace: namespace, Name: "web"}}
			s.NotHere = !cfg.Dataplane.Serves(&s)
			services.Set(s)
		}
		got := ""
		for _, c := range a.scopeChecks() {
			got = c.Level + ": " + c.Message
			if c.Hint != "" {
				got += ", " + c.Hint
			}
		}
		expect.Equal(t, got, want, "%s", text)
	}
}
