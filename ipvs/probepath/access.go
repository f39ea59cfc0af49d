package probepath

import (
	"context"
	"fmt"
	"net/netip"

	"go4.org/netipx"

	"github.com/ironvip/ironvip/ipvs/internal/kernel"
	"github.com/ironvip/ironvip/plane/kernel/filter"
	"github.com/ironvip/ironvip/plane/kernel/host"
	"github.com/ironvip/ironvip/vip"
)

// access is how a Target reaches the kernel. Tests put a fake in its place.
type access struct {
	services services
	table    rules
	sysctl   host.Tunables
	local    func(netip.Addr) bool // see host.IsLocal
	stats    *counters
}

// services are the services of IPVS by mark.
type services interface {
	// State reads the service of a mark. It returns nil if the mark has no service.
	State(ctx context.Context, family vip.Family, mark uint32) (*kernel.State, error)
	// Change sends changes in order. It calls done with the outcome of each.
	Change(ctx context.Context, all []change, done func(i int, err error)) error
	Close()
}

// rules are the nftables table, see filter.Table.
type rules interface {
	Read(ctx context.Context) (*filter.Ruleset, error)
	Apply(ctx context.Context, c filter.Change) error
	Rebuild(ctx context.Context, pods *netipx.IPSet, c filter.Change) error
	Exists(ctx context.Context) (bool, error)
	Remove(ctx context.Context) error
	Missing(ctx context.Context) error
	Close()
}

// change is one message to IPVS.
type change struct {
	cmd  uint8 // kernel.CmdNewService, CmdDelService or CmdNewDest
	path vip.ProbePath
	mark uint32
	item int // index of its update
}

func (c *change) String() string {
	switch c.cmd {
	case kernel.CmdNewService:
		return fmt.Sprintf("add ipvs service by mark %#x", c.mark)
	case kernel.CmdNewDest:
		return fmt.Sprintf("add destination %s to the ipvs service by mark %#x", c.path.Backend, c.mark)
	}
	return fmt.Sprintf("delete ipvs service by mark %#x", c.mark)
}

// wanted returns the service of a path. It schedules each datagram by itself: IPVS would keep an
// entry for each of them for minutes. This concerns UDP only.
func wanted(p vip.ProbePath, mark uint32) kernel.State {
	s := kernel.Service{Key: anyOf(vip.FamilyOf(p.VIP)), Mark: mark, Scheduler: vip.DefaultScheduler.String(), Flags: kernel.FlagOnePacket, Netmask: kernel.Netmask4}
	if p.VIP.Is6() {
		s.Netmask = kernel.Netmask6
	}
	d := kernel.Dest{Addr: netip.AddrPortFrom(p.Backend, 0), Weight: 1, Forward: kernel.ForwardDirect}
	if p.Forward == vip.ForwardTunnel {
		d.Forward = kernel.ForwardTunnel
	}
	return kernel.State{Service: s, Dests: []kernel.Dest{d}}
}

// anyOf returns the key of services by mark of a family.
func anyOf(f vip.Family) vip.FrontendKey {
	if f == vip.IPv6 {
		return vip.FrontendKey{Addr: netip.IPv6Unspecified()}
	}
	return vip.FrontendKey{Addr: netip.IPv4Unspecified()}
}

// openAccess connects to the kernel in the calling thread's network namespace.
func openAccess(ctx context.Context, table rules, stats *counters) (access, error) {
	k, err := kernel.Open(ctx, &stats.Counters)
	if err != nil {
		return access{}, err
	}
	return access{services: kernelServices{k}, table: table, sysctl: host.Sysctls{Root: host.ProcSysNet}, local: host.IsLocal, stats: stats}, nil
}

// kernelServices are the services of the kernel.
type kernelServices struct{ *kernel.Conn }

func (k kernelServices) State(ctx context.Context, f vip.Family, mark uint32) (*kernel.State, error) {
	return k.Conn.State(ctx, anyOf(f), mark)
}

func (k kernelServices) Change(ctx context.Context, all []change, done func(i int, err error)) error {
	return k.Run(ctx, len(all), func(b []byte, i int, family uint16) []byte {
		c := &all[i]
		s := wanted(c.path, c.mark)
		b = kernel.AppendService(kernel.AppendCommand(b, family, c.cmd, 0), &s.Service, c.cmd == kernel.CmdNewService)
		if c.cmd == kernel.CmdNewDest {
			b = kernel.AppendDest(b, &s.Dests[0], true)
		}
		return b
	}, done)
}
