package pipeline

import (
	"slices"

	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/vip"
)

// Compiled is the result for one service: a row of the compiled table.
type Compiled struct {
	Service *vip.Service // the service that was compiled: shared with its row, must not be changed
	// ServiceRev is the newest revision of the service's row that is compiled together with the
	// allocator's answer to it.
	ServiceRev uint64
	// Frontends are the rows of the service's live frontends, sorted by key, without those that
	// drain.
	Frontends []*FrontendRow
	// HealthPort is the port of the host's node-port addresses that reports LocalReady, the number
	// of the service's ready backends on this node. 0: the service has no health port.
	HealthPort uint16
	// NotHere states that the service has no frontend because this host does not serve it: it is
	// outside of the host's scope, or the host is a real server and none of the service's backends are on it.
	NotHere    bool
	LocalReady int32
	// Problems are what the allocator could not grant, what is not supported, and what another
	// service already uses.
	Problems []vip.Problem
}

// FrontendRow is a row of the table of frontends, shared.
type FrontendRow = table.Row[vip.Frontend]

// FrontendsRev returns the newest revision of the frontends, or 0 without frontends.
func (c *Compiled) FrontendsRev() (rev uint64) {
	for _, f := range c.Frontends {
		rev = max(rev, f.Rev)
	}
	return rev
}

// has reports whether a frontend with this key is live.
func (c *Compiled) has(key vip.FrontendKey) bool {
	_, live := find(c.Frontends, key)
	return live
}

// find returns the position of a key in live, which is sorted by key.
func find(live []*FrontendRow, key vip.FrontendKey) (int, bool) {
	return slices.BinarySearchFunc(live, key, func(f *FrontendRow, k vip.FrontendKey) int {
		return vip.CompareFrontendKeys(f.Value.Key, k)
	})
}

// KeyOfCompiled returns the key of the service that was compiled.
func KeyOfCompiled(c *Compiled) vip.ServiceKey { return c.Service.Key }

// SameCompiled reports whether a and b are equal, without reflection.
func SameCompiled(a, b Compiled) bool {
	return a.Service == b.Service &&
		a.ServiceRev == b.ServiceRev &&
		a.HealthPort == b.HealthPort &&
		a.LocalReady == b.LocalReady &&
		a.NotHere == b.NotHere &&
		slices.Equal(a.Frontends, b.Frontends) &&
		slices.Equal(a.Problems, b.Problems)
}
