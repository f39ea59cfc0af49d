package ipvs

import (
	"context"
	"net/netip"
	"sync/atomic"

	"go4.org/netipx"

	"github.com/ironvip/ironvip/internal/netlink"
	"github.com/ironvip/ironvip/internal/netlink/watch"
	"github.com/ironvip/ironvip/ipvs/internal/kernel"
	"github.com/ironvip/ironvip/plane/kernel/cleanup"
	"github.com/ironvip/ironvip/plane/kernel/conntrack"
	"github.com/ironvip/ironvip/plane/kernel/drift"
	"github.com/ironvip/ironvip/plane/kernel/filter"
	"github.com/ironvip/ironvip/plane/kernel/host"
	"github.com/ironvip/ironvip/vip"
)

// access is how a Target reaches the kernel of one network namespace. Each interface is
// as close to the system calls as is simple; the implementations document the contracts.
// Tests put a fake kernel in their place.
type access struct {
	kernel  *kernel.Conn
	watch   *kernel.Conn    // for Connections, which may run during Apply
	count   *kernel.Conn    // for statistics
	conns   connectionTable // see kernel.ReadTable
	list    connectionList  // see kernel.EachConn
	fw      filters
	sysctl  host.Tunables
	flows   flowTable
	free    func(vip.FrontendKey) error // see host.FreePort
	tunnels unwrappers
	drift   drift.Watch
}

// counters count messages to the kernel. All sockets of a Target share them, and they
// may be read at any time.
type counters struct {
	netlink.Counters // IPVS messages

	nftMessages, conntrack, conntrackDumps, tables atomic.Uint64
}

// filters is our nftables table, see filter.Table.
type filters interface {
	Read(ctx context.Context) (*filter.Ruleset, error)
	Apply(ctx context.Context, c filter.Change) error
	SetPods(ctx context.Context, pods *netipx.IPSet, c filter.Change) error
	Rebuild(ctx context.Context, pods *netipx.IPSet, c filter.Change) error
	Exists(ctx context.Context) (bool, error)
	Remove(ctx context.Context) error
	Retire(ctx context.Context) error
	Missing(ctx context.Context) error
	Close()
}

// flowTable is connection tracking, see conntrack.Table.
type flowTable interface {
	cleanup.Table
	Supported(ctx context.Context) host.Finding
}

// connectionTable counts the connections of each service.
type connectionTable func() (map[kernel.ServiceID]kernel.Live, error)

// connectionList calls yield for every single connection until it returns false.
type connectionList func(ctx context.Context, yield func(*kernel.Entry) bool) error

// unwrappers are the tunnel devices of a real server, see host.Tunnels.
type unwrappers interface {
	Read() (map[netip.Addr]bool, error)
	Ensure(local netip.Addr) error
	Remove(local netip.Addr) error
	RemoveAll() error
}

// openAccess connects to the kernel in the calling thread's network namespace.
func openAccess(ctx context.Context, o Options, stats *counters) (access, error) {
	fw := filter.New(o.table(), &stats.nftMessages)
	h := openHost(o, fw, stats)
	if err := h.openIPVS(ctx, stats); err != nil {
		h.close()
		return access{}, err
	}
	fw.TryHold(ctx, o.Log)
	if !o.RealServer { // which masquerades nobody
		conntrack.TryEnterOpened(ctx, fw, o.Owns, o.Log)
	}
	h.drift = drift.Open(ctx, watch.Options{Forwarding: true, Table: o.table()}, fw.Open, o.Log)
	fw.Muted = h.drift.Muted
	return h, nil
}

// openHost opens everything but IPVS, in the calling thread's network namespace.
func openHost(o Options, fw filters, stats *counters) access {
	h := access{
		conns:  kernel.ReadTable,
		list:   kernel.EachConn,
		fw:     fw,
		sysctl: host.Sysctls{Root: host.ProcSysNet},
		flows:  conntrack.Table{Dumps: &stats.conntrackDumps, Deleted: &stats.conntrack},
		free:   host.FreePort,
	}
	h.tunnels = host.NewTunnels(o.Device, h.sysctl)
	return h
}

func (h *access) openIPVS(ctx context.Context, stats *counters) (err error) {
	for _, k := range []**kernel.Conn{&h.kernel, &h.watch, &h.count} {
		if *k, err = kernel.Open(ctx, &stats.Counters); err != nil {
			return err
		}
	}
	return nil
}

// close closes the open sockets.
func (h *access) close() {
	for _, k := range []*kernel.Conn{h.kernel, h.watch, h.count} {
		if k != nil {
			k.Close()
		}
	}
	h.drift.Close()
	h.fw.Close()
}
