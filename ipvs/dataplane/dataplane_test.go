package dataplane

import (
	"testing"

	"github.com/ironvip/ironvip/ipvs"
	"github.com/ironvip/ironvip/ipvs/probepath"
	"github.com/ironvip/ironvip/plane"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/metrictest"
)

func TestMetrics(t *testing.T) {
	text := metrictest.Text(t, plane.Collect(counts, func() ipvs.Stats { return ipvs.Stats{WritesSent: 1, DumpsSent: 2, NFTMessages: 3, ConntrackFlows: 4} }),
		plane.Collect(pathCounts, func() probepath.Stats { return probepath.Stats{Services: 60, Rules: 61} }))
	for _, want := range []string{"ironvip_ipvs_service_writes_total 1", "ironvip_ipvs_dumps_total 2", "ironvip_ipvs_nftables_writes_total 3",
		"ironvip_ipvs_conntrack_deletions_total 4", "ironvip_ipvs_probe_nftables_writes_total 61", "ironvip_ipvs_probe_service_writes_total 60"} {
		expect.Contains(t, text, "\n"+want+"\n")
	}
}
