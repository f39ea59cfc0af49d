package nft

import (
	"context"
	"errors"

	"github.com/ironvip/ironvip/internal/firewall"
	"github.com/ironvip/ironvip/internal/metric"
	"github.com/ironvip/ironvip/plane"
	"github.com/ironvip/ironvip/plane/kernel/filter"
	"github.com/ironvip/ironvip/plane/kernel/host"
)

// Kind is this dataplane.
var Kind = plane.Kind{
	Mode: "nft",
	// A real server has no frontends for it.
	Needs: func(bool) []host.Finding { return Check() }, Reads: "nf_tables",
	Tables:      func(device string) []string { return []string{TableOf(device)} },
	Packets:     []firewall.Path{firewall.ToBackend, firewall.Answers},
	Unsupported: Unsupported, Ignored: Ignored,
	Metrics: metrics,
	Open:    openKind, Find: findKind,
}

func openKind(h plane.Host) (opened plane.Opened, err error) {
	target, err := New(Options{Device: h.Device, Owns: h.Owns, PodCIDRs: h.PodCIDRs, Log: h.Log})
	if err != nil {
		return opened, err
	}
	return plane.Opened{Plane: target, Leaver: target, Findings: target.Findings,
		Metrics: []metric.Collector{plane.Collect(counts, target.Stats)}}, nil
}

func findKind(ctx context.Context, h plane.Host) (plane.Leaver, error) {
	target, err := Find(ctx, Options{Device: h.Device})
	if errors.Is(err, filter.ErrNoNFTables) {
		err = plane.Blind{Lacks: err}
	}
	if err != nil || target == nil {
		return nil, err
	}
	return target, nil
}

var metrics = metric.NewGroup("The nft dataplane", "nft_")

var counts = []plane.Count[Stats]{
	{Family: metrics.Counter("table_writes_total", "nftables messages that change something."), Of: func(s Stats) uint64 { return s.NFTMessages }},
	{Family: metrics.Counter("conntrack_deletions_total", "Deleted connection tracking entries."), Of: func(s Stats) uint64 { return s.ConntrackFlows }},
	{Family: metrics.Counter("conntrack_dumps_total", "Connection tracking queries."), Of: func(s Stats) uint64 { return s.ConntrackDumps }},
}
