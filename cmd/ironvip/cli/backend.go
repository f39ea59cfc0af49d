package cli

import (
	"context"
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ironvip/ironvip/api/client"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
	"github.com/ironvip/ironvip/vip"
)

func (a *app) backendListCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "list [SERVICE]...",
		Aliases:           []string{"ls"},
		Short:             "list the backends of services, or of all services",
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: a.complete(services),
		RunE: a.withClient(func(ctx context.Context, c *client.Client, args []string) error {
			keys, err := parseKeys(args)
			if err != nil {
				return err
			}
			list := itemsOf[v1.Backend]{Items: []v1.Backend{}}
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
					add(serviceName(s), s.Revision, s.Status.Backends)
				}
			}
			for _, key := range keys {
				backends, err := c.Backends(ctx, key.Namespace, key.Name)
				if err != nil {
					return notFound(err, seeServices)
				}
				add(key.String(), backends.Revision, backends.Items)
			}
			return a.show(a.backendListView(list))
		}),
	}
}

// parseBackend reads "SERVICE BACKEND" or "SERVICE/BACKEND".
func parseBackend(args []string) (vip.ServiceKey, string, error) {
	service, id := args[0], ""
	if len(args) == 2 {
		id = args[1]
	} else if i := strings.LastIndexByte(args[0], '/'); i >= 0 {
		service, id = args[0][:i], args[0][i+1:]
	} else {
		return vip.ServiceKey{}, "", &failure{code: ExitUsage, err: errors.New("backend missing: use SERVICE BACKEND or SERVICE/BACKEND"),
			hint: "run ironvip backend list " + args[0]}
	}
	key, err := parseKey(service)
	if err != nil {
		return key, "", err
	}
	addr, port, err := vip.ParseBackendID(id)
	if err != nil {
		return key, "", &failure{code: ExitUsage, err: err, hint: "run ironvip backend list " + key.String()}
	}
	return key, vip.Backend{Address: addr, Port: port}.ID(), nil
}

func (a *app) backendListView(list itemsOf[v1.Backend]) output.View {
	grid := output.NewGrid(append([]string{"SERVICE"}, backendHeader...)...)
	for _, b := range list.Items {
		grid.Add(append([]any{b.Service}, a.backendRow(b.BackendStatus)...)...)
	}
	view := output.List(list, grid, "no backends")
	view.Names = output.Texts(list.Items, func(b v1.Backend) string { return b.Service + "/" + b.ID })
	return view
}

// backendHeader names the cells of backendRow.
var backendHeader = []string{"BACKEND", "WEIGHT", "STATE", "NODE", "ZONE", "+TTL", "+HEARTBEAT DUE", "+REMOVED", "+OVERRIDE"}

func (a *app) backendRow(b v1.BackendStatus) []any {
	state := output.Cell{Text: backendState(b), Style: output.Good}
	if !b.Usable {
		state.Style = output.Caution
	}
	if b.LeavingAt != nil {
		state.Text += ", removed " + a.ago(b.LeavingAt) + " at the latest"
	}
	return []any{b.ID, b.Weight, state, b.Node, b.Zone, b.TTL, a.ago(b.ExpiresAt), a.ago(b.RemovedAt), a.overridden(b.Override)}
}

// backendState describes the state: "ready", "drain (source says ready)", "ready, not usable".
func backendState(b v1.BackendStatus) string {
	switch {
	case b.LeavingAt != nil:
		return "leaving"
	case b.SourceState != "" && b.SourceState != b.State:
		return b.State + " (source says " + b.SourceState + ")"
	case b.State == vip.Ready.String() && !b.Usable:
		return b.State + ", not usable"
	}
	return b.State
}
