package remote

import (
	"github.com/ironvip/ironvip/internal/firewall"
	"github.com/ironvip/ironvip/plane"
	"github.com/ironvip/ironvip/proxy"
)

// Kind is the userspace dataplane. The agent opens it: it may run inside of the agent.
var Kind = plane.Kind{Mode: "proxy", Userspace: true, Packets: []firewall.Path{firewall.ToVIP}, Unsupported: proxy.Unsupported}
