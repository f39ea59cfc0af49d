package membership

import "github.com/ironvip/ironvip/vip"

// Checks is what a host's own health checks find, a part of its Node. It is immutable.
type Checks struct {
	Probes int    `json:"probes"`          // targets that this host probes
	All    bool   `json:"all,omitempty"`   // it probes all of its targets itself
	Alone  bool   `json:"alone,omitempty"` // because it is cut off from Consul
	Bad    []Seen `json:"bad,omitempty"`   // targets that are not healthy, by key
	More   int    `json:"more,omitempty"`  // the number of those that are left out
}

// Seen is a target that a host finds unhealthy, or about which it knows nothing yet.
type Seen struct {
	Key    string     `json:"key"` // as in the fleet's tree
	Health vip.Health `json:"health"`
	Since  int64      `json:"since"` // Unix milliseconds of the host's clock
	Reason string     `json:"reason,omitempty"`
}
