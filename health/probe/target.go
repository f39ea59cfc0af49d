package probe

import (
	"net/netip"
	"time"
	"unique"

	"github.com/ironvip/ironvip/vip"
)

// Target is an address with the check that probes it, and for a backend of direct routing or a tunnel
// the path of its clients. It is comparable and takes 48 bytes, because equal checks and paths are
// stored once. Create it with NewTarget.
type Target struct {
	Addr  netip.AddrPort
	check unique.Handle[vip.HealthCheck]
	path  unique.Handle[vip.ProbePath] // zero: a connection to Addr
}

// NewTarget returns the target that probes addr with a check. It brings both into one form, so that
// checks that mean the same make equal targets: an IPv4 address in IPv6 form becomes IPv4; the
// check's Port is cleared, because addr has the port; times and counts that are not set get the
// defaults, and those outside the limits of package vip get the nearest limit.
func NewTarget(addr netip.AddrPort, check vip.HealthCheck) Target {
	check.Port = 0
	check.Interval = limit(check.Interval, vip.DefaultCheckInterval, vip.MinCheckInterval, vip.MaxCheckInterval)
	fast := min(vip.DefaultCheckFastInterval, check.Interval)
	check.FastInterval = limit(check.FastInterval, fast, vip.MinCheckInterval, check.Interval)
	check.Timeout = limit(check.Timeout, vip.DefaultCheckTimeout, time.Millisecond, vip.MaxCheckTimeout)
	check.Rise = limit(check.Rise, vip.DefaultRise, 1, vip.MaxRiseFall)
	check.Fall = limit(check.Fall, vip.DefaultFall, 1, vip.MaxRiseFall)
	return Target{Addr: netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port()), check: unique.Make(check)}
}

// Along returns the target with a path, which leads to the target's address. A command uses none, but is another one on each
// host with ForwardHost.
func (t Target) Along(p vip.ProbePath) Target {
	if t.path = (unique.Handle[vip.ProbePath]{}); !p.IsZero() && (t.Check().Type != vip.CheckExec || p.Forward == vip.ForwardHost) {
		t.path = unique.Make(p)
	}
	return t
}

// Path returns the path of the target's probes, or the zero value for a connection to its address.
func (t Target) Path() vip.ProbePath {
	if t.path == (unique.Handle[vip.ProbePath]{}) {
		return vip.ProbePath{}
	}
	return t.path.Value()
}

// Private reports whether the target is another one on each host: a VIP that the host has for its own programs. Each host probes
// it, and only its own result counts.
func (t Target) Private() bool { return t.Path().Forward == vip.ForwardHost }

// limit returns v within bounds, or the default for 0.
func limit[T time.Duration | uint8](v, def, lo, hi T) T {
	if v == 0 {
		return def
	}
	return min(max(v, lo), hi)
}

// Check returns the check in the form of NewTarget. It panics for the zero Target.
func (t Target) Check() vip.HealthCheck { return t.check.Value() }

// String returns the type and the address, for example "http 10.0.0.1:80", for logs. With a path, it
// adds " by way of 10.96.0.1".
func (t Target) String() string {
	text := t.Check().Type.String() + " " + t.Addr.String()
	if p := t.Path(); !p.IsZero() && !t.Private() {
		text += " by way of " + p.VIP.String()
	}
	return text
}

// Window returns the time that the target's check needs to notice a failure.
func (t Target) Window() time.Duration {
	c := t.Check()
	return time.Duration(c.Fall)*c.Interval + c.Timeout
}
