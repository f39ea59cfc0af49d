package v1

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ironvip/ironvip/vip/spec"
)

// ServiceSpec is the spec that a caller sets: the body of a PUT. Its keys are those of TOML.
type ServiceSpec = spec.Service

// ServicePatch is a JSON merge patch (RFC 7396) of a ServiceSpec: the body of a PATCH.
type ServicePatch = map[string]any

// MergePatchType is the content type of a JSON merge patch.
const MergePatchType = "application/merge-patch+json"

// Service is one service: its spec and its status.
type Service struct {
	Spec   ServiceSpec   `json:"spec"`
	Status ServiceStatus `json:"status"`

	Source   string `json:"source" doc:"the source that owns the service"`
	Origin   string `json:"origin,omitempty" doc:"where the source found it: \"services.d/web.toml:7\""`
	Revision uint64 `json:"revision" doc:"the newer of the spec's and the status's revision: what wait compares"`
	ETag     string `json:"etag" doc:"the ETag header: \"<spec revision>.<status revision>\" in quotes"`
}

// The states of a service, best first.
const (
	StateHealthy   = "healthy"   // every backend accepts connections and the dataplane has everything
	StateUnchecked = "unchecked" // as healthy, without evidence of the health of some backend
	StateElsewhere = "elsewhere" // other nodes serve it and this one doesn't, as requested
	StateDegraded  = "degraded"  // traffic flows, but something is not as requested
	StateDown      = "down"      // programmed, but no backend accepts connections; or the dataplane fails
	StatePending   = "pending"   // waiting for an address or for the dataplane
	StateRefused   = "refused"   // it requests something that is not possible, and nothing of it is served
)

// ServiceStatus is the status of a service.
type ServiceStatus struct {
	State    string          `json:"state" enum:"healthy,unchecked,elsewhere,degraded,down,pending,refused"`
	Summary  string          `json:"summary" doc:"the state and its reason in a sentence"`
	Revision uint64          `json:"revision" doc:"newest revision that this status depends on"`
	SpecRev  uint64          `json:"spec_revision" doc:"revision of the spec"`
	Applied  bool            `json:"applied" doc:"the dataplane has processed all of the newest spec; the condition \"applied\" has the result"`
	VIPs     []netip.Addr    `json:"vips" doc:"granted addresses, IPv4 first"`
	Pool     string          `json:"pool,omitempty" doc:"the pool they came from"`
	Since    *time.Time      `json:"allocated_at,omitempty" doc:"when the oldest of the addresses was assigned"`
	Names    []string        `json:"dns_names,omitempty" doc:"DNS names that resolve to the VIPs, the canonical one first; absent while this host answers no queries"`
	Ports    []PortStatus    `json:"ports"`
	Health   uint16          `json:"health_check_node_port,omitempty" doc:"granted port on which this host answers health checks"`
	Backends []BackendStatus `json:"backends"`
	Groups   []GroupStatus   `json:"groups,omitempty" doc:"in the order of the spec"`
	Usable   int             `json:"usable_backends" doc:"backends that are usable, with those that serve only as backup"`
	Panic    bool            `json:"panic,omitempty" doc:"unhealthy backends take new connections, too, because too few are healthy (panic_threshold)"`
	Full     bool            `json:"full,omitempty" doc:"new clients find no place, and wait in the queue or are refused: the service has max_connections open, or others wait (userspace proxy)"`
	Held     int             `json:"held_backends,omitempty" doc:"backends that fail their checks and keep their traffic, because all checks of the host failed at the same time"`

	Problems []Problem `json:"problems"`
}

// PortStatus is one port of a service as granted.
type PortStatus struct {
	Name       string `json:"name"`
	Protocol   string `json:"protocol"`
	Port       uint16 `json:"port" doc:"the first, of a range"`
	LastPort   uint16 `json:"last_port,omitempty" doc:"of a range of ports"`
	TargetPort uint16 `json:"target_port,omitempty" doc:"absent, for a range only: the client's destination port"`
	NodePort   uint16 `json:"node_port,omitempty" doc:"granted port on the host's own addresses"`
}

// Numbers returns the number of a port, or its range: "10000-10099".
func (p PortStatus) Numbers() string {
	n := strconv.Itoa(int(p.Port))
	if p.LastPort != 0 {
		n += "-" + strconv.Itoa(int(p.LastPort))
	}
	return n
}

