package agent

import "github.com/ironvip/ironvip/internal/status"

// debugTables lists the tables that `ironvip debug table` prints, in the order of the
// pipeline.
func (a *agent) debugTables() []status.DebugTable {
	return []status.DebugTable{
		status.NewDebugTable("sources", status.SourceCells, a.statuses),
		status.NewDebugTable("claims", status.ServiceCells, a.pipeline.Resolve.ClaimTables()...),
		status.NewDebugTable("conflicts", status.ConflictCells, a.pipeline.Resolve.Conflicts()),
		status.NewDebugTable("services", status.ServiceCells, a.tables.Services),
		status.NewDebugTable("overrides", status.OverrideCells, a.tables.Overrides),
		status.NewDebugTable("health", status.HealthCells, a.tables.Health),
		status.NewDebugTable("passive", status.PassiveCells, a.tables.Passive),
		status.NewDebugTable("leases", status.LeaseCells, a.allocator.Leases()),
		status.NewDebugTable("allocations", status.AllocationCells, a.tables.Allocations),
		status.NewDebugTable("host", status.HostCells, a.tables.Host),
		status.NewDebugTable("compiled", status.CompiledCells, a.tables.Compiled),
		status.NewDebugTable("frontends", status.FrontendCells, a.tables.Frontends),
		status.NewDebugTable("applied", status.AppliedCells, a.tables.Applied),
		status.NewDebugTable("eligible", status.EligibleCells, a.announcing.Eligible),
		status.NewDebugTable("announcements", status.AnnouncementCells, a.announcing.Link.Announcements),
		status.NewDebugTable("announced", status.AnnouncedCells, a.announcing.Link.Announced),
		status.NewDebugTable("peers", status.PeerCells, a.announcing.Link.Peers),
	}
}
