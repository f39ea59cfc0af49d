package service

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ironvip/ironvip/api/client"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/command"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
	"github.com/ironvip/ironvip/vip"
)

func (a *app) serviceListCommand() *cobra.Command {
	var by client.List
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "list services with addresses and state",
		Example: "  ironvip service list --state degraded -o wide\n  ironvip service list --label team=web -o name",
		RunE: a.WithClient(func(ctx context.Context, c *client.Client, _ []string) error {
			connections := func() (map[string]uint64, error) { return nil, nil }
			if a.People() { // in the time of the first page
				connections = inBackground(func() (map[string]uint64, error) { return openConnections(ctx, c) })
			}
			list, open := v1.ServiceList{Items: []v1.Service{}}, map[string]uint64(nil)
			grid := output.NewGrid("NAME", "VIP", "PORTS", "BACKENDS", "STATE", "SOURCE", "CONN", "AGE",
				"+DNS NAME", "+POOL", "+SCHEDULER", "+NODE PORTS", "+REVISION", "+SUMMARY")
			isFirst := true
			for page, err := range c.ServicePages(ctx, by) {
				if err != nil {
					return err
				}
				if isFirst {
					isFirst, list.Revision = false, page.Revision // of the first page, so that a wait for changes misses nothing
					if open, err = connections(); err != nil && len(page.Items) > 0 {
						a.Say("connections unknown: %v", err)
					}
				}
				for i := range page.Items {
					a.serviceRow(grid, &page.Items[i], open)
				}
				if !a.People() { // a table needs no services any more
					list.Items = append(list.Items, page.Items...)
				}
			}
			empty := "no services"
			if by.Source != "" || by.State != "" || len(by.Labels) > 0 {
				empty = "no matching services"
			}
			return a.Show(output.List(list, grid, empty))
		}),
	}
	flags := cmd.Flags()
	flags.StringVar(&by.Source, "source", "", "list services of this source")
	states := []string{v1.StateHealthy, v1.StateUnchecked, v1.StateElsewhere, v1.StateDegraded, v1.StateDown, v1.StatePending, v1.StateRefused}
	command.ChoiceFlag(cmd, &by.State, "state", "list services in a state: "+strings.Join(states, ", "), states...)
	flags.StringArrayVarP(&by.Labels, "label", "l", nil, "list services with this label: KEY or KEY=VALUE (repeatable)")
	command.Must(cmd.RegisterFlagCompletionFunc("source", a.Complete(command.Sources)))
	return cmd
}

// inBackground calls f in the background. The result waits for its end.
func inBackground[T any](f func() (T, error)) (wait func() (T, error)) {
	var out T
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		out, err = f()
	}()
	return func() (T, error) {
		<-done
		return out, err
	}
}

func (a *app) serviceGetCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "get NAME...",
		Short: "show services in full: definition, addresses, every backend",
		Long: `Shows services in full. With -o toml, json or yaml, it prints their definition in the form that
"service apply" reads; "service list -o json" has the status as well.

The definition leaves out backends that registered themselves with a ttl, if all did: an apply keeps
them. Otherwise it has them, and a message names them: one that is gone by the time of an apply would
return without a ttl, so remove it from the file.`,
		Example:           "  ironvip service get web -o toml > web.toml",
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: a.Complete(command.Services),
		RunE: a.WithClient(func(ctx context.Context, c *client.Client, args []string) error {
			list, err := command.ForEach(args, func(key vip.ServiceKey) (v1.Service, error) {
				return c.Service(ctx, key.Namespace, key.Name, client.Wait{})
			})
			if err != nil {
				return err
			}
			conns := map[string]map[string]uint64{}
			for i, s := range list {
				if a.People() && len(s.Status.Backends) > 0 {
					conns[command.ServiceName(s)] = a.backendConnections(ctx, c, vip.ServiceKey{Namespace: s.Spec.Namespace, Name: s.Spec.Name}, list[i].Status.Backends)
				}
			}
			if !a.People() && a.Format != output.Name {
				a.nameRegistered(list)
			}
			return a.Show(a.serviceView(list, conns))
		}),
	}
}

// nameRegistered names the backends that registered themselves with a ttl, and are in the definition
// of their service because others did not.
func (a *app) nameRegistered(list []v1.Service) {
	for _, s := range list {
		var registered []string
		for _, b := range s.Status.Backends {
			if b.TTL != "" && !b.Removed {
				registered = append(registered, b.ID)
			}
		}
		if spec := definition(s); len(registered) > 0 && len(spec.All()) > 0 {
			gone := "after it is gone would add it"
			if len(registered) > 1 {
				gone = "after they are gone would add them"
			}
			a.Label("note", output.Faint, fmt.Sprintf("service %s: %s registered with a ttl; an apply %s without one", command.ServiceName(s), strings.Join(registered, ", "), gone))
		}
	}
}

func (a *app) serviceExplainCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "explain NAME",
		Short:             "explain the state of a service",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.Complete(command.OnlyFirst(command.Services)),
		RunE: a.WithClient(func(ctx context.Context, c *client.Client, args []string) error {
			list, err := command.ForEach(args, func(key vip.ServiceKey) (v1.Explanation, error) {
				return c.Explain(ctx, key.Namespace, key.Name)
			})
			if err != nil {
				return err
			}
			return a.Show(explainView(list[0]))
		}),
	}
}

func (a *app) serviceDeleteCommand() *cobra.Command {
	var ignoreMissing bool
	cmd := &cobra.Command{
		Use:     "delete NAME...",
		Aliases: []string{"rm"},
		Short:   "delete services of the API; open connections drain",
		Long: `Deletes services of the API. Their open connections drain, and their addresses are reserved during a
cooldown. Delete services of other sources in that source.`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: a.Complete(command.Services),
	}
	dontWait := command.NoWait(cmd.Flags())
	cmd.Flags().BoolVar(&ignoreMissing, "ignore-not-found", false, "ignore services that don't exist")
	cmd.RunE = a.WithClient(func(ctx context.Context, c *client.Client, args []string) error {
		keys, err := command.ParseKeys(args)
		if err != nil {
			return err
		}
		deleted := []v1.Deleted{}
		for _, key := range keys {
			d, err := c.DeleteService(ctx, key.Namespace, key.Name, a.Write(*dontWait))
			if client.IsNotFound(err) && ignoreMissing {
				a.Say("service %s does not exist", key)
				continue
			}
			if err != nil {
				return command.NotFound(err, command.SeeServices)
			}
			a.Say("service %s deleted (revision %d)%s", key, d.Revision, command.AppliedWord(d.Applied))
			deleted = append(deleted, d)
		}
		return command.ShowChange(a.App, deleted, output.Texts(deleted, func(d v1.Deleted) string { return d.Service }))
	})
	return cmd
}
