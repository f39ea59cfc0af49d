package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ironvip/ironvip/api/client"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
	"github.com/ironvip/ironvip/vip"
)

// seeServices is the hint for a service that doesn't exist.
const seeServices = "run ironvip service list"

// parseKey reads a service's name from the command line.
func parseKey(s string) (vip.ServiceKey, error) {
	key, err := vip.ParseServiceKey(s)
	if err != nil {
		return key, &failure{code: ExitUsage, err: err, hint: "use NAME or NAMESPACE/NAME; run ironvip service list"}
	}
	return key, nil
}

// parseKeys parses every name first, so that an invalid name prevents any action.
func parseKeys(names []string) ([]vip.ServiceKey, error) {
	keys := make([]vip.ServiceKey, len(names))
	for i, name := range names {
		key, err := parseKey(name)
		if err != nil {
			return nil, err
		}
		keys[i] = key
	}
	return keys, nil
}

// forEach reads an answer of the agent for each named service.
func forEach[T any](names []string, read func(vip.ServiceKey) (T, error)) ([]T, error) {
	keys, err := parseKeys(names)
	if err != nil {
		return nil, err
	}
	out := make([]T, len(keys))
	for i, key := range keys {
		if out[i], err = read(key); err != nil {
			return nil, notFound(err, seeServices)
		}
	}
	return out, nil
}

func (a *app) serviceListCommand() *cobra.Command {
	var by client.List
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "list services with addresses and state",
		Example: "  ironvip service list\n  ironvip service list --state degraded -o wide\n  ironvip service list --label team=web -o name",
		Args:    cobra.NoArgs,
		RunE: a.withClient(func(ctx context.Context, c *client.Client, _ []string) error {
			connections := func() (map[string]uint64, error) { return nil, nil }
			if a.printer().People() { // in the time of the first page
				connections = inBackground(func() (map[string]uint64, error) { return openConnections(ctx, c) })
			}
			table := serviceTable{a: a}
			for page, err := range c.ServicePages(ctx, by) {
				if err != nil {
					return err
				}
				if table.grid == nil {
					open, err := connections()
					if err != nil && len(page.Items) > 0 {
						a.printer().Say("connections unknown: %v", err)
					}
					table.begin(page, open)
				}
				table.add(page.Items)
			}
			empty := "no services"
			if by.Source != "" || by.State != "" || len(by.Labels) > 0 {
				empty = "no matching services"
			}
			return a.show(output.List(table.list, table.grid, empty))
		}),
	}
	flags := cmd.Flags()
	flags.StringVar(&by.Source, "source", "", "list services of this source")
	states := []string{v1.StateHealthy, v1.StateUnchecked, v1.StateElsewhere, v1.StateDegraded, v1.StateDown, v1.StatePending, v1.StateRefused}
	choiceFlag(cmd, &by.State, "state", "list services in this state: "+strings.Join(states, ", "), states...)
	flags.StringArrayVarP(&by.Labels, "label", "l", nil, "list services with this label: KEY or KEY=VALUE (repeatable)")
	must(cmd.RegisterFlagCompletionFunc("source", a.complete(sourceNames)))
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
		Long: `Shows services in full. With -o toml, json or yaml it prints their definition in the form
that "service apply" reads; "service list -o json" has the status as well.

If all backends registered themselves with a ttl, the definition leaves them out, and an apply
keeps them. If only some did, it has all backends, because an apply removes those that are
not in its list. Then a message names them: one that is gone by the time of an apply would
return without a ttl, so remove it from the file.`,
		Example:           "  ironvip service get web\n  ironvip service get web -o toml > web.toml",
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: a.complete(services),
		RunE: a.withClient(func(ctx context.Context, c *client.Client, args []string) error {
			list, err := forEach(args, func(key vip.ServiceKey) (v1.Service, error) {
				return c.Service(ctx, key.Namespace, key.Name, client.Wait{})
			})
			if err != nil {
				return err
			}
			conns := map[string]map[string]uint64{}
			for i, s := range list {
				if a.printer().People() && len(s.Status.Backends) > 0 {
					conns[serviceName(s)] = a.backendConnections(ctx, c, vip.ServiceKey{Namespace: s.Spec.Namespace, Name: s.Spec.Name}, list[i].Status.Backends)
				}
			}
			if !a.printer().People() && a.format != output.Name {
				a.nameRegistered(list)
			}
			return a.show(a.serviceView(list, conns))
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
		if len(registered) > 0 && definition(s).Backends != nil {
			gone := "after it is gone would add it"
			if len(registered) > 1 {
				gone = "after they are gone would add them"
			}
			a.printer().Label("note", output.Faint, fmt.Sprintf("service %s: %s registered with a ttl; an apply %s without one", serviceName(s), strings.Join(registered, ", "), gone))
		}
	}
}

