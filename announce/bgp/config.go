package bgp

import (
	"log/slog"
	"net/netip"
	"reflect"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/announce/bgp/message"
)

// Config are the settings of a Speaker. They are valid: the configuration has been checked.
type Config struct {
	RouterID netip.Addr // an IPv4 address, unique in the AS
	Peers    []announce.BGPPeer
	// Record is the file that remembers the peers over a restart. It must not survive a reboot: use
	// the runtime folder. "": restarts are not recognized.
	Record string
	// Inherited are sessions of an earlier process, for New. Sessions of peers with other settings are closed,
	// and those of other peers with a NOTIFICATION.
	Inherited []HandedOver

	Log *slog.Logger // nil: discards
	// Report is called when the state of a session or its reason changes, or its prefixes were sent, in the order of the
	// changes of a peer. It must not block. May be nil.
	Report func(Session)
}

// options are what can change during a session: the settings of the routes, and whether the host drains.
type options struct {
	announce.BGPPeer
	draining bool
}

// path returns the attributes of a route for the router, and whether the router gets the route.
func (o *options) path(r announce.Route) (path message.PathAttributes, gets bool) {
	a, gets := r.Attributes(o.Name(), o.Routes(), o.IBGP(), o.draining)
	path = message.PathAttributes{ASN: o.LocalASN, IBGP: o.IBGP(), Prepend: a.Prepend, MED: a.MED, LocalPref: a.LocalPref, LinkBandwidth: float32(a.LinkBandwidth)}
	for _, text := range a.Communities {
		_ = path.AddCommunity(text) // the configuration has refused others
	}
	return path, gets
}

// sameSession reports whether a session goes on with other settings.
func sameSession(p, q announce.BGPPeer) bool { return reflect.DeepEqual(ofSession(p), ofSession(q)) }

// ofSession returns the settings whose change begins a new session.
func ofSession(p announce.BGPPeer) announce.BGPPeer {
	p.Communities, p.MED, p.LocalPref, p.Prepend, p.LinkBandwidth = nil, nil, nil, nil, ""
	p.BFDInterval, p.BFDMultiplier = 0, 0
	return p
}
