package status

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ironvip/ironvip/internal/hostnet"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/pipeline"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/vip"
)

// rowsOf renders values in the cells of their table, "|" between two cells.
func rowsOf[K comparable, V any](t *testing.T, key func(*V) K, cells Cells[V], values ...V) (lines []string) {
	t.Helper()
	from := table.New(table.NewClock(time.Now()), key, nil)
	for _, v := range values {
		from.Set(v)
	}
	d := NewDebugTable("t", cells, table.Reader[K, V](from))
	for _, row := range d.Rows() {
		expect.Len(t, row, len(d.Columns), "%q has %d cells for the columns %q", row, len(row), d.Columns)
		lines = append(lines, strings.Join(row, "|"))
	}
	if d.Len() != from.Len() || d.Revision() != from.Revision() {
		t.Errorf("%d rows, revision %d", d.Len(), d.Revision())
	}
	return lines
}

func TestDebugTables(t *testing.T) {
	web := service("web", []string{"10.0.0.1", "10.0.0.2"}, port(443), func(s *vip.Service) {
		s.Backends[1].State, s.Backends[1].Port, s.Backends[1].Weight = vip.Drain, 8080, 3
	})
	db := service("db", nil, on("", "192.0.2.9"))
	in := statusOf(web, "192.0.2.1", func(in *Input) {
		in.Allocation.NodePorts = map[vip.PortKey]uint16{{Port: 80, Protocol: vip.TCP}: 30080}
		in.Compiled.Problems = []vip.Problem{{Code: vip.CodePortTaken}, {Code: vip.CodePoolFull}}
		in.Frontends[0].Applied.Problem = &vip.Problem{Code: vip.CodeDataplane}
		in.Frontends[1].Frontend.Backends[0].Leaving = vip.InstantOf(noon)
	})
	path := vip.ProbePath{VIP: addrs("192.0.2.1")[0], Backend: addrs("10.0.0.1")[0], Forward: vip.ForwardTunnel}
	fronts := []vip.Frontend{in.Frontends[0].Frontend, in.Frontends[1].Frontend}
	for name, c := range map[string]struct{ got, want []string }{
		"services": {rowsOf(t, vip.KeyOfService, ServiceCells, web, db), []string{
			"db|static|80/tcp|192.0.2.9|", "web|static|80,443/tcp||10.0.0.1*1 10.0.0.2:8080*3=drain"}},
		"allocations": {rowsOf(t, vip.KeyOfAllocation, AllocationCells, *in.Allocation), []string{"web|192.0.2.1|public-v4|80/tcp=30080|"}},
		"compiled": {rowsOf(t, pipeline.KeyOfCompiled, CompiledCells, *in.Compiled), []string{
			"web|192.0.2.1:80/tcp 192.0.2.1:443/tcp|0|0|port_taken pool_full"}},
		"frontends": {rowsOf(t, vip.KeyOfFrontend, FrontendCells, fronts...), []string{
			"192.0.2.1:443/tcp|web|vip|wrr|10.0.0.1:443*1=leaving 10.0.0.2:8080*0", "192.0.2.1:80/tcp|web|vip|wrr|10.0.0.1:80*1 10.0.0.2:8080*0"}},
		"applied": {rowsOf(t, reconcile.KeyOfApplied, AppliedCells, *in.Frontends[0].Applied), []string{
			"192.0.2.1:80/tcp|web|dataplane|10.0.0.1:80*1 10.0.0.2:8080*0"}},
		"probe_paths": {rowsOf(t, vip.KeyOfProbePath, ProbePathCells, path), []string{"192.0.2.1|10.0.0.1|tunnel"}},
		"applied_paths": {rowsOf(t, reconcile.KeyOfAppliedPath, AppliedPathCells,
			reconcile.AppliedPath{Tried: &table.Row[vip.ProbePath]{Value: path}, Problem: &vip.Problem{Code: vip.CodeDataplane, Message: "refused"}}), []string{
			"192.0.2.1|10.0.0.1|tunnel|dataplane|refused"}},
		"host": {rowsOf(t, hostnet.KeyOf, HostCells, hostnet.Snapshot{Addrs: hostAddrs("10.9.0.1/24", "10.8.0.1/24").Addrs, Gateways: addrs("10.9.0.254")}), []string{
			"address|10.8.0.1/24|eth0", "address|10.9.0.1/24|eth0", "gateway|10.9.0.254|"}},
	} {
		expect.NoDiff(t, cmp.Diff(c.want, c.got), name)
	}
}
