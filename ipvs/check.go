package ipvs

import (
	"context"
	"net/netip"

	"github.com/ironvip/ironvip/internal/netlink"
	"github.com/ironvip/ironvip/ipvs/internal/kernel"
	"github.com/ironvip/ironvip/plane/kernel/conntrack"
	"github.com/ironvip/ironvip/plane/kernel/filter"
	"github.com/ironvip/ironvip/plane/kernel/host"
	"github.com/ironvip/ironvip/plane/kernel/linux"
	"github.com/ironvip/ironvip/vip"
)

// Finding is one thing that the dataplane needs of the host, and its state.
type Finding = host.Finding

// Err returns what keeps the dataplane from running, with hints, or nil.
func Err(findings []Finding) error { return host.Err(findings) }

// Check checks what the dataplane needs of this host, with trials where only the
// kernel knows. It starts no program and leaves nothing behind, but its requests
// make the kernel load the modules that it can load by itself. The ipvs dataplane
// can run if Err returns nil for the findings. With realServer, Check leaves out the
// sysctls: a real server needs none until it has a frontend, and then the Target's
// Findings report them.
func Check(realServer bool) []Finding { return check(host.ProcSysNet, "/", realServer) }

func check(sysNet, root string, realServer bool) []Finding {
	modules := host.ModuleIndex(root, linux.Release())
	ipvs := checkIPVS()
	out := []host.Finding{host.CheckCapability(), ipvs}
	for _, s := range kernel.Schedulers() {
		f := modules.Check("ip_vs_" + s.String())
		// A missing scheduler affects only the services that use it.
		f.Required = s == vip.DefaultScheduler && ipvs.OK
		out = append(out, f)
	}
	ctx := context.Background()
	out = append(out, filter.TryNFTables(ctx)...)
	out = append(out, modules.Check("nf_conntrack"), conntrack.Try(ctx))
	if host.Err(out[1:]) == nil && !realServer { // otherwise no agent sets them, and without IPVS they don't exist
		out = append(out, host.Sysctls{Root: sysNet}.CheckAll(settings(linux.ParseVersion(linux.Release())))...)
	}
	return out
}

func checkIPVS() Finding {
	ctx := context.Background()
	k, err := kernel.Open(ctx, &netlink.Counters{})
	if err == nil {
		defer k.Close()
		// A lookup of IPVS needs no rights. A read needs those of a write.
		_, _, err = k.Service(ctx, vip.FrontendKey{Addr: netip.IPv4Unspecified(), Protocol: vip.TCP}, 0)
	}
	return host.TrialOf("ip_vs", kernel.ErrNoIPVS.Message, true, err, kernel.ErrNoIPVS)
}
