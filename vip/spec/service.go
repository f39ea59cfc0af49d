package spec

import (
	"slices"
	"strings"

	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// Service is a service as written. Every field except Name and, unless Forward is "host", Ports is optional; see
// docs/services.md for bounds and defaults. Addresses and names are text, so that Build can report
// all problems with them.
type Service struct {
	Name      string            `toml:"name" json:"name"`
	Namespace string            `toml:"namespace,omitempty" json:"namespace,omitempty"`
	Labels    map[string]string `toml:"labels,omitempty" json:"labels,omitempty"`

	Pool     string   `toml:"pool,omitempty" json:"pool,omitempty"`
	VIPs     []string `toml:"vips,omitempty" json:"vips,omitempty"`
	Families []string `toml:"families,omitempty" json:"families,omitempty"`
	ShareKey string   `toml:"share_key,omitempty" json:"share_key,omitempty"`

	Hostnames []string `toml:"hostnames,omitempty" json:"hostnames,omitempty"`

	Ports    []Port    `toml:"ports" json:"ports"`
	Backends []Backend `toml:"backends,omitempty" json:"backends,omitempty"`
	Groups   []Group   `toml:"groups,omitempty" json:"groups,omitempty"`

	Scheduler       string    `toml:"scheduler,omitempty" json:"scheduler,omitempty"`
	SchedulerFlags  []string  `toml:"scheduler_flags,omitempty" json:"scheduler_flags,omitempty"`
	Forward         string    `toml:"forward,omitempty" json:"forward,omitempty"`
	Affinity        *Affinity `toml:"affinity,omitempty" json:"affinity,omitempty"`
	InternalTraffic string    `toml:"internal_traffic,omitempty" json:"internal_traffic,omitempty"`
	ExternalTraffic string    `toml:"external_traffic,omitempty" json:"external_traffic,omitempty"`
	Distribution    string    `toml:"traffic_distribution,omitempty" json:"traffic_distribution,omitempty"`
	HealthPort      NodePort  `toml:"health_check_node_port,omitempty" json:"health_check_node_port,omitzero"`
	Masquerade      string    `toml:"masquerade,omitempty" json:"masquerade,omitempty"`
	SourceRanges    []string  `toml:"source_ranges,omitempty" json:"source_ranges,omitempty"`
	ProxyProtocol   string    `toml:"proxy_protocol,omitempty" json:"proxy_protocol,omitempty"`
	AcceptProxyFrom []string  `toml:"accept_proxy_from,omitempty" json:"accept_proxy_from,omitempty"`
	DrainTimeout    *Duration `toml:"drain_timeout,omitempty" json:"drain_timeout,omitempty"`

	ConnectTimeout   *Duration `toml:"connect_timeout,omitempty" json:"connect_timeout,omitempty"`
	IdleTimeout      *Duration `toml:"idle_timeout,omitempty" json:"idle_timeout,omitempty"`
	HalfCloseTimeout *Duration `toml:"half_close_timeout,omitempty" json:"half_close_timeout,omitempty"`

	MaxConnections int       `toml:"max_connections,omitempty" json:"max_connections,omitempty"`
	MaxQueue       int       `toml:"max_queue,omitempty" json:"max_queue,omitempty"`
	QueueTimeout   *Duration `toml:"queue_timeout,omitempty" json:"queue_timeout,omitempty"`

	MaxConnectionsPerSource int `toml:"max_connections_per_source,omitempty" json:"max_connections_per_source,omitempty"`
	MaxRatePerSource        int `toml:"max_rate_per_source,omitempty" json:"max_rate_per_source,omitempty"`

	SynProxy bool `toml:"syn_proxy,omitempty" json:"syn_proxy,omitempty"`

	Health         *HealthCheck `toml:"health,omitempty" json:"health,omitempty"`
	OnUnhealthy    string       `toml:"on_unhealthy,omitempty" json:"on_unhealthy,omitempty"`
	PanicThreshold int          `toml:"panic_threshold,omitempty" json:"panic_threshold,omitempty"`
	SlowStart      *Duration    `toml:"slow_start,omitempty" json:"slow_start,omitempty"`
}

// Port is one port, or a range of ports, of a service.
type Port struct {
	Name       string     `toml:"name,omitempty" json:"name,omitempty"`
	Protocol   string     `toml:"protocol,omitempty" json:"protocol,omitempty"`
	Port       PortRange  `toml:"port" json:"port"`
	TargetPort PortNumber `toml:"target_port,omitzero" json:"target_port,omitempty"`
	NodePort   NodePort   `toml:"node_port,omitempty" json:"node_port,omitzero"`
}

// Backend is one server behind a service, for all of its ports unless Ports names some.
type Backend struct {
	Address string     `toml:"address" json:"address"`
	Port    PortNumber `toml:"port,omitzero" json:"port,omitempty"`
	Weight  *int       `toml:"weight,omitempty" json:"weight,omitempty"`
	State   string     `toml:"state,omitempty" json:"state,omitempty"`
	Backup  bool       `toml:"backup,omitempty" json:"backup,omitempty"`
	Node    string     `toml:"node,omitempty" json:"node,omitempty"`
	Zone    string     `toml:"zone,omitempty" json:"zone,omitempty"`

	MaxConnections int `toml:"max_connections,omitempty" json:"max_connections,omitempty"`

	Ports    []string `toml:"ports,omitempty" json:"ports,omitempty"`
	ForZones []string `toml:"for_zones,omitempty" json:"for_zones,omitempty"`
	ForNodes []string `toml:"for_nodes,omitempty" json:"for_nodes,omitempty"`

	// Group names one of the service's groups in a spec that a program makes. A user lists the backends of a group in the group.
	Group string `toml:"-" json:"-"`
	// Health and Reason are what the source observed. No user writes them.
	Health vip.Health `toml:"-" json:"-"`
	Reason vip.Reason `toml:"-" json:"-"`
}

// Group is a part of a service's backends with a share of its new connections.
type Group struct {
	Name     string    `toml:"name" json:"name"`
	Weight   *int      `toml:"weight,omitempty" json:"weight,omitempty"`
	Backends []Backend `toml:"backends,omitempty" json:"backends,omitempty"`
}

// Affinity keeps a client on its backend. Without a Timeout, it is vip.DefaultAffinity.
type Affinity struct {
	Timeout *Duration `toml:"timeout,omitempty" json:"timeout,omitempty"`
}

// DecodeJSON reads a service from a JSON object. It reports unknown keys, duplicate keys and values
// of a wrong type, all at once.
func DecodeJSON(data []byte) (Service, []vip.Problem) {
	s, problems := decodeJSON[Service](data)
	for i := range problems {
		problems[i].Service = s.Title()
	}
	return s, problems
}

// DecodeHealthCheckJSON reads a health check, as DecodeJSON reads a service.
func DecodeHealthCheckJSON(data []byte) (HealthCheck, []vip.Problem) {
	return decodeJSON[HealthCheck](data)
}

func decodeJSON[T any](data []byte) (out T, problems []vip.Problem) {
	tree, problems := strict.ParseJSON(data)
	if tree != nil {
		problems = append(problems, strict.Decode(tree, &out, "")...)
	}
	return out, problems
}

// Merge combines the problems of decoding and of Build for one service. It drops Build's problems
// with a value that could not be decoded, for example that the value is missing.
func Merge(decoded, built []vip.Problem) []vip.Problem {
	out := slices.Clone(decoded)
	for _, p := range built {
		if !slices.ContainsFunc(decoded, func(d vip.Problem) bool {
			return d.Code != vip.CodeUnknownKey && (within(p.Field, d.Field) || within(d.Field, p.Field))
		}) {
			out = append(out, p)
		}
	}
	return out
}

// within reports whether path is outer or part of it.
func within(path, outer string) bool {
	rest, ok := strings.CutPrefix(path, outer)
	return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
}

// Title returns the service's name for messages, even if it is invalid: "web", "shop/web", or ""
// without a name.
func (s *Service) Title() string {
	if s.Name == "" {
		return ""
	}
	if len(s.Name) > 64 || len(s.Namespace) > 64 {
		return s.Name[:min(len(s.Name), 64)] + "..."
	}
	return vip.ServiceKey{Namespace: s.Namespace, Name: s.Name}.String()
}