// PortsByProtocol returns ports, grouped by protocol: "80,10000-10099/tcp 443/udp". text returns the
// text of a port, such as its Numbers; a port without text is left out.
func PortsByProtocol(in []PortStatus, text func(PortStatus) string) string {
	var protocols, texts []string // in the order of the first port of a protocol
	for _, p := range in {
		n := text(p)
		if n == "" {
			continue
		}
		if i := slices.Index(protocols, p.Protocol); i >= 0 {
			texts[i] += "," + n
		} else {
			protocols, texts = append(protocols, p.Protocol), append(texts, n)
		}
	}
	for i := range texts {
		texts[i] += "/" + protocols[i]
	}
	return strings.Join(texts, " ")
}

// GroupStatus is one group of a service's backends.
type GroupStatus struct {
	Name         string        `json:"name"`
	Weight       uint32        `json:"weight" doc:"in effect: the operator's override, else the source's"`
	SourceWeight *uint32       `json:"source_weight,omitempty" doc:"the source's weight, if an operator overrode it"`
	Override     *OverrideInfo `json:"override,omitempty" doc:"the operator's override, if there is one"`
	Backends     int           `json:"backends" doc:"backends that the service lists"`
	Usable       int           `json:"usable" doc:"those that are usable"`
	Share        float64       `json:"share" doc:"its share of the new connections through this host, in percent"`
}

// BackendStatus is one backend of a service.
type BackendStatus struct {
	ID      string `json:"id" doc:"address:port, or the address alone"`
	Address string `json:"address"`
	Port    uint16 `json:"port,omitempty" doc:"absent: the service's target ports"`
	Weight  uint32 `json:"weight" doc:"its share, within its group if it has one"`
	Group   string `json:"group,omitempty" doc:"the group of the service that it belongs to"`
	State   string `json:"state" enum:"ready,drain,maint,terminating" doc:"in effect: the operator's override, else the source's"`
	// SourceState is the state from the source if an operator overrode it.
	SourceState string        `json:"source_state,omitempty" enum:"ready,drain,maint,terminating" doc:"the source's state, if an operator overrode it"`
	Override    *OverrideInfo `json:"override,omitempty" doc:"the operator's override, if there is one"`
	SlowStart   int           `json:"slow_start,omitempty" doc:"how much of its weight it has, in percent, while it begins to take new connections"`
	Backup      bool          `json:"backup,omitempty" doc:"serves only while no other backend can"`
	Serving     bool          `json:"serving" doc:"new connections through this host go to it now: also to an unhealthy one in panic mode, and not to a backup that waits"`
	Usable      bool          `json:"usable" doc:"is ready, has a weight, and is neither unhealthy nor ejected: takes new connections where policies allow it"`
	// Health is what was observed, apart from State, which is configured.
	Health       string     `json:"health,omitempty" enum:"unknown,healthy,unhealthy,unchecked,ejected" doc:"observed: by this host's probes, by its source, or by connections"`
	HealthSince  *time.Time `json:"health_since,omitempty" doc:"when health became this"`
	HealthReason string     `json:"health_reason,omitempty" doc:"why it is unhealthy or ejected"`
	HealthHint   string     `json:"health_hint,omitempty" doc:"what to do about the reason, if that is known"`
	Check        string     `json:"check,omitempty" doc:"the type of the check that decided; source; or passive: connections of clients"`
	EjectedUntil *time.Time `json:"ejected_until,omitempty" doc:"when the proxy sends it a client again"`
	Held         bool       `json:"held,omitempty" doc:"its check fails, and traffic is held because all checks failed at the same time"`
	HeldUntil    *time.Time `json:"held_until,omitempty" doc:"when that ends, if it still fails"`
	// LastError is apart from HealthReason: a healthy backend has one for a while.
	LastError   string     `json:"last_error,omitempty" doc:"why a probe or a connection of a client last failed: while it is unhealthy, ejected or held, and for ten minutes after the last failure"`
	LastErrorAt *time.Time `json:"last_error_at,omitempty" doc:"when that was; absent if it is not known"`

	Node string `json:"node,omitempty"`
	Zone string `json:"zone,omitempty"`

	MaxConnections uint32 `json:"max_connections,omitempty" doc:"open connections per port; absent: no limit"`

	Ports     []string   `json:"ports,omitempty" doc:"names of the service's ports that it serves; absent: all"`
	ForZones  []string   `json:"for_zones,omitempty" doc:"zones with the intended clients; absent: all clients"`
	ForNodes  []string   `json:"for_nodes,omitempty" doc:"nodes with the intended clients; absent: all clients"`
	LeavingAt *time.Time `json:"leaving_at,omitempty" doc:"deadline of its drain"`
	Removed   bool       `json:"removed,omitempty" doc:"the service no longer lists it; open connections may keep it"`
	TTL       string     `json:"ttl,omitempty" doc:"it must send heartbeats this often"`
	Keeper    string     `json:"keeper,omitempty" doc:"in a fleet, the node that counts its heartbeats; only it reports expires_at and removed_at"`
	ExpiresAt *time.Time `json:"expires_at,omitempty" doc:"when the next heartbeat is due; after it the backend drains"`
	RemovedAt *time.Time `json:"removed_at,omitempty" doc:"when it is removed without a heartbeat"`
}

