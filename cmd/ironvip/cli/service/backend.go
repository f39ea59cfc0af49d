package service

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ironvip/ironvip/api/client"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/command"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/render"
	"github.com/ironvip/ironvip/vip"
)

func (a *app) backendListCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "list [SERVICE]...",
		Aliases: []string{"ls"},
		Short:   "list the backends of services, or of all services",
		Long: `Lists backends with their state, the result of their health check (CHECK) with its age, and the
last error. A backend that works shows the last failure for ten minutes. For named services, CONN
has the open connections.`,
		Example:           "  ironvip backend list web -o wide",
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: a.Complete(command.Services),
		RunE: a.WithClient(func(ctx context.Context, c *client.Client, args []string) error {
			keys, err := command.ParseKeys(args)
			if err != nil {
				return err
			}
			list := command.ItemsOf[v1.Backend]{Items: []v1.Backend{}}
			conns := map[string]map[string]uint64{} // by service and backend
			add := func(service string, revision uint64, backends []v1.BackendStatus) {
				for _, b := range backends {
					list.Items = append(list.Items, v1.Backend{Service: service, Revision: revision, BackendStatus: b})
				}
			}
			if len(keys) == 0 {
				for s, err := range c.AllServices(ctx, client.List{}) {
					if err != nil {
						return err
					}
					add(command.ServiceName(s), s.Revision, s.Status.Backends)
				}
			}
			for _, key := range keys {
				backends, err := c.Backends(ctx, key.Namespace, key.Name)
				if err != nil {
					return command.NotFound(err, command.SeeServices)
				}
				add(key.String(), backends.Revision, backends.Items)
				if a.People() && len(backends.Items) > 0 {
					conns[key.String()] = a.backendConnections(ctx, c, key, backends.Items)
				}
			}
			return a.Show(a.backendListView(list, conns))
		}),
	}
}

// parseID reads "SERVICE ID" or "SERVICE/ID".
func parseID(args []string) (vip.ServiceKey, string, error) {
	service, id := args[0], ""
	if len(args) == 2 {
		id = args[1]
	} else if i := strings.LastIndexByte(args[0], '/'); i >= 0 {
		service, id = args[0][:i], args[0][i+1:]
	} else {
		return vip.ServiceKey{}, "", &command.Failure{Code: command.ExitUsage, Err: errors.New("backend missing: use SERVICE BACKEND or SERVICE/BACKEND"),
			Hint: "run ironvip backend list " + args[0]}
	}
	key, err := command.ParseKey(service)
	if err != nil {
		return key, "", err
	}
	return key, id, nil
}

// parseBackend reads "SERVICE BACKEND" or "SERVICE/BACKEND".
func parseBackend(args []string) (vip.ServiceKey, string, error) {
	key, id, err := parseID(args)
	if err != nil {
		return key, "", err
	}
	addr, port, err := vip.ParseBackendID(id)
	if err != nil {
		return key, "", &command.Failure{Code: command.ExitUsage, Err: err, Hint: "run ironvip backend list " + key.String()}
	}
	return key, vip.Backend{Address: addr, Port: port}.ID(), nil
}

func (a *app) backendListView(list command.ItemsOf[v1.Backend], conns map[string]map[string]uint64) output.View {
	grid := output.NewGrid(append([]string{"SERVICE"}, backendHeader...)...)
	for _, b := range list.Items {
		grid.Add(append([]any{b.Service}, a.backendRow(b.BackendStatus, conns[b.Service])...)...)
	}
	return output.List(list, grid, "no backends", 0, 1)
}

// backendConnections returns the open connections of a service's backends by their ids. If they are
// unavailable, it returns none and prints the reason to stderr.
func (a *app) backendConnections(ctx context.Context, c *client.Client, key vip.ServiceKey, backends []v1.BackendStatus) map[string]uint64 {
	stats, err := c.ServiceStats(ctx, key.Namespace, key.Name)
	if err != nil {
		if !client.IsNotFound(err) {
			a.Say("connections unknown: %v", err)
		}
		return nil
	}
	ids := make(map[string]bool, len(backends))
	for i := range backends {
		ids[backends[i].ID] = true
	}
	out := map[string]uint64{}
	for _, f := range stats.Frontends {
		for _, b := range f.Backends {
			id := b.Address // of a backend with a port of its own
			if at, err := netip.ParseAddrPort(id); err == nil && !ids[id] {
				id = at.Addr().String()
			}
			out[id] += b.Traffic.Active
		}
	}
	return out
}

