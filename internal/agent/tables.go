package agent

import "github.com/ironvip/ironvip/internal/status"

// tables lists the tables that `ironvip debug table` prints, in the order of the
// pipeline.
func (a *agent) tables() []status.DebugTable {
	return []status.DebugTable{
		status.NewDebugTable("sources", a.statuses, status.SourceCells),
		status.NewDebugTable("services", a.services, status.ServiceCells),
		status.NewDebugTable("overrides", a.states, status.OverrideCells),
		status.NewDebugTable("leases", a.allocator.Leases(), status.LeaseCells),
		status.NewDebugTable("allocations", a.allocations, status.AllocationCells),
		status.NewDebugTable("host", a.host, status.HostCells),
		status.NewDebugTable("compiled", a.compiled, status.CompiledCells),
		status.NewDebugTable("frontends", a.frontends, status.FrontendCells),
		status.NewDebugTable("applied", a.applied, status.AppliedCells),
	}
}
