package ipvs

import (
	"context"
	"net/netip"
	"sync/atomic"

	rtnl "github.com/vishvananda/netlink"
	"go4.org/netipx"

	"github.com/ironvip/ironvip/internal/netlink"
	"github.com/ironvip/ironvip/vip"
)

// host is what a Target works on: the kernel of one network namespace. Each way
// into it is an interface below, as near to the system calls as that is simple.
// What their methods promise is said where they are implemented.
type host struct {
	kernel  *kernel
	watch   *kernel // another socket, for what is asked meanwhile
	count   *kernel // a third one, for statistics
	conns   connectionTable
	device  *device
	fw      filters
	sysctl  tunables
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

// messenger is a netlink socket (netlink.go).
type messenger interface {
	Write(ctx context.Context, n int, put func(b []byte, i int) []byte, done func(i int, err error)) error
	Query(ctx context.Context, put func(b []byte) []byte, each func(typ uint16, data []byte) error) error
	Close()
}

// links is what the devices need of rtnetlink: a *rtnl.Handle.
type links interface {
	LinkByName(name string) (rtnl.Link, error)
	LinkList() ([]rtnl.Link, error)
	LinkAdd(link rtnl.Link) error
	LinkSetARPOff(link rtnl.Link) error
	LinkSetUp(link rtnl.Link) error
	LinkDel(link rtnl.Link) error
	AddrList(link rtnl.Link, family int) ([]rtnl.Addr, error)
	AddrAdd(link rtnl.Link, addr *rtnl.Addr) error
	Close()
}

// filters is our nftables table (nft.go).
type filters interface {
	read(ctx context.Context) (*ruleset, error)
	apply(ctx context.Context, c change) error
	setPods(ctx context.Context, pods *netipx.IPSet, c change) error
	rebuild(ctx context.Context, pods *netipx.IPSet, c change) error
	remove(ctx context.Context) error
	missing(ctx context.Context) error
}

// tunables are the sysctls (sysctl.go).
type tunables interface {
	check(w setting) Finding
	set(w setting) Finding
}

// flowTable is connection tracking (conntrack.go).
type flowTable interface {
	delete(ctx context.Context, f flows) error
	supported(ctx context.Context) Finding
}

// connectionTable is how many connections each service has (stats_proc.go).
type connectionTable interface {
	read() (map[serviceID]live, error)
	close()
}

// listeners are the sockets of this host's processes (ports.go).
type listeners interface {
	free(k vip.FrontendKey) error
}

// unwrappers are the devices that take packets out of tunnels (tunnel.go).
type unwrappers interface {
	read() (map[netip.Addr]bool, error)
	ensure(local netip.Addr) error
	remove(local netip.Addr) error
	removeAll() error
}

// openHost connects to the kernel in the calling thread's network namespace.
func openHost(ctx context.Context, o Options, stats *counters) (host, error) {
	h := host{
		conns:  &openTable{path: procTable},
		fw:     newFirewall(newLayout(o.Table, o.Mark), stats),
		sysctl: sysctls{procSysNet},
		flows:  conntrack{stats},
		ports:  ports{},
	}
	h.tunnels = newTunnels(o.Device, h.sysctl)
	var err error
	for _, k := range []**kernel{&h.kernel, &h.watch, &h.count} {
		if *k, err = openKernel(ctx, stats); err != nil {
			h.close()
			return host{}, err
		}
	}
	if h.device, err = openDevice(o.Device, stats); err != nil {
		h.close()
		return host{}, err
	}
	_, _ = h.conns.read() // opens it here; what hides it is told to those who ask
	return h, nil
}

// close gives back the sockets that are open.
func (h *host) close() {
	for _, k := range []*kernel{h.kernel, h.watch, h.count} {
		if k != nil {
			k.close()
		}
	}
	if h.device != nil {
		h.device.close()
	}
	h.conns.close()
}
