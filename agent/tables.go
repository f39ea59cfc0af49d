package agent

import (
	"github.com/ironvip/ironvip/api/status"
	"github.com/ironvip/ironvip/health/share"
	"github.com/ironvip/ironvip/internal/table"
)

// debugTables lists the tables that `ironvip debug table` prints, in the order of the pipeline. They are those that no other
// command shows.
func (a *agent) debugTables() []status.DebugTable {
	var verdicts []table.Reader[string, share.Row]
	if a.stores.Tree != nil {
		verdicts = append(verdicts, a.stores.Verdicts.Rows())
	}
	return []status.DebugTable{
		status.NewDebugTable("claims", status.ServiceCells, a.pipeline.Resolve.ClaimTables()...),
		status.NewDebugTable("conflicts", status.ConflictCells, a.pipeline.Resolve.Conflicts()),
		status.NewDebugTable("services", status.ServiceCells, a.tables.Services),
		status.NewDebugTable("health", status.HealthCells, a.tables.Health),
		status.NewDebugTable("verdicts", status.VerdictCells, verdicts...),
		status.NewDebugTable("probe_paths", status.ProbePathCells, a.tables.ProbePaths),
		status.NewDebugTable("applied_paths", status.AppliedPathCells, a.tables.AppliedPaths),
		status.NewDebugTable("passive", status.PassiveCells, a.tables.Passive),
		status.NewDebugTable("allocations", status.AllocationCells, a.tables.Allocations),
		status.NewDebugTable("host", status.HostCells, a.tables.Host),
		status.NewDebugTable("compiled", status.CompiledCells, a.tables.Compiled),
		status.NewDebugTable("frontends", status.FrontendCells, a.tables.Frontends),
		status.NewDebugTable("applied", status.AppliedCells, a.tables.Applied),
		status.NewDebugTable("eligible", status.EligibleCells, a.announcing.Eligible),
	}
}
