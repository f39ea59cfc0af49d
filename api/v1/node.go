package v1

import (
	"net/netip"
	"time"
)

// The levels of a node, a check or a source.
const (
	LevelOK   = "ok"
	LevelWarn = "warn"
	LevelFail = "fail"
)

// NodeStatus reports whether this node is healthy.
type NodeStatus struct {
	Node     string    `json:"node"`
	Version  string    `json:"version"`
	Started  time.Time `json:"started"`
	Uptime   int64     `json:"uptime_seconds"`
	Level    string    `json:"level" enum:"ok,warn,fail" doc:"the worst of the checks"`
	Ready    bool      `json:"ready" doc:"the first full reconcile is done"`
	Checks   []Check   `json:"checks" doc:"config, sources, pools, services, dataplane and others, in a fixed order"`
	Services int       `json:"services"`
	Revision uint64    `json:"revision"`
	Next     string    `json:"next,omitempty" doc:"the command that shows more of the worst check"`
}

// Check is one line of a node's status.
type Check struct {
	Name    string `json:"name"`
	Level   string `json:"level" enum:"ok,warn,fail"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
	Next    string `json:"-"` // the command to run next, in the place of the usual one for this line
	// Problems lists the individual problems if one line is not enough.
	Problems []Problem `json:"problems,omitempty"`
	// InMessage is the number of problems, from the first, that Message and Hint have as well.
	InMessage int `json:"in_message,omitempty" doc:"problems, from the first, that the message has as well"`
	More      int `json:"more,omitempty" doc:"problems beyond these"`
}

// Health is the response of /healthz and /readyz.
type Health struct {
	Status string `json:"status" enum:"ok"`
}

// The states of a node.
const (
	NodePresent = "present"
	NodeLost    = "lost" // it was present and is silent
)

// Node is the status of one host of the fleet. Without a shared store, the list contains the host
// that answers and the peers of its announcer. Of these and of lost nodes, little is known.
type Node struct {
	Name      string     `json:"name"`
	State     string     `json:"state" enum:"present,lost" doc:"lost: it was present and is silent"`
	Since     *time.Time `json:"since,omitempty" doc:"of a lost node: when it was present last"`
	Draining  bool       `json:"draining,omitempty" doc:"an operator drains it"`
	Self      bool       `json:"self" doc:"the node that answers"`
	Elected   bool       `json:"elected" doc:"the leader: allocates addresses for new services; another node takes over if it fails"`
	Version   string     `json:"version" doc:"of the agent"`
	Dataplane string     `json:"dataplane" doc:"\"ipvs\", \"proxy\""`
	Services  int        `json:"services" doc:"in effect on it"`
	Frontends int        `json:"frontends" doc:"desired in its dataplane"`
	Problems  int        `json:"problems" doc:"of its services, sources and store"`
	Revision  uint64     `json:"revision" doc:"newest revision of its own tables that its dataplane has applied"`
	Lag       int64      `json:"lag_ms" doc:"age of the oldest change that its dataplane has not applied, in milliseconds"`
	Index     uint64     `json:"index,omitempty" doc:"the last write of the shared store that it has read; nodes with the same index have the same state"`
	Started   *time.Time `json:"started,omitempty"`
	Seen      *time.Time `json:"seen,omitempty" doc:"time of its last report, by its own clock"`
	// VIPCount is nil if this host does not know.
	VIPCount *int         `json:"vip_count,omitempty" doc:"VIPs that it announces, or announced before it was lost; absent if the node that answers does not know"`
	VIPs     []netip.Addr `json:"vips,omitempty" doc:"of a lost node: the first of these VIPs, at most 20"`
}

// NodeList is every node of the fleet, ordered by name.
type NodeList struct {
	Items []Node `json:"items"`
	Next  string `json:"next,omitempty" doc:"cursor of the next page; absent on the last"`
	Store string `json:"store" enum:"bolt,consul,etcd" doc:"the store; bolt belongs to this node alone"`
}

// The kinds of leases.
const (
	KindAddress  = "address"
	KindNodePort = "node_port"
)

// VIP is one lease: an address or a node port that is in use, in its cooldown or reserved.
type VIP struct {
	Kind     string      `json:"kind" enum:"address,node_port"`
	Address  string      `json:"address,omitempty" doc:"of an address"`
	NodePort uint16      `json:"node_port,omitempty" doc:"of a node port"`
	Protocol string      `json:"protocol,omitempty" doc:"of a node port"`
	Pool     string      `json:"pool,omitempty"`
	State    string      `json:"state" enum:"held,cooling,reserved,free" doc:"reserved: and not held; free: only in the response to the release of a reservation"`
	ShareKey string      `json:"share_key,omitempty"`
	Holders  []VIPHolder `json:"holders" doc:"oldest first; of a cooling lease the last holder"`
	Since    time.Time   `json:"since" doc:"when the first holder got it; if it is reserved and not held, when it was reserved"`
	Until    *time.Time  `json:"until,omitempty" doc:"of a cooling lease: when another service can get it"`

	Reservation *VIPReservation `json:"reservation,omitempty" doc:"of a reserved address, held or not"`

	Revision uint64 `json:"revision"`
}

// VIPReservation is an operator's mark on an address, which keeps it after its holders.
type VIPReservation struct {
	For   string    `json:"for,omitempty" doc:"the only service that gets it: \"name\" or \"namespace/name\"; absent: any service that requests the address"`
	Since time.Time `json:"since"`
}

// ReservationSpec says which address to reserve, and for which service.
type ReservationSpec struct {
	Address string `toml:"address" json:"address,omitempty" doc:"an address of a pool"`
	Pool    string `toml:"pool" json:"pool,omitempty" doc:"without address: reserve any free address of this pool"`
	Family  string `toml:"family" json:"family,omitempty" enum:"ipv4,ipv6" doc:"with pool: the family; default the pool's, ipv4 if it has both"`
	For     string `toml:"for" json:"for,omitempty" doc:"the only service that gets it, which need not exist: \"name\" or \"namespace/name\"; default: any service that requests the address"`
}

// VIPHolder is one service that holds a lease.
type VIPHolder struct {
	Service string `json:"service" doc:"\"name\" or \"namespace/name\""`
	Source  string `json:"source"`
	Port    string `json:"port,omitempty" doc:"of a node port: the service port it stands for, \"80/tcp\", or \"health-check\""`
}

// VIPList is a page of leases: addresses in order, then node ports.
type VIPList struct {
	Items    []VIP  `json:"items"`
	Next     string `json:"next,omitempty" doc:"cursor of the next page; absent on the last"`
	Revision uint64 `json:"revision"`
}

// Pool is one pool of addresses with its usage. Counts of IPv6 pools stop at 2^53-1.
type Pool struct {
	Name       string         `json:"name"`
	CIDRs      []netip.Prefix `json:"cidrs"`
	Exclude    []netip.Prefix `json:"exclude"`
	AutoAssign bool           `json:"auto_assign"`
	Namespaces []string       `json:"namespaces,omitempty" doc:"of services that may have its addresses; absent: all"`
	Removed    bool           `json:"removed,omitempty" doc:"no longer in the configuration, but some addresses are held or kept"`
	Size       uint64         `json:"size" doc:"allocatable addresses, used or not"`
	Used       uint64         `json:"used"`
	UsedBy     []NamespaceUse `json:"used_by,omitempty" doc:"held addresses of each namespace that has some"`
	Cooling    uint64         `json:"cooling"`
	Reserved   uint64         `json:"reserved" doc:"reserved and not held"`
	HeldOut    uint64         `json:"held_out" doc:"the host's own, its gateways and overlaps"`
	HeldRanges []HeldOut      `json:"held_out_ranges,omitempty" doc:"where these are, and why; at most 256"`
	Free       uint64         `json:"free"`
	Alarms     []Problem      `json:"alarms"`
}

// NamespaceUse is how many addresses of a pool the services of a namespace hold.
type NamespaceUse struct {
	Namespace string `json:"namespace"`
	Addresses uint64 `json:"addresses"`
}

// HeldOut is a part of a pool that something else has, so that it is not allocated.
type HeldOut struct {
	Prefix  netip.Prefix `json:"prefix"`
	Reason  string       `json:"reason" enum:"own_address,gateway,subnet_end,overlap"`
	Message string       `json:"message" doc:"what has it: \"this host's own address on eth0\""`
}

// PoolList is every pool.
type PoolList struct {
	Items []Pool `json:"items"`
	Next  string `json:"next,omitempty" doc:"cursor of the next page; absent on the last"`
}

// Source is the status of one source of services.
type Source struct {
	Name     string     `json:"name"`
	Type     string     `json:"type"`
	Level    string     `json:"level" enum:"ok,warn,fail"`
	Synced   bool       `json:"synced" doc:"has delivered its first full list"`
	Stale    string     `json:"stale,omitempty" doc:"why its services may be stale"`
	Services int        `json:"services"`
	LastSync *time.Time `json:"last_sync,omitempty"`
	Restarts int        `json:"restarts"`
	Problems []Problem  `json:"problems"`
	Revision uint64     `json:"revision"`
}

// SourceList is every source, ordered by name.
type SourceList struct {
	Items    []Source `json:"items"`
	Next     string   `json:"next,omitempty" doc:"cursor of the next page; absent on the last"`
	Revision uint64   `json:"revision"`
}

// Event is one event.
type Event struct {
	ID      uint64    `json:"id" doc:"grows by one; unique within a run of the agent"`
	Time    time.Time `json:"time"`
	Kind    string    `json:"kind" doc:"stable and machine-readable: \"drift_repaired\""`
	Service string    `json:"service,omitempty"`
	Object  string    `json:"object,omitempty" doc:"the affected object"`
	Message string    `json:"message"`
	// Count and First are set only if the agent no longer lists all of these events.
	Count uint64     `json:"count,omitempty" doc:"events of this kind, service and object since first, with this one"`
	First *time.Time `json:"first,omitempty" doc:"time of the first of them"`
}

// EventList is a page of events, oldest first.
type EventList struct {
	Items []Event `json:"items"`
	Next  string  `json:"next,omitempty" doc:"cursor of the next page; absent on the last"`
	Last  uint64  `json:"last" doc:"pass it as since to get later events"`
}
