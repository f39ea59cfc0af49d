package v1

import (
	"time"

	"github.com/ironvip/ironvip/vip/spec"
)

// BackendSpec is the body of a PUT on one backend: a server that registers itself. The address and
// port are those of the path. An empty body is a backend of weight 1 that remains until it is
// deleted.
type BackendSpec struct {
	Weight *int   `toml:"weight" json:"weight,omitempty" minimum:"0" maximum:"65535" doc:"default 1; 0 takes no new connections"`
	State  string `toml:"state" json:"state,omitempty" enum:"ready,drain,maint,terminating" doc:"default ready"`
	Group  string `toml:"group" json:"group,omitempty" doc:"the group of the service that it belongs to; absent: the one that it is in"`
	Node   string `toml:"node" json:"node,omitempty" doc:"the host it runs on"`
	Zone   string `toml:"zone" json:"zone,omitempty"`

	MaxConnections int `toml:"max_connections" json:"max_connections,omitempty" minimum:"0" maximum:"10000000" doc:"open connections per port; 0 or absent: no limit"`

	Ports    []string `toml:"ports" json:"ports,omitempty" doc:"names of the service's ports that it serves; absent: all"`
	ForZones []string `toml:"for_zones" json:"for_zones,omitempty" doc:"zones with the intended clients; absent: all clients"`
	ForNodes []string `toml:"for_nodes" json:"for_nodes,omitempty" doc:"nodes with the intended clients; absent: all clients"`

	TTL *spec.Duration `toml:"ttl" json:"ttl,omitempty" doc:"\"30s\", from 1s to 24h: drained without a heartbeat within this time, and removed later; absent: stays until deleted"`
}

// Backend is the response about one backend.
type Backend struct {
	Service  string `json:"service" doc:"\"name\" or \"namespace/name\""`
	Revision uint64 `json:"revision" doc:"the service's revision, for wait"`
	Local    bool   `json:"local,omitempty" doc:"this change of the state is stored on this host only, and merged when the fleet's store is reachable"`
	BackendStatus
}

// BackendList is every backend of a service, ordered by address and port.
type BackendList struct {
	Items    []BackendStatus `json:"items"`
	Next     string          `json:"next,omitempty" doc:"cursor of the next page; absent on the last"`
	Revision uint64          `json:"revision"`
}

// StateSpec is the body of a PUT on a backend's state. It applies to services of any source.
// "ready" ends an operator's override.
type StateSpec struct {
	State   string     `toml:"state" json:"state" enum:"ready,drain,maint"`
	Expires *time.Time `toml:"expires" json:"expires,omitempty" doc:"when the override ends by itself, by the clock of each host; absent: never"`
}

// WeightSpec is the body of a PUT on a group's weight. It applies to services of any source.
type WeightSpec struct {
	Weight  *int       `toml:"weight" json:"weight" minimum:"0" maximum:"65535" doc:"0 takes no new connections"`
	Expires *time.Time `toml:"expires" json:"expires,omitempty" doc:"when the override ends by itself, by the clock of each host; absent: never"`
}

// Group is the response about one group of a service.
type Group struct {
	Service  string `json:"service" doc:"\"name\" or \"namespace/name\""`
	Revision uint64 `json:"revision" doc:"the service's revision, for wait"`
	Local    bool   `json:"local,omitempty" doc:"this change of the weight is stored on this host only, and merged when the fleet's store is reachable"`
	GroupStatus
}

// Override is an operator's override of one backend's state, or of one group's weight.
type Override struct {
	Service string  `json:"service" doc:"\"name\" or \"namespace/name\""`
	Backend string  `json:"backend,omitempty" doc:"the backend's id: address:port, or the address alone; absent: it is of a group"`
	Group   string  `json:"group,omitempty" doc:"the group's name; absent: it is of a backend"`
	State   string  `json:"state,omitempty" enum:"ready,drain,maint" doc:"of a backend; ready: an end of an override that is local"`
	Weight  *uint32 `json:"weight,omitempty" doc:"of a group"`
	OverrideInfo
	Missing  bool   `json:"missing,omitempty" doc:"the service does not have this backend or group; the override ends after an hour"`
	Revision uint64 `json:"revision"`
}

// OverrideInfo is who set an override, and when.
type OverrideInfo struct {
	Author  string     `json:"author,omitempty" doc:"the user that set it through the unix socket, or \"tcp\" and an address"`
	Node    string     `json:"node,omitempty" doc:"in a fleet, the node through which it was set"`
	Since   *time.Time `json:"since,omitempty" doc:"when it was set"`
	Expires *time.Time `json:"expires,omitempty" doc:"when it ends by itself; absent: never"`
	Local   bool       `json:"local,omitempty" doc:"it is in effect on this host only, and merged when the fleet's store is reachable"`
}

// OverrideList is every override, ordered by service, backend and group.
type OverrideList struct {
	Items    []Override `json:"items"`
	Next     string     `json:"next,omitempty" doc:"cursor of the next page; absent on the last"`
	Revision uint64     `json:"revision"`
}
