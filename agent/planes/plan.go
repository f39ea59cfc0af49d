package planes

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/ironvip/ironvip/api/server"
	"github.com/ironvip/ironvip/api/status"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/vip"
)

// planSwitch returns what a switch does. It costs O(connections + services).
func (p *Planes) planSwitch(ctx context.Context, mode string) (v1.SwitchPlan, error) {
	if configs.DataplaneOf(mode) == nil {
		return v1.SwitchPlan{}, server.BadRequest(fmt.Sprintf("%q is not a dataplane", mode), "use "+strings.Join(configs.Modes(), ", "))
	}
	from := p.Mode()
	plan := v1.SwitchPlan{From: from, To: mode, Changes: mode != from, Connections: []v1.SwitchConnections{}, Refused: []v1.Problem{}, Problems: []v1.Problem{}}
	if !plan.Changes {
		plan.Problems = append(plan.Problems, p.contradictions(mode)...)
		return plan, nil
	}
	plan.HardStopAfter = uint64(p.hardStopAfter() / time.Second)
	plan.Problems = append(plan.Problems, p.switchProblems(mode)...)
	refused := map[v1.Problem]struct{}{}
	for _, f := range p.o.Tables.Frontends.All() {
		if problem := status.Unsupported(mode, &f); problem != nil && status.Unsupported(from, &f) == nil {
			problem.Service = f.Service.String()
			refused[*problem] = struct{}{}
		}
	}
	plan.Refused = slices.AppendSeq(plan.Refused, maps.Keys(refused))
	slices.SortFunc(plan.Refused, func(a, b v1.Problem) int {
		return cmp.Or(strings.Compare(a.Service, b.Service), strings.Compare(a.Field, b.Field), strings.Compare(a.Message, b.Message))
	})
	if plan.Counted = table.IsClosed(p.o.Settled); !plan.Counted {
		return plan, nil
	}
	type kind struct {
		protocol vip.Protocol
		state    string
	}
	counts := map[kind]int{}
	err := p.plane().ListConnections(ctx, func(vip.FrontendKey) bool { return true }, func(c reconcile.Connection) bool {
		if c.State != reconcile.StateAffinity {
			counts[kind{c.Frontend.Protocol, c.State}]++
		}
		return true
	})
	if err != nil {
		return plan, server.Refuse(http.StatusServiceUnavailable, v1.CodeDataplane, "list the connections of the dataplane: "+err.Error(), "GET "+v1.PathDataplane+" shows its state")
	}
	for k, n := range counts {
		plan.Connections = append(plan.Connections, v1.SwitchConnections{Protocol: k.protocol.String(), State: k.state, Connections: n, Then: fate(from, mode, k.protocol)})
	}
	slices.SortFunc(plan.Connections, func(a, b v1.SwitchConnections) int {
		return strings.Compare(a.Protocol+" "+a.State, b.Protocol+" "+b.State)
	})
	return plan, nil
}

// fate returns what happens to the connections of a protocol.
func fate(from, to string, p vip.Protocol) string {
	switch {
	case p == vip.UDP:
		return v1.SwitchMoves
	case keepsOpen(from, to):
		return v1.SwitchContinues
	}
	return v1.SwitchEnds
}

// contradictions returns what in the configuration does not allow that the host runs a dataplane.
func (p *Planes) contradictions(mode string) []vip.Problem {
	one := func(field, place, message, hint string) []vip.Problem {
		return []vip.Problem{{Code: vip.CodeInvalid, Field: field, Place: place, Message: message, Hint: hint}}
	}
	cfg, problems := configs.Load(p.o.Started.Path)
	switch {
	case cfg == nil:
		return problems
	case cfg.Dataplane.Role == configs.RoleRealServer && !configs.DataplaneOf(mode).RealServer:
		return one("dataplane.role", cfg.Place("dataplane.role"), "a real server needs ipvs", "")
	case cfg.Dataplane.Mode != configs.ModeAuto && cfg.Dataplane.Mode != mode:
		return one("dataplane.mode", cfg.Place("dataplane.mode"), fmt.Sprintf("dataplane.mode = %q contradicts: the next start runs that", cfg.Dataplane.Mode),
			fmt.Sprintf("set dataplane.mode to %q, or to \"auto\", which keeps the dataplane that the host runs", mode))
	}
	return nil
}

// switchProblems returns why this host can't move to a dataplane.
func (p *Planes) switchProblems(mode string) (out []vip.Problem) {
	out = p.contradictions(mode)
	add := func(field, place, message, hint string) {
		out = append(out, vip.Problem{Code: vip.CodeInvalid, Field: field, Place: place, Message: message, Hint: hint})
	}
	for _, f := range needs(mode, p.o.Started.Dataplane.Role) {
		if f.Required && !f.OK {
			add(f.Name, "", "this host lacks what "+mode+" needs: "+f.Detail, f.Remedy)
		}
	}
	to := p.switching()
	switch {
	case to != "":
		add("", "", "this host is moving to "+to, "wait for its end: ironvip status")
	case !table.IsClosed(p.o.Settled):
		add("", "", "this agent has not finished its start", "wait for it: ironvip status --wait")
	}
	return out
}