// ServiceList is a page of services, ordered by namespace and name.
type ServiceList struct {
	Items    []Service `json:"items"`
	Next     string    `json:"next,omitempty" doc:"cursor of the next page; absent on the last"`
	Revision uint64    `json:"revision" doc:"what wait compares"`
}

// Deleted is the response to a DELETE of a service or a backend.
type Deleted struct {
	Service  string `json:"service"`
	Backend  string `json:"backend,omitempty" doc:"the backend's id, when only a backend was deleted"`
	Group    string `json:"group,omitempty" doc:"the group, when its override was deleted"`
	Revision uint64 `json:"revision" doc:"of the deletion"`
	Applied  bool   `json:"applied" doc:"the dataplane has it; with Prefer: wait only"`
}

// Explanation explains a service's state in sentences.
type Explanation struct {
	Service  string    `json:"service"`
	State    string    `json:"state"`
	Lines    []string  `json:"lines" doc:"sentences, most important first"`
	Revision uint64    `json:"revision"`
	Problems []Problem `json:"problems"`
}

// ApplyRequest is the body of services:apply: many services in one call.
type ApplyRequest struct {
	Services []ServiceSpec `json:"services"`
}

// ApplyResult is the response to services:apply. With dry_run nothing changed, and Plan lists what
// would change.
type ApplyResult struct {
	Items     []ApplyItem `json:"items" doc:"in the order of the request"`
	Created   int         `json:"created"`
	Updated   int         `json:"updated"`
	Unchanged int         `json:"unchanged"`
	Refused   int         `json:"refused" doc:"more than 0: the answer's status is 207"`
	Revision  uint64      `json:"revision" doc:"of the newest spec that changed"`
	DryRun    bool        `json:"dry_run,omitempty"`
	Plan      *Plan       `json:"plan,omitempty"`
}

// The outcomes of an applied service.
const (
	Created   = "created"
	Updated   = "updated"
	Unchanged = "unchanged"
	Refused   = "refused"
)

// ApplyItem is the outcome of one service of an apply.
type ApplyItem struct {
	Namespace string       `json:"namespace"`
	Name      string       `json:"name"`
	Action    string       `json:"action" enum:"created,updated,unchanged,refused"`
	Revision  uint64       `json:"revision,omitempty"`
	VIPs      []netip.Addr `json:"vips,omitempty"`
	Problems  []Problem    `json:"problems,omitempty"`
}

// ServiceChange is a line of the stream of services. It has one of the fields.
type ServiceChange struct {
	Service *Service        `json:"service,omitempty" doc:"a service, in its newest state"`
	Summary *ServiceSummary `json:"summary,omitempty" doc:"the same in short, in place of service; with view=summary"`
	Deleted string          `json:"deleted,omitempty" doc:"the name of a service that no longer exists, or that is no longer selected"`
	Synced  bool            `json:"synced,omitempty" doc:"all services that existed at the beginning were sent"`
}

// ServiceSummary is a service as a row of a list.
type ServiceSummary struct {
	Name     string            `json:"name" doc:"NAME in the namespace default, else NAMESPACE/NAME"`
	Source   string            `json:"source" doc:"the source that owns the service"`
	State    string            `json:"state" enum:"healthy,unchecked,elsewhere,degraded,down,pending,refused"`
	Summary  string            `json:"summary" doc:"the state and its reason in a sentence"`
	VIPs     []netip.Addr      `json:"vips" doc:"granted addresses, IPv4 first"`
	Ports    string            `json:"ports" doc:"by protocol: \"80,443/tcp 443/udp\""`
	Usable   int               `json:"usable" doc:"backends that are usable, with those that serve only as backup"`
	Backends int               `json:"backends" doc:"backends that the service lists"`
	Labels   map[string]string `json:"labels,omitempty"`
	Since    *time.Time        `json:"allocated_at,omitempty" doc:"when the oldest of the addresses was assigned"`
}
