// Package plane says what a dataplane is to the rest of the program: a Kind, which is one entry of configs.Dataplanes. All that
// depends on the dataplane asks its Kind, so that a new one is a folder and a line.
package plane

import (
	"context"
	"log/slog"
	"net/netip"

	"github.com/ironvip/ironvip/internal/firewall"
	"github.com/ironvip/ironvip/internal/metric"
	"github.com/ironvip/ironvip/plane/kernel/host"
	"github.com/ironvip/ironvip/plane/kernel/usage"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/vip"
)

// Kind describes a dataplane. Only Mode and Open are required.
type Kind struct {
	Mode       string // selects it as dataplane.mode
	RealServer bool   // it can run on a real server
	// Userspace says that it forwards with the sockets of a process, which ends the connections with it. BeforeSockets says
	// that it takes the packets of its frontends before any socket gets them.
	Userspace, BeforeSockets bool

	// Needs returns what it needs of this host; nil: nothing, also no rights.
	Needs func(realServer bool) []host.Finding
	// Reads is what Needs reads, for a user without the rights, such as "nf_tables".
	Reads string
	// Tables returns the names of its nftables tables with a device; nil: it has none.
	Tables func(device string) []string
	// Packets are those that rules of other programs have to let pass.
	Packets []firewall.Path

	// Unsupported returns why it can't serve a frontend; nil: it serves each. Ignored returns a problem for each part of a
	// service that has no effect; nil: none. Both are pure.
	Unsupported func(*vip.Frontend) error
	Ignored     func(*vip.Service) []vip.Problem

	// Metrics are those of this dataplane alone; nil: none.
	Metrics *metric.Group
	// Open opens it. Nil: the agent knows how, which is so for the userspace proxy, because that may run inside of it.
	Open func(Host) (Opened, error)
	// Find returns what an earlier process has left here, or nil; it changes nothing. Its error is a Blind one if the kernel
	// lacks the part where something could be. A nil Find: nothing outlives a process.
	Find func(context.Context, Host) (Leaver, error)
}

// Blind is why there can be nothing that an earlier process has left.
type Blind struct {
	Lacks error // the error of the kernel
}

// Error returns what the kernel lacks.
func (b Blind) Error() string { return b.Lacks.Error() }

// Host is what a dataplane gets of the agent.
type Host struct {
	Device     string                // that has the VIPs
	Owns       func(netip.Addr) bool // whether an address may be ours; nil for Find: only what is on record is
	PodCIDRs   func() []netip.Prefix
	RealServer bool
	Log        *slog.Logger
}

// Opened is an open dataplane. Only its Plane is required. Closing it is closing its Leaver.
type Opened struct {
	reconcile.Plane
	Leaver   Leaver                // its end, when another dataplane serves; nil: it has nothing to end
	Findings func() []host.Finding // on this host, now
	Metrics  []metric.Collector
	Paths    ProbePaths // nil: none
}

// Leaver is a dataplane that another one replaces. It leaves in three steps, which may be repeated, also by another process.
type Leaver interface {
	// Left reads what there is. It comes before all other methods.
	Left(context.Context) (usage.Left, error)
	Leave(context.Context) error // takes no new connections
	Open(context.Context) (map[vip.FrontendKey]int, error)
	Remove(context.Context) error // ends what is left
	Close() error
	reconcile.Connections
}

// ProbePaths has the paths on which health probes reach the backends as the dataplane's packets do.
type ProbePaths interface {
	reconcile.Target[vip.ProbePath, vip.ProbePath]
	// Mark returns the packet mark of a path, or why it has none.
	Mark(vip.ProbePath) (uint32, error)
	// Blocked returns why none of the paths works, or nil.
	Blocked() error
}

// NeedsOf returns what a dataplane needs of this host.
func (k *Kind) NeedsOf(realServer bool) []host.Finding {
	if k.Needs == nil {
		return nil
	}
	return k.Needs(realServer)
}

// TablesOf returns the names of its nftables tables with a device.
func (k *Kind) TablesOf(device string) []string {
	if k.Tables == nil {
		return nil
	}
	return k.Tables(device)
}

// Refuses returns why it can't serve a frontend, or nil.
func (k *Kind) Refuses(f *vip.Frontend) error {
	if k.Unsupported == nil || f.Key.Whole() {
		return nil // every dataplane puts a VIP on the host
	}
	return k.Unsupported(f)
}

// Ignores returns a problem for each part of a service that has no effect.
func (k *Kind) Ignores(s *vip.Service) []vip.Problem {
	if k.Ignored == nil {
		return nil
	}
	return k.Ignored(s)
}

// Count is one metric of what a dataplane sends to the kernel. S are its counts.
type Count[S any] struct {
	Family *metric.Family
	Of     func(S) uint64
}

// Collect returns the collector of counts.
func Collect[S any](counts []Count[S], read func() S) metric.Collector {
	return func(w *metric.Writer) {
		s := read()
		for _, c := range counts {
			w.Add(c.Family, float64(c.Of(s)))
		}
	}
}
