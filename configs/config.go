package configs

import (
	"net/netip"
	"time"

	"github.com/ironvip/ironvip/internal/tomlfile"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/vip/spec"
)

// Config is ironvip.toml, validated and with every default filled in.
// docs/config.md is its reference.
type Config struct {
	Node      Node      `toml:"node"`
	API       API       `toml:"api"`
	Dataplane Dataplane `toml:"dataplane"`
	IPAM      IPAM      `toml:"ipam"`
	Consul    Consul    `toml:"consul"`
	Pools     []Pool    `toml:"pool"`
	Sources   []Source  `toml:"source"`
	Log       Log       `toml:"log"`

	Path       string `toml:"-"` // the file it was read from, whether or not it exists
	IsLastGood bool   `toml:"-"` // it is the saved last good one, and Path is refused
	doc        *tomlfile.Document
}

// Node is this host.
type Node struct {
	Name     string `toml:"name"`      // the host's name where nothing is written
	Zone     string `toml:"zone"`      // where it stands, as backends name their zones; "" is nowhere known
	StateDir string `toml:"state_dir"` // absolute
}

// API is where the agent answers.
type API struct {
	Socket     string   `toml:"socket"`      // absolute path of a unix socket; "" is none
	SocketMode FileMode `toml:"socket_mode"` // permissions of the socket
	Listen     string   `toml:"listen"`      // loopback address and port; "" is none
}

// Dataplane is what forwards traffic.
type Dataplane struct {
	Mode              string         `toml:"mode"`                // ModeAuto, ModeIPVS or ModeProxy
	Role              string         `toml:"role"`                // RoleDirector or RoleRealServer
	NodePortAddresses []AddressRange `toml:"node_port_addresses"` // empty: the host's primary addresses
	ResyncInterval    spec.Duration  `toml:"resync_interval"`     // how often drift is looked for
	Device            string         `toml:"device"`              // the interface that carries the VIPs
}

// The modes of the dataplane.
const (
	ModeAuto  = "auto"
	ModeIPVS  = "ipvs"
	ModeProxy = "proxy"
)

// The roles of a host in the dataplane. A director balances; a real server is
// a backend of direct routing and tunnels, and balances nothing.
const (
	RoleDirector   = "director"
	RoleRealServer = "real-server"
)

// IPAM is how addresses and node ports are given out.
type IPAM struct {
	Store      string         `toml:"store"`       // StoreBolt or StoreConsul: also of registrations and operators' states
	PodCIDRs   []netip.Prefix `toml:"pod_cidrs"`   // never handed out
	ReuseDelay spec.Duration  `toml:"reuse_delay"` // how long a released address rests
	// OrphanGrace is how long what a service holds is kept when no source names it.
	OrphanGrace spec.Duration `toml:"orphan_grace"`
	NodePorts   PortRange     `toml:"node_ports"` // the range node ports are drawn from
	// ConsulAddress is short for Consul.Address, and empty once that has it.
	ConsulAddress string `toml:"consul_address"`
}

// The stores.
const (
	StoreBolt   = "bolt"   // on this host's disk
	StoreConsul = "consul" // in Consul, for a fleet
)

// Pool is a named set of addresses to give out.
type Pool struct {
	Name       string         `toml:"name"`
	CIDRs      []netip.Prefix `toml:"cidrs"`
	Exclude    []netip.Prefix `toml:"exclude"`
	AutoAssign bool           `toml:"auto_assign"` // for services that name no pool; true where nothing is written
}

// Defaults implements strict.Defaulter.
func (p *Pool) Defaults() { p.AutoAssign = true }

// Log is what the agent says of itself.
type Log struct {
	Level  string `toml:"level"`  // "debug", "info", "warn" or "error"
	Format string `toml:"format"` // "text" or "json"
}

// MaxSize is how many bytes ironvip.toml, and a file that it names, may have.
const MaxSize = 1 << 20

// Defaults of ironvip.toml, as configs/ironvip.toml shows them.
const (
	DefaultStateDir       = "/var/lib/ironvip"
	DefaultSocket         = "/run/ironvip/ironvip.sock"
	DefaultSocketMode     = 0o660
	DefaultDevice         = "ironvip0"
	DefaultResyncInterval = 30 * time.Second
	DefaultReuseDelay     = 5 * time.Minute
	ConfigName            = "ironvip.toml"
	ServicesDir           = "services.d"
)

// Default returns the configuration of an empty file, apart from what depends
// on the host: the node's name and the source that services.d makes.
func Default() *Config {
	return &Config{
		Node: Node{StateDir: DefaultStateDir},
		API:  API{Socket: DefaultSocket, SocketMode: DefaultSocketMode},
		Dataplane: Dataplane{Mode: ModeAuto, Role: RoleDirector, ResyncInterval: spec.Duration(DefaultResyncInterval),
			Device: DefaultDevice},
		IPAM:   IPAM{Store: StoreBolt, ReuseDelay: spec.Duration(DefaultReuseDelay), OrphanGrace: spec.Duration(ipam.DefaultOrphanGrace), NodePorts: PortRange{30000, 32767}},
		Consul: Consul{Prefix: DefaultConsulPrefix},
		Log:    Log{Level: "info", Format: "text"},
	}
}

// SpecPools returns the pools as services are checked against them.
func (c *Config) SpecPools() []spec.Pool {
	out := make([]spec.Pool, 0, len(c.Pools))
	for _, p := range c.Pools {
		out = append(out, spec.Pool{Name: p.Name, CIDRs: p.CIDRs, Exclude: p.Exclude, AutoAssign: p.AutoAssign})
	}
	return out
}

// ipamPools returns the pools as the allocator takes them.
func (c *Config) ipamPools() []ipam.Pool {
	out := make([]ipam.Pool, 0, len(c.Pools))
	for _, p := range c.Pools {
		out = append(out, ipam.Pool{Name: p.Name, CIDRs: p.CIDRs, Exclude: p.Exclude, AutoAssign: p.AutoAssign})
	}
	return out
}

// IPAMConfig returns what the allocator goes by.
func (c *Config) IPAMConfig() ipam.Config {
	return ipam.Config{Pools: c.ipamPools(), PodCIDRs: c.IPAM.PodCIDRs, ReuseDelay: time.Duration(c.IPAM.ReuseDelay),
		OrphanGrace: time.Duration(c.IPAM.OrphanGrace), NodePorts: ipam.PortRange{First: c.IPAM.NodePorts.First, Last: c.IPAM.NodePorts.Last}}
}
