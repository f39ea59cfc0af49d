package kubernetes

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ironvip/ironvip/sources/draft"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// annotationPrefix is the prefix of our annotations.
const annotationPrefix = "ironvip.io/"

// annotation is one annotation of a Service.
type annotation struct {
	field string // of spec.Service, as in its problems
	read  func(s *spec.Service, text string) error
	own   bool // Kubernetes determines it for adopted cluster IPs
}

// annotations are all supported annotations without their prefix. They set what Kubernetes has no
// field for. docs/kubernetes.md has a row for each.
var annotations = map[string]annotation{
	"pool":               {"pool", draft.Text(func(s *spec.Service) *string { return &s.Pool }), true},
	"vips":               {"vips", draft.List(func(s *spec.Service) *[]string { return &s.VIPs }), true},
	"share-key":          {"share_key", draft.Text(func(s *spec.Service) *string { return &s.ShareKey }), true},
	"hostnames":          {"hostnames", draft.List(func(s *spec.Service) *[]string { return &s.Hostnames }), false},
	"scheduler":          {"scheduler", draft.Text(func(s *spec.Service) *string { return &s.Scheduler }), false},
	"scheduler-flags":    {"scheduler_flags", draft.List(func(s *spec.Service) *[]string { return &s.SchedulerFlags }), false},
	"forward":            {"forward", draft.Text(func(s *spec.Service) *string { return &s.Forward }), false},
	"masquerade":         {"masquerade", draft.Text(func(s *spec.Service) *string { return &s.Masquerade }), false},
	"drain-timeout":      {"drain_timeout", draft.Time(func(s *spec.Service) **spec.Duration { return &s.DrainTimeout }), false},
	"proxy-protocol":     {"proxy_protocol", draft.Text(func(s *spec.Service) *string { return &s.ProxyProtocol }), false},
	"accept-proxy-from":  {"accept_proxy_from", draft.List(func(s *spec.Service) *[]string { return &s.AcceptProxyFrom }), false},
	"connect-timeout":    {"connect_timeout", draft.Time(func(s *spec.Service) **spec.Duration { return &s.ConnectTimeout }), false},
	"idle-timeout":       {"idle_timeout", draft.Time(func(s *spec.Service) **spec.Duration { return &s.IdleTimeout }), false},
	"max-connections":    {"max_connections", draft.Number(func(s *spec.Service) *int { return &s.MaxConnections }), false},
	"max-queue":          {"max_queue", draft.Number(func(s *spec.Service) *int { return &s.MaxQueue }), false},
	"queue-timeout":      {"queue_timeout", draft.Time(func(s *spec.Service) **spec.Duration { return &s.QueueTimeout }), false},
	"half-close-timeout": {"half_close_timeout", draft.Time(func(s *spec.Service) **spec.Duration { return &s.HalfCloseTimeout }), false},
	"health":             {"health", draft.HealthCheck(func(s *spec.Service) **spec.HealthCheck { return &s.Health }), false},
	"on-unhealthy":       {"on_unhealthy", draft.Text(func(s *spec.Service) *string { return &s.OnUnhealthy }), false},
	"panic-threshold":    {"panic_threshold", draft.Number(func(s *spec.Service) *int { return &s.PanicThreshold }), false},
	"slow-start":         {"slow_start", draft.Time(func(s *spec.Service) **spec.Duration { return &s.SlowStart }), false},
}

// annotationKeys are all annotations with their prefix, sorted.
var annotationKeys = func() (out []string) {
	for _, name := range sorted(annotations) {
		out = append(out, annotationPrefix+name)
	}
	return out
}()

// fieldInstead maps settings of other sources to the field of a Service that replaces them.
var fieldInstead = map[string]string{
	"affinity": "spec.sessionAffinity", "external-traffic": "spec.externalTrafficPolicy", "families": "spec.ipFamilies",
	"health-check-node-port": "spec.healthCheckNodePort", "internal-traffic": "spec.internalTrafficPolicy",
	"labels": "metadata.labels", "name": "metadata.name", "namespace": "metadata.namespace", "node-port": "spec.ports",
	"port": "spec.ports", "ports": "spec.ports", "protocol": "spec.ports", "source-ranges": "spec.loadBalancerSourceRanges",
	"target-port": "spec.ports", "traffic-distribution": "spec.trafficDistribution",
}

// readAnnotations reads the annotations. An empty annotation counts as missing.
func (b *builder) readAnnotations() {
	for _, key := range sorted(b.s.Annotations) {
		name, ours := strings.CutPrefix(key, annotationPrefix)
		value := b.s.Annotations[key]
		if !ours || value == "" {
			continue
		}
		field := bracket("metadata.annotations", key)
		known, is := annotations[name]
		switch {
		case !is:
			b.bad(field, vip.Problem{Code: vip.CodeUnknownKey, Message: "is no annotation of ours", Hint: hintFor(name)})
		case known.own && b.o.AdoptClusterIPs:
			b.warn(vip.CodeUnsupported, field, "remove it", "has no effect: the addresses are those that Kubernetes assigned")
		default:
			if err := known.read(&b.draft, value); err != nil {
				b.bad(field, err)
			}
		}
	}
}

// hintFor returns a hint for an unknown annotation.
func hintFor(name string) string {
	if field := fieldInstead[strings.ReplaceAll(name, "_", "-")]; field != "" {
		return "use " + field
	}
	if near := strict.Nearest(name, sorted(annotations)); near != "" {
		return fmt.Sprintf("did you mean %q?", annotationPrefix+near)
	}
	return "remove it; known: " + strings.Join(annotationKeys, ", ")
}

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
