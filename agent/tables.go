package agent

import (
	"github.com/ironvip/ironvip/api/status"
	"github.com/ironvip/ironvip/fleet/roster"
	"github.com/ironvip/ironvip/health/share"
	"github.com/ironvip/ironvip/internal/table"
)

// debugTables lists the tables that `ironvip debug table` prints, in the order of the
// pipeline.
func (a *agent) debugTables() []status.DebugTable {
	var verdicts []table.Reader[string, share.Row]
	var members []table.Reader[string, roster.Row]
	if a.stores.Tree != nil {
		verdicts, members = append(verdicts, a.stores.Verdicts.Rows()), append(members, a.stores.Roster.Rows())
	}
	return []status.DebugTable{
		status.NewDebugTable("sources", status.SourceCells, a.statuses),
		status.NewDebugTable("refused", status.RefusedCells, a.refusals),
		status.NewDebugTable("claims", status.ServiceCells, a.pipeline.Resolve.ClaimTables()...),
		status.NewDebugTable("conflicts", status.ConflictCells, a.pipeline.Resolve.Conflicts()),
		status.NewDebugTable("services", status.ServiceCells, a.tables.Services),
		status.NewDebugTable("overrides", status.OverrideCells, a.tables.Overrides),
		status.NewDebugTable("health", status.HealthCells, a.tables.Health),
		status.NewDebugTable("probe_results", status.ProbeResultCells, a.probing.Results()...),
		status.NewDebugTable("verdicts", status.VerdictCells, verdicts...),
		status.NewDebugTable("probe_paths", status.ProbePathCells, a.tables.ProbePaths),
		status.NewDebugTable("applied_paths", status.AppliedPathCells, a.tables.AppliedPaths),
		status.NewDebugTable("passive", status.PassiveCells, a.tables.Passive),
		status.NewDebugTable("leases", status.LeaseCells, a.allocator.Leases()),
		status.NewDebugTable("allocations", status.AllocationCells, a.tables.Allocations),
		status.NewDebugTable("name_conflicts", status.NameConflictCells, a.naming.Stage.Conflicts()),
		status.NewDebugTable("host", status.HostCells, a.tables.Host),
		status.NewDebugTable("compiled", status.CompiledCells, a.tables.Compiled),
		status.NewDebugTable("frontends", status.FrontendCells, a.tables.Frontends),
		status.NewDebugTable("applied", status.AppliedCells, a.tables.Applied),
		status.NewDebugTable("eligible", status.EligibleCells, a.announcing.Eligible),
		status.NewDebugTable("announcements", status.AnnouncementCells, a.announcing.Announcements),
		status.NewDebugTable("announced", status.AnnouncedCells, a.announcing.Announced),
		status.NewDebugTable("peers", status.PeerCells, a.announcing.Peers),
		status.NewDebugTable("members", status.MemberCells, members...),
	}
}
