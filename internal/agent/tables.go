package agent

import "github.com/ironvip/ironvip/internal/status"

// tables lists the tables that `ironvip debug table` prints, in the order of the
// pipeline.
func (a *agent) tables() []status.DebugTable {
	return []status.DebugTable{
		status.NewDebugTable("sources", status.SourceCells, a.statuses),
		status.NewDebugTable("claims", status.ServiceCells, a.resolve.ClaimTables()...),
		status.NewDebugTable("conflicts", status.ConflictCells, a.resolve.Conflicts()),
		status.NewDebugTable("services", status.ServiceCells, a.services),
		status.NewDebugTable("overrides", status.OverrideCells, a.states),
		status.NewDebugTable("leases", status.LeaseCells, a.allocator.Leases()),
		status.NewDebugTable("allocations", status.AllocationCells, a.allocations),
		status.NewDebugTable("host", status.HostCells, a.host),
		status.NewDebugTable("compiled", status.CompiledCells, a.compiled),
		status.NewDebugTable("frontends", status.FrontendCells, a.frontends),
		status.NewDebugTable("applied", status.AppliedCells, a.applied),
	}
}
