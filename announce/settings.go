package announce

import (
	"encoding/json"
	"hash/fnv"
	"net/netip"
	"reflect"
	"time"
)

// Settings are all settings of the announcer, secrets included. The agent reads the configuration
// and sends them.
type Settings struct {
	Node     string `json:"node"` // the name of this host
	Weight   int    `json:"weight"`
	Draining bool   `json:"draining,omitempty"`

	Device     string   `json:"device"`               // the interface with the VIPs
	Interfaces []string `json:"interfaces,omitempty"` // L2
	Pools      []Pool   `json:"pools"`

	Listen    string           `json:"listen"` // UDP address of the heartbeats
	Peers     []netip.AddrPort `json:"peers,omitempty"`
	Keys      [][]byte         `json:"keys,omitempty"` // the first one signs
	Heartbeat time.Duration    `json:"heartbeat"`
	Missed    int              `json:"missed"`
	Settle    time.Duration    `json:"settle"`
	// Hold is how long announcements stay when the agent is gone.
	Hold time.Duration `json:"hold"`

	RouterID netip.Addr `json:"router_id,omitzero"` // of BGP: an IPv4 address
	BGP      []BGPPeer  `json:"bgp,omitempty"`
}

// Equal reports whether two settings are the same.
func (s Settings) Equal(other Settings) bool { return reflect.DeepEqual(s, other) }

// Pool is a range of VIPs with its mode.
type Pool struct {
	Name  string         `json:"name"`
	Mode  Mode           `json:"mode"`
	CIDRs []netip.Prefix `json:"cidrs"`
}

// BGPPeer is a router to announce routes to.
type BGPPeer struct {
	Peer        netip.Addr `json:"peer"`                // invalid with Interface
	Interface   string     `json:"interface,omitempty"` // unnumbered
	ASN         uint32     `json:"asn"`
	LocalASN    uint32     `json:"local_asn"`
	Password    string     `json:"password,omitempty"`
	Communities []string   `json:"communities,omitempty"`
	MED         uint32     `json:"med,omitempty"`
	LocalPref   uint32     `json:"local_pref,omitempty"` // iBGP only; 0: the usual 100
	Multihop    int        `json:"multihop,omitempty"`   // the largest number of hops to it; 0: on the same link
	TTLSecurity bool       `json:"ttl_security,omitempty"`

	BFDInterval   time.Duration `json:"bfd_interval,omitempty"` // 0: no BFD
	BFDMultiplier int           `json:"bfd_multiplier,omitempty"`
}

// Announces reports whether any pool is announced.
func (s *Settings) Announces() bool { return s.Uses(L2) || s.Uses(BGP) || s.Uses(Routes) }

// Uses reports whether any pool uses the mode.
func (s *Settings) Uses(m Mode) bool {
	for _, p := range s.Pools {
		if p.Mode == m {
			return true
		}
	}
	return false
}

// Ranges returns the ranges of the pools with a mode.
func (s *Settings) Ranges(m Mode) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range s.Pools {
		if p.Mode == m {
			out = append(out, p.CIDRs...)
		}
	}
	return out
}

// Digest is equal on hosts that decide alike: it covers the pools and the times.
func (s *Settings) Digest() uint64 {
	shared, err := json.Marshal([]any{s.Pools, s.Heartbeat, s.Missed, s.Settle})
	if err != nil {
		panic("announce: settings: " + err.Error()) // plain values
	}
	h := fnv.New64a()
	h.Write(shared)
	return h.Sum64()
}

// Timing returns the times of the decision.
func (s *Settings) Timing() Timing {
	return Timing{Settle: s.Settle, Handover: s.Heartbeat * time.Duration(s.Missed), Leave: leave}
}

// leave is how long the routes of a draining host stay after routers were asked to avoid them. A
// router applies that within one run of its decision; 2 s leaves room for slow ones.
const leave = 2 * time.Second
