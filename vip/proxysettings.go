package vip

import (
	"cmp"
	"net/netip"
	"slices"
	"time"
)

// Limits and defaults of ProxySettings, as documented in docs/services.md.
const (
	DefaultConnectTimeout   = 3 * time.Second
	MinConnectTimeout       = 10 * time.Millisecond
	MaxConnectTimeout       = time.Minute
	DefaultIdleTimeout      = time.Hour
	DefaultHalfCloseTimeout = 30 * time.Second
	MinIdleTimeout          = time.Second        // also of the half-close timeout
	MaxIdleTimeout          = 7 * 24 * time.Hour // also of the half-close timeout
	MaxMaxConnections       = 10_000_000         // of a service, and of a backend
	MaxMaxQueue             = 65_535
	DefaultQueueTimeout     = 5 * time.Second
	MinQueueTimeout         = MinConnectTimeout
	MaxQueueTimeout         = MaxConnectTimeout
)

// ProxySettings has the settings of a service for dataplanes that relay connections themselves. Nearly all
// services have the defaults, so a service and its frontends share a pointer, which is nil then.
type ProxySettings struct {
	ConnectTimeout   time.Duration // until a backend has accepted; then another one is tried
	IdleTimeout      time.Duration // without a byte in either direction
	HalfCloseTimeout time.Duration // the same, after one side has ended its direction

	// Clients beyond MaxConnections, or that find every backend at its own limit, wait in a queue:
	// up to MaxQueue of them, for up to QueueTimeout. See Backend.MaxConnections.
	MaxConnections uint32 // open connections and UDP sessions; 0: no limit
	MaxQueue       uint32 // 0: no queue, so clients beyond a limit are refused
	QueueTimeout   time.Duration

	// The headers of the PROXY protocol, with TCP: the version that backends receive, and the
	// balancers in front of this host that must send one.
	ProxyProtocol   ProxyVersion
	AcceptProxyFrom []netip.Prefix
}

// RelayOf returns r for a Service: nil if it has the defaults.
func RelayOf(r ProxySettings) *ProxySettings {
	if r = r.orDefaults(); r.equal((*ProxySettings)(nil).Get()) {
		return nil
	}
	return &r
}

// Get returns the settings, with defaults for nil and for zero values.
func (r *ProxySettings) Get() ProxySettings {
	if r == nil {
		return ProxySettings{}.orDefaults()
	}
	return r.orDefaults()
}

func (r ProxySettings) orDefaults() ProxySettings {
	r.ConnectTimeout = cmp.Or(r.ConnectTimeout, DefaultConnectTimeout)
	r.IdleTimeout = cmp.Or(r.IdleTimeout, DefaultIdleTimeout)
	r.HalfCloseTimeout = cmp.Or(r.HalfCloseTimeout, DefaultHalfCloseTimeout)
	r.QueueTimeout = cmp.Or(r.QueueTimeout, DefaultQueueTimeout)
	return r
}

func (r ProxySettings) equal(o ProxySettings) bool {
	return r.ConnectTimeout == o.ConnectTimeout && r.IdleTimeout == o.IdleTimeout && r.HalfCloseTimeout == o.HalfCloseTimeout &&
		r.MaxConnections == o.MaxConnections && r.MaxQueue == o.MaxQueue && r.QueueTimeout == o.QueueTimeout &&
		r.ProxyProtocol == o.ProxyProtocol && slices.Equal(r.AcceptProxyFrom, o.AcceptProxyFrom)
}

// SameProxySettings reports whether a and b are the same settings.
func SameProxySettings(a, b *ProxySettings) bool { return a == b || a.Get().equal(b.Get()) }
