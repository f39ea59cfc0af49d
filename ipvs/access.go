package ipvs

import (
	"context"
	"net/netip"
	"sync/atomic"

	"go4.org/netipx"

	"github.com/ironvip/ironvip/internal/netlink"
	"github.com/ironvip/ironvip/ipvs/internal/conntrack"
	"github.com/ironvip/ironvip/ipvs/internal/filter"
	"github.com/ironvip/ironvip/ipvs/internal/host"
	"github.com/ironvip/ironvip/ipvs/internal/kernel"
	"github.com/ironvip/ironvip/vip"
)

// host is what a Target works on: the kernel of one network namespace. Each way
// into it is an interface below, as near to the system calls as that is simple.
// What their methods promise is said where they are implemented.
type access struct {
	kernel  *kernel.Conn
	watch   *kernel.Conn // another socket, for what is asked meanwhile
	count   *kernel.Conn // a third one, for statistics
	conns   connectionTable
	device  *host.Device
	fw      filters
	sysctl  host.Tunables
	flows   flowTable
	ports   listeners
	tunnels unwrappers
}

// counters count what went to the kernel. All sockets of a Target share them.
// They may be read at any time.
type counters struct {
	netlink.Counters // IPVS messages

	nftMessages, addresses, conntrack, conntrackDumps, tables atomic.Uint64
}

// filters is our nftables table (nft.go).
type filters interface {
	Read(ctx context.Context) (*filter.Ruleset, error)
	Apply(ctx context.Context, c filter.Change) error
	SetPods(ctx context.Context, pods *netipx.IPSet, c filter.Change) error
	Rebuild(ctx context.Context, pods *netipx.IPSet, c filter.Change) error
	Remove(ctx context.Context) error
	Missing(ctx context.Context) error
}

// flowTable is connection tracking (conntrack.go).
type flowTable interface {
	Delete(ctx context.Context, f conntrack.Flows) error
	Supported(ctx context.Context) host.Finding
}

// connectionTable is how many connections each service has (stats_proc.go).
type connectionTable interface {
	Read() (map[kernel.ServiceID]kernel.Live, error)
	Close()
}

// listeners are the sockets of this host's processes (ports.go).
type listeners interface {
	Free(k vip.FrontendKey) error
}

// unwrappers are the devices that take packets out of tunnels (tunnel.go).
type unwrappers interface {
	Read() (map[netip.Addr]bool, error)
	Ensure(local netip.Addr) error
	Remove(local netip.Addr) error
	RemoveAll() error
}

// openAccess connects to the kernel in the calling thread's network namespace.
func openAccess(ctx context.Context, o Options, stats *counters) (access, error) {
	h := access{
		conns:  &kernel.Table{Path: kernel.ProcTable},
		fw:     filter.New(o.Table, o.Mark, &stats.nftMessages),
		sysctl: host.Sysctls{Root: host.ProcSysNet},
		flows:  conntrack.Table{Dumps: &stats.conntrackDumps, Deleted: &stats.conntrack},
		ports:  host.PortOwnership{},
	}
	h.tunnels = host.NewTunnels(o.Device, h.sysctl)
	var err error
	for _, k := range []**kernel.Conn{&h.kernel, &h.watch, &h.count} {
		if *k, err = kernel.Open(ctx, &stats.Counters); err != nil {
			h.close()
			return access{}, err
		}
	}
	if h.device, err = host.OpenDevice(o.Device, &stats.addresses); err != nil {
		h.close()
		return access{}, err
	}
	_, _ = h.conns.Read() // opens it here; what hides it is told to those who ask
	return h, nil
}

// close gives back the sockets that are open.
func (h *access) close() {
	for _, k := range []*kernel.Conn{h.kernel, h.watch, h.count} {
		if k != nil {
			k.Close()
		}
	}
	if h.device != nil {
		h.device.Close()
	}
	h.conns.Close()
}
