package l2

import (
	"log/slog"
	"net/netip"
	"time"

	"go4.org/netipx"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/announce/l2/frame"
	"github.com/ironvip/ironvip/announce/l2/link"
)

// Config is the input of a Speaker. It is valid: the configuration has been checked.
type Config struct {
	// LANs have the ranges of virtual addresses, which the gate guards, and the Ethernet interfaces at which
	// they are announced. Interfaces may be missing, appear and vanish.
	LANs []announce.LAN
	// Device is the interface that has the virtual addresses, usually "ironvip0". Addresses in the
	// pools that are on any other interface are the host's own, and the gate doesn't affect them.
	Device string
	// DeadMan is how long the gate stays open after the last Refresh: heartbeat x missed.
	DeadMan time.Duration
	// Record is a file that remembers former settings of interfaces until Remove, in a folder that
	// ends with the host's run. It can't be changed. "": they are not restored after the Speaker's end.
	Record string
	Log    *slog.Logger
	// Report is called at each change of the state of an address, an interface or the gate. The calls
	// are in order. It must not block and must not call the Speaker.
	Report func(Report)
}

func (c *Config) filter() link.Filter {
	f := link.Filter{Interfaces: announce.Interfaces(c.LANs), Device: c.Device}
	for _, l := range c.LANs {
		f.Pools = append(f.Pools, l.CIDRs...)
	}
	return f
}

// guarded returns the pools without the host's own addresses.
func (c *Config) guarded(own []netip.Addr) *netipx.IPSet {
	var b netipx.IPSetBuilder
	for _, p := range c.filter().Pools {
		b.AddPrefix(p)
	}
	for _, a := range own {
		b.Remove(a)
	}
	set, _ := b.IPSet() // it fails for invalid prefixes only
	return set
}

// Report is the state of an address (Addr is valid), of an interface (only Interface is set) or of
// the gate (neither is set).
type Report struct {
	Addr      netip.Addr
	At        string // of an address: the interfaces of its LAN
	Interface string
	State     State
	MAC       frame.MAC // of the other station in a conflict
	Reason    string
	Since     time.Time
}

// State is a state in words.
type State string

// States of an address.
const (
	Waiting   State = "waiting"   // no usable interface, or no Refresh yet
	Probing   State = "probing"   // another station may have the address; takes 4 to 7 s, in IPv6 1 to 2 s
	Announced State = "announced" // this host answers for the address
	Conflict  State = "conflict"  // another station has the address; it is claimed again after that has gone
	Released  State = "released"  // this host no longer answers
)

// States of an interface.
const (
	LinkUp      State = "link up"
	LinkDown    State = "link down"    // no carrier, or set down
	LinkMissing State = "link missing" // no interface of that name
	LinkInvalid State = "link invalid" // not an Ethernet interface
)

// States of the gate.
const (
	GateOpen     State = "gate open"     // since the first Refresh after the start or after a lapse
	GateClosed   State = "gate closed"   // no Refresh in time: all addresses are released
	GateRestored State = "gate restored" // another program had changed or deleted the tables
	GateFailed   State = "gate failed"   // the tables can't be written; it is tried again
)