// backendHeader names the cells of backendRow.
var backendHeader = []string{"BACKEND", "STATE", "WEIGHT", "CHECK", "SINCE", "CONN", "LAST ERROR", "NODE", "ZONE", "+TTL", "+HEARTBEAT DUE", "+REMOVED", "+OVERRIDE", "+HINT"}

// backendRow returns the cells of a backend. The connections are by id; nil if they are unknown.
func (a *app) backendRow(b v1.BackendStatus, conns map[string]uint64) []any {
	state := output.Cell{Text: backendState(b) + output.When(b.LeavingAt != nil, ", removed "+a.Ago(b.LeavingAt)+" at the latest"), Style: output.Good}
	if b.State != vip.Ready.String() || b.LeavingAt != nil || b.Weight == 0 {
		state.Style = output.Caution
	}
	conn := ""
	if n, known := conns[b.ID]; known {
		conn = render.Count(n)
	}
	return []any{b.ID, state, weightCell(b), a.checkCell(b), a.Age(b.HealthSince), conn, a.lastError(b), b.Node, b.Zone, b.TTL, a.Ago(b.ExpiresAt), a.Ago(b.RemovedAt), a.overridden(b.Override), b.HealthHint}
}

// weightCell returns the configured weight: "1", "1 in canary" in a group, and "1 (30%)" during a slow start.
func weightCell(b v1.BackendStatus) output.Cell {
	cell := output.Cell{Text: fmt.Sprint(b.Weight) + output.When(b.Group != "", " in "+b.Group)}
	if b.SlowStart > 0 {
		cell.Text, cell.Style = cell.Text+fmt.Sprintf(" (%d%%)", b.SlowStart), output.Caution
	}
	return cell
}

// lastError describes the last failure of a backend: "connect: connection refused, 3s ago".
func (a *app) lastError(b v1.BackendStatus) string {
	return b.LastError + output.When(b.LastError != "" && b.LastErrorAt != nil, ", "+a.Ago(b.LastErrorAt))
}

// checkCell describes what was observed and by what: "http healthy", "tcp failing, held for 18s",
// "tcp unhealthy, in use", "source healthy", "unchecked".
func (a *app) checkCell(b v1.BackendStatus) output.Cell {
	switch {
	case b.Held && b.HeldUntil != nil:
		return output.Cell{Text: b.Check + " failing, held for " + output.Age(b.HeldUntil.Sub(a.Now())), Style: output.Caution}
	case b.Held:
		return output.Cell{Text: b.Check + " failing, held", Style: output.Caution}
	}
	inUse := b.Health == vip.Unhealthy.String() && b.Serving // at one of its ports, or in panic mode
	return output.Cell{Text: output.Join(" ", b.Check, b.Health) + output.When(inUse, ", in use"), Style: healthStyles[b.Health]}
}

// healthStyles has the styles of what a check finds.
var healthStyles = map[string]output.Style{vip.Healthy.String(): output.Good, vip.Unhealthy.String(): output.Bad, vip.Ejected.String(): output.Bad}

// backendState describes the configured state: "ready", "ready, backup", "ready, backup in use",
// "drain (source says ready)".
func backendState(b v1.BackendStatus) string {
	switch {
	case b.LeavingAt != nil:
		return "leaving"
	case b.SourceState != "" && b.SourceState != b.State:
		return b.State + " (source says " + b.SourceState + ")"
	}
	return b.State + output.When(b.Backup, ", backup"+output.When(b.Serving, " in use"))
}

// serviceThenBackend proposes services, and then the backends of the chosen one.
func serviceThenBackend(ctx context.Context, c *client.Client, args []string) ([]cobra.Completion, error) {
	switch len(args) {
	case 0:
		return command.Services(ctx, c, args)
	case 1:
		key, err := command.ParseKey(args[0])
		if err != nil {
			return nil, err
		}
		list, err := c.Backends(ctx, key.Namespace, key.Name)
		return output.Texts(list.Items, func(b v1.BackendStatus) cobra.Completion {
			return cobra.CompletionWithDesc(b.ID, output.Join(", ", b.State, b.Health))
		}), err
	}
	return nil, nil
}
