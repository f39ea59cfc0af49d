// Package dataplane makes IPVS, with the paths of health probes beside it, one dataplane.
package dataplane

import (
	"context"
	"errors"
	"fmt"

	"github.com/ironvip/ironvip/internal/firewall"
	"github.com/ironvip/ironvip/internal/metric"
	"github.com/ironvip/ironvip/ipvs"
	"github.com/ironvip/ironvip/ipvs/probepath"
	"github.com/ironvip/ironvip/plane"
	"github.com/ironvip/ironvip/plane/kernel/filter"
	"github.com/ironvip/ironvip/plane/kernel/usage"
	"github.com/ironvip/ironvip/plane/kernel/vips"
)

// Kind is this dataplane.
var Kind = plane.Kind{
	Mode: "ipvs", RealServer: true, BeforeSockets: true,
	Needs: ipvs.Check, Reads: "IPVS and nf_tables",
	Tables: func(device string) []string {
		return []string{ipvs.TableOf(device), pathOptions(device).Table}
	},
	Packets:     []firewall.Path{firewall.ToVIP, firewall.Answers},
	Unsupported: ipvs.Unsupported, Ignored: ipvs.Ignored,
	Metrics: metrics,
	Open:    open, Find: find,
}

// pathOptions are the options of the paths of probes beside the dataplane with a device.
func pathOptions(device string) probepath.Options {
	return probepath.Options{Table: probepath.TableOf(ipvs.TableOf(device))}
}

func open(h plane.Host) (opened plane.Opened, err error) {
	target, err := ipvs.New(ipvs.Options{Device: h.Device, Owns: h.Owns, PodCIDRs: h.PodCIDRs, RealServer: h.RealServer, Log: h.Log})
	if err != nil {
		return opened, err
	}
	paths, err := probepath.New(pathOptions(h.Device))
	if err != nil {
		target.Close()
		return opened, fmt.Errorf("paths of health probes: %w", err)
	}
	return plane.Opened{Plane: target, Leaver: leaver{Target: target, paths: paths}, Findings: target.Findings, Paths: paths,
		Metrics: []metric.Collector{plane.Collect(counts, target.Stats), plane.Collect(pathCounts, paths.Stats)}}, nil
}

func find(ctx context.Context, h plane.Host) (plane.Leaver, error) {
	target, err := ipvs.Find(ctx, ipvs.Options{Device: h.Device, Owns: h.Owns})
	if errors.Is(err, ipvs.ErrNoIPVS) || errors.Is(err, filter.ErrNoNFTables) {
		err = plane.Blind{Lacks: err}
	}
	if err != nil || target == nil {
		return nil, err
	}
	paths, n, err := probepath.Find(ctx, pathOptions(h.Device))
	if err != nil {
		return nil, errors.Join(err, target.Close())
	}
	if paths == nil {
		return leaver{Target: target}, nil
	}
	return leaver{target, paths, pathOptions(h.Device).Table, n}, nil
}

// Foreign returns what others have in IPVS, beside a dataplane with a device, as commands of ipvsadm. It changes nothing.
func Foreign(ctx context.Context, device string) ([][]string, error) {
	on, err := vips.Find(ctx, device)
	if err != nil {
		return nil, err
	}
	defer on.Close()
	found, err := find(ctx, plane.Host{Device: device, Owns: on.Has})
	if err != nil {
		return nil, err
	}
	defer found.Close()
	all := found.(leaver)
	if all.Blind() {
		return nil, ipvs.ErrNoIPVS
	}
	return all.Foreign(ctx, func(mark uint32) bool { return all.paths != nil && all.paths.Owns(mark) })
}

// leaver is a Target with the paths of probes.
type leaver struct {
	*ipvs.Target
	paths *probepath.Target // nil: none
	table string            // of the paths of an earlier process, or ""
	found int               // these paths
}

// Left implements plane.Leaver.
func (l leaver) Left(ctx context.Context) (left usage.Left, err error) {
	left, err = l.Target.Left(ctx)
	left.PathTable, left.Paths = l.table, l.found
	return left, err
}

// Leave implements plane.Leaver.
func (l leaver) Leave(ctx context.Context) error {
	return errors.Join(l.removePaths(ctx), l.Target.Leave(ctx))
}

// Remove implements plane.Leaver. It removes the paths of probes first: afterwards, nothing shows that there are any.
func (l leaver) Remove(ctx context.Context) error {
	if err := l.removePaths(ctx); err != nil {
		return err
	}
	return l.Target.Remove(ctx)
}

func (l leaver) removePaths(ctx context.Context) error {
	if l.paths == nil {
		return nil
	}
	return l.paths.Remove(ctx)
}

// Close implements plane.Leaver.
func (l leaver) Close() error {
	if l.paths == nil {
		return l.Target.Close()
	}
	return errors.Join(l.paths.Close(), l.Target.Close())
}

var metrics = metric.NewGroup("IPVS", "ipvs_")

var (
	counts = []plane.Count[ipvs.Stats]{
		{Family: metrics.Counter("service_writes_total", "IPVS messages that change something."), Of: func(s ipvs.Stats) uint64 { return s.WritesSent }},
		{Family: metrics.Counter("dumps_total", "IPVS queries."), Of: func(s ipvs.Stats) uint64 { return s.DumpsSent }},
		{Family: metrics.Counter("nftables_writes_total", "nftables messages that change something."), Of: func(s ipvs.Stats) uint64 { return s.NFTMessages }},
		{Family: metrics.Counter("conntrack_deletions_total", "Deleted connection tracking entries."), Of: func(s ipvs.Stats) uint64 { return s.ConntrackFlows }},
	}
	pathCounts = []plane.Count[probepath.Stats]{
		{Family: metrics.Counter("probe_service_writes_total", "IPVS messages that change a path of probes."), Of: func(s probepath.Stats) uint64 { return s.Services }},
		{Family: metrics.Counter("probe_nftables_writes_total", "nftables messages that change a path of probes."), Of: func(s probepath.Stats) uint64 { return s.Rules }},
	}
)