func (a *app) serviceExplainCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "explain NAME",
		Short:             "explain the state of a service",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.complete(onlyFirst(services)),
		RunE: a.withClient(func(ctx context.Context, c *client.Client, args []string) error {
			list, err := forEach(args, func(key vip.ServiceKey) (v1.Explanation, error) {
				return c.Explain(ctx, key.Namespace, key.Name)
			})
			if err != nil {
				return err
			}
			return a.show(explainView(list[0]))
		}),
	}
}

func (a *app) serviceDeleteCommand() *cobra.Command {
	var ignoreMissing bool
	cmd := &cobra.Command{
		Use:     "delete NAME...",
		Aliases: []string{"rm"},
		Short:   "delete services of the API; open connections drain",
		Long: `Deletes services that were created with "service apply" or the REST API. Their open
connections drain, and their addresses are reserved during a cooldown. Delete services of
other sources in that source.`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: a.complete(services),
	}
	dontWait := noWait(cmd.Flags())
	cmd.Flags().BoolVar(&ignoreMissing, "ignore-not-found", false, "ignore services that don't exist")
	cmd.RunE = a.withClient(func(ctx context.Context, c *client.Client, args []string) error {
		keys, err := parseKeys(args)
		if err != nil {
			return err
		}
		deleted := []v1.Deleted{}
		for _, key := range keys {
			d, err := c.DeleteService(ctx, key.Namespace, key.Name, a.write(*dontWait))
			if client.IsNotFound(err) && ignoreMissing {
				a.printer().Say("service %s does not exist", key)
				continue
			}
			if err != nil {
				return notFound(err, seeServices)
			}
			a.printer().Say("service %s deleted (revision %d)%s", key, d.Revision, appliedWord(d.Applied))
			deleted = append(deleted, d)
		}
		return showChange(a, deleted, output.Texts(deleted, func(d v1.Deleted) string { return d.Service }))
	})
	return cmd
}

// appliedWord returns the end of a message about a change.
func appliedWord(applied bool) string {
	if applied {
		return ", applied"
	}
	return ", not waiting"
}

// showChange writes the responses of a mutating command in the formats for programs. The
// human-readable message is already on stderr.
func showChange[T any](a *app, answers []T, names []string) error {
	return a.show(output.View{Data: oneOrList(answers), Names: names})
}

// oneOrList returns the document of some objects: a single one alone, several as a list.
func oneOrList[T any](objects []T) any {
	if len(objects) == 1 {
		return objects[0]
	}
	return itemsOf[T]{objects}
}

// itemsOf is the form of a list that has no type in the API.
type itemsOf[T any] struct {
	Items []T `json:"items"`
}

func nameOf(namespace, name string) string {
	return vip.ServiceKey{Namespace: namespace, Name: name}.String()
}

// serviceName returns a service's name in the form that commands accept.
func serviceName(s v1.Service) string { return nameOf(s.Spec.Namespace, s.Spec.Name) }
