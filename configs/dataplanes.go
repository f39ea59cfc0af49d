package configs

import (
	"net/netip"

	"github.com/ironvip/ironvip/internal/firewall"
	"github.com/ironvip/ironvip/ipvs/dataplane"
	"github.com/ironvip/ironvip/nft"
	"github.com/ironvip/ironvip/plane"
	"github.com/ironvip/ironvip/plane/off"
	"github.com/ironvip/ironvip/proxy/remote"
)

// Dataplanes lists the dataplanes, in the order in which mode auto tries them: it never gets to the choice of none. A new one
// needs a line here.
var Dataplanes = []*plane.Kind{
	&dataplane.Kind,
	&nft.Kind,
	&remote.Kind,
	&off.Kind,
}

// DataplaneOf returns the dataplane of a mode, or nil: mode auto has none.
func DataplaneOf(mode string) *plane.Kind {
	for _, k := range Dataplanes {
		if k.Mode == mode {
			return k
		}
	}
	return nil
}

// FirewallQuery returns what must pass the rules of other programs with the dataplane of a mode.
func FirewallQuery(mode, device string, realServer bool, pools []netip.Prefix) firewall.Query {
	q := firewall.Query{Pools: pools, Paths: DataplaneOf(mode).Packets}
	if realServer { // it only takes packets to VIPs from directors
		q.Paths = []firewall.Path{firewall.ToVIP}
	}
	for _, k := range Dataplanes {
		q.Ours = append(q.Ours, k.TablesOf(device)...)
	}
	return q
}

// PoolCIDRs returns the ranges of all pools.
func (c *Config) PoolCIDRs() (out []netip.Prefix) {
	for i := range c.Pools {
		out = append(out, c.Pools[i].CIDRs...)
	}
	return out
}

// Modes returns the modes of all dataplanes.
func Modes() []string {
	out := make([]string, len(Dataplanes))
	for i, k := range Dataplanes {
		out[i] = k.Mode
	}
	return out
}
