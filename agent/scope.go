package agent

import (
	"fmt"
	"slices"
	"strings"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/internal/text"
	"github.com/ironvip/ironvip/vip"
)

// The keys of the services that this host serves.
const (
	namespacesKey = "dataplane.namespaces"
	labelsKey     = "dataplane.labels"
)

// isScope reports whether a key limits which services this host serves.
func isScope(key string) bool { return key == namespacesKey || key == labelsKey }

// serving is what services are counted by.
type serving struct {
	namespace string
	here      bool // served by this host
}

// countServing makes the table of services maintain these counts.
func countServing(services table.Reader[vip.ServiceKey, vip.Service]) func() map[serving]int {
	return table.Counts(services, func(s *vip.Service) serving { return serving{s.Key.Namespace, !s.NotHere} })
}

// scopeChecks returns the line of the status on the services that this host serves, if the configuration limits them. It
// warns if there are none, or none of a namespace.
func (a *agent) scopeChecks() []v1.Check {
	cfg := a.config.get()
	if len(cfg.Dataplane.Namespaces)+len(cfg.Dataplane.Labels) == 0 {
		return nil
	}
	counts, here, all := a.serving(), 0, 0
	for k, n := range counts {
		if all += n; k.here {
			here += n
		}
	}
	c := v1.Check{Name: "scope", Level: v1.LevelOK, Message: fmt.Sprintf("this host serves %d of %s", here, text.Plural(all, "service"))}
	key := labelsKey
	empty := slices.DeleteFunc(slices.Clone(cfg.Dataplane.Namespaces), func(ns string) bool { return counts[serving{ns, true}] > 0 })
	if len(empty) > 0 {
		key = namespacesKey
		c.Message += "; none of namespace " + strings.Join(empty, ", ")
	}
	if len(empty) > 0 || here == 0 {
		c.Level, c.Hint = v1.LevelWarn, "check "+key+" in "+cfg.Place(key)+"; ironvip service list shows all services"
	}
	return []v1.Check{c}
}
