package configs

import (
	"math"
	"net/netip"
	"time"

	"github.com/ironvip/ironvip/health"
	"github.com/ironvip/ironvip/hook"
	"github.com/ironvip/ironvip/internal/tomlfile"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

// Config is ironvip.toml, validated and with every default filled in. docs/config.md documents it.
type Config struct {
	Node      Node      `toml:"node"`
	API       API       `toml:"api"`
	Dataplane Dataplane `toml:"dataplane"`
	IPAM      IPAM      `toml:"ipam"`
	Health    Health    `toml:"health"`
	Metrics   Metrics   `toml:"metrics"`
	Announce  Announce  `toml:"announce"`
	DNS       DNS       `toml:"dns"`
	Consul    Consul    `toml:"consul"`
	Etcd      Etcd      `toml:"etcd"`
	Pools     []Pool    `toml:"pool"`
	Quotas    []Quota   `toml:"quota"`
	Sources   []Source  `toml:"source"`
	Hooks     []Hook    `toml:"hook"`
	Log       Log       `toml:"log"`

	Path       string `toml:"-"` // its file, whether or not it exists
	IsLastGood bool   `toml:"-"` // this is the last good configuration; the file at Path is refused
	doc        *tomlfile.Document
}

// Health has the settings of health checks.
type Health = health.Config

// Hook is a program or a webhook for events.
type Hook = hook.Config

// Metrics contains the settings of /metrics.
type Metrics struct {
	// Backends are the services whose single backends have time series, as patterns of path.Match: NAMESPACE/NAME.
	Backends []string `toml:"backends"`
}

// Node is this host.
type Node struct {
	Name     string `toml:"name"`                    // default: the host's name
	Zone     string `toml:"zone" values:"name..253"` // the host's zone, as in the backends' zones; "": unknown
	StateDir string `toml:"state_dir"`               // absolute
}

// Dataplane contains the settings of the dataplane.
type Dataplane struct {
	Mode              string         `toml:"mode" values:"auto|ipvs|nft|proxy|off"`
	Role              string         `toml:"role" values:"director|real-server"`
	NodePortAddresses []AddressRange `toml:"node_port_addresses"`              // empty: the host's primary addresses
	Namespaces        []string       `toml:"namespaces"`                       // of the services that this host serves; empty: all
	Labels            []string       `toml:"labels"`                           // "key" or "key=value", that each service which this host serves has
	ResyncInterval    spec.Duration  `toml:"resync_interval" values:"1s..24h"` // interval of the checks for drift
	Device            string         `toml:"device"`                           // the interface with the VIPs
	SkLookup          string         `toml:"sk_lookup" values:"auto|never"`
	Connect           string         `toml:"connect" values:"off|auto|on"`
	ConnectNamespaces string         `toml:"connect_namespaces" values:"own|all"`
	ProxySocket       string         `toml:"proxy_socket"` // of the process of the userspace dataplane; "": the agent is that process
	// HardStopAfter is how long the open connections of a dataplane that was replaced may go on.
	HardStopAfter spec.Duration `toml:"hard_stop_after" values:"0s..168h"`
}

// Serves reports whether a host with these settings serves a service.
func (d *Dataplane) Serves(s *vip.Service) bool {
	selector := vip.Selector{Namespaces: d.Namespaces, Labels: d.Labels}
	return selector.Selects(s.Key, s.Labels)
}

// The modes of the dataplane.
const (
	ModeAuto  = "auto"
	ModeIPVS  = "ipvs"
	ModeNFT   = "nft"
	ModeProxy = "proxy"
	ModeOff   = "off" // none: see package plane/off
)

// The uses of the kernel's sk_lookup by the userspace dataplane.
const (
	SkLookupAuto = "auto"
)

// The uses of balancing at connect(), beside the dataplane.
const (
	ConnectOff  = "off"
	ConnectAuto = "auto"
	ConnectOn   = "on"
)

// The network namespaces whose programs are balanced at connect(): that of the agent, or all of the host.
const (
	ConnectOwn = "own"
	ConnectAll = "all"
)

// The roles of a host in the dataplane. A director balances. A real server is a backend of direct
// routing and tunnels, and balances nothing.
const (
	RoleDirector   = "director"
	RoleRealServer = "real-server"
)

// IPAM contains the settings for the allocation of addresses and node ports.
type IPAM struct {
	Store      string         `toml:"store" values:"bolt|consul|etcd"` // also for registrations and overrides
	PodCIDRs   []netip.Prefix `toml:"pod_cidrs"`                       // never assigned
	ReuseDelay spec.Duration  `toml:"reuse_delay" values:"0s..168h"`   // cooldown of a released address
	// OrphanGrace is how long the leases of a service remain when no source defines it.
	OrphanGrace spec.Duration `toml:"orphan_grace" values:"1s..168h"`
	NodePorts   PortRange     `toml:"node_ports"` // the range of assigned node ports
}

// The types of stores.
const (
	StoreBolt   = "bolt"   // on this host's disk
	StoreConsul = "consul" // in Consul, for a fleet
	StoreEtcd   = "etcd"   // in etcd, for a fleet
)

// Pool is a named set of addresses to assign.
type Pool struct {
	Name       string         `toml:"name"`
	CIDRs      []netip.Prefix `toml:"cidrs"`
	Exclude    []netip.Prefix `toml:"exclude"`
	AutoAssign bool           `toml:"auto_assign"`                          // for services that name no pool; default true
	Namespaces []string       `toml:"namespaces"`                           // of services that may have its addresses; none: all
	Announce   string         `toml:"announce" values:"|off|l2|bgp|routes"` // the mode of announcing; "": as [announce]

	// Of announcing; nil or empty: as [announce].
	Priority    *int     `toml:"announce_priority" values:"0..255"`
	Standby     *bool    `toml:"announce_standby"`
	MinBackends *Least   `toml:"announce_min_backends"`
	Interfaces  []string `toml:"announce_interfaces"`

	BGP PoolBGP `toml:"bgp"`

	AnnounceZone string `toml:"announce_zone" values:"name..253"` // hosts of other zones are on standby; "": none
}

// Quota bounds what the services of one namespace may hold.
type Quota struct {
	Namespace string `toml:"namespace"`
	Addresses int    `toml:"addresses" values:"0..2147483647"` // over all pools
	Services  int    `toml:"services" values:"0..2147483647"`
}

// Defaults implements strict.Defaulter.
func (q *Quota) Defaults() { q.Addresses, q.Services = math.MaxInt32, math.MaxInt32 }

// Defaults implements strict.Defaulter.
func (p *Pool) Defaults() { p.AutoAssign = true }

// Log contains the settings of the agent's log.
type Log struct {
	Level  string `toml:"level" values:"debug|info|warn|error"`
	Format string `toml:"format" values:"text|json"`
}

// MaxSize bounds the size in bytes of ironvip.toml and of the files that it names.
const MaxSize = 1 << 20

// Defaults of ironvip.toml.
const (
	DefaultStateDir = "/var/lib/ironvip"
	DefaultSocket   = "/run/ironvip/ironvip.sock"
	DefaultDevice   = "ironvip0"
	ConfigName      = "ironvip.toml"
	ServicesDir     = "services.d"
)

// Default returns the configuration of an empty file. It lacks what depends on the host: the node's
// name and the source for services.d.
func Default() *Config {
	return &Config{
		Node: Node{StateDir: DefaultStateDir},
		API:  API{Socket: DefaultSocket, SocketMode: 0o660, RateLimit: DefaultAPIRate},
		Dataplane: Dataplane{Mode: ModeAuto, Role: RoleDirector, ResyncInterval: spec.Duration(30 * time.Second),
			Device: DefaultDevice, SkLookup: SkLookupAuto, Connect: ConnectOff, ConnectNamespaces: ConnectOwn, HardStopAfter: spec.Duration(10 * time.Minute)},
		IPAM:   IPAM{Store: StoreBolt, ReuseDelay: spec.Duration(ipam.DefaultReuseDelay), OrphanGrace: spec.Duration(ipam.DefaultOrphanGrace), NodePorts: PortRange(ipam.DefaultNodePorts)},
		Health: health.NewConfig(), Announce: newAnnounce(), DNS: newDNS(),
		Consul: Consul{Prefix: DefaultPrefix}, Etcd: Etcd{Prefix: DefaultPrefix},
		Log: Log{Level: "info", Format: "text"},
	}
}

// SpecPools returns the pools in the form that services are checked against.
func (c *Config) SpecPools() []spec.Pool {
	out := make([]spec.Pool, 0, len(c.Pools))
	for _, p := range c.Pools {
		out = append(out, spec.Pool{Name: p.Name, CIDRs: p.CIDRs, Exclude: p.Exclude, AutoAssign: p.AutoAssign, Namespaces: p.Namespaces})
	}
	return out
}

// IPAMConfig returns the allocator's configuration.
func (c *Config) IPAMConfig() ipam.Config {
	out := ipam.Config{PodCIDRs: c.IPAM.PodCIDRs, ReuseDelay: time.Duration(c.IPAM.ReuseDelay),
		OrphanGrace: time.Duration(c.IPAM.OrphanGrace), NodePorts: ipam.PortRange(c.IPAM.NodePorts)}
	for _, p := range c.Pools {
		out.Pools = append(out.Pools, ipam.Pool{Name: p.Name, CIDRs: p.CIDRs, Exclude: p.Exclude, AutoAssign: p.AutoAssign, Namespaces: p.Namespaces})
	}
	for _, q := range c.Quotas {
		out.Quotas = append(out.Quotas, ipam.Quota{Namespace: q.Namespace, Addresses: uint64(q.Addresses), Services: q.Services})
	}
	return out
}
