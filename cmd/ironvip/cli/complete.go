package cli

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ironvip/ironvip/api/client"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
)

// completionTimeout bounds the wait of a shell's completion for the agent.
const completionTimeout = time.Second

// completer proposes values for the argument after args. Values that args has are left out.
type completer func(ctx context.Context, c *client.Client, args []string) ([]cobra.Completion, error)

// complete converts a completer to a cobra completion. If the agent doesn't answer, it proposes
// nothing and prints no message into the command line.
func (a *app) complete(propose completer) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(cmd.Context()), completionTimeout)
		defer cancel()
		c, err := a.clientWithin(completionTimeout)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		defer c.Close()
		out, err := propose(ctx, c, args)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		out = slices.DeleteFunc(out, func(proposal string) bool {
			value, _, _ := strings.Cut(proposal, "\t") // a description may follow
			return !strings.HasPrefix(value, typed) || slices.Contains(args, value)
		})
		return out, cobra.ShellCompDirectiveNoFileComp
	}
}

// onlyFirst limits a completer to the first argument.
func onlyFirst(propose completer) completer {
	return func(ctx context.Context, c *client.Client, args []string) ([]cobra.Completion, error) {
		if len(args) > 0 {
			return nil, nil
		}
		return propose(ctx, c, args)
	}
}

// services proposes the names of services.
func services(ctx context.Context, c *client.Client, _ []string) ([]cobra.Completion, error) {
	var out []cobra.Completion
	for s, err := range c.AllServices(ctx, client.List{}) {
		if err != nil {
			return nil, err
		}
		out = append(out, cobra.CompletionWithDesc(serviceName(s), s.Status.State+" "+commaList(s.Status.VIPs)))
	}
	return out, nil
}

// serviceThenBackend proposes services, and then the backends of the chosen one.
func serviceThenBackend(ctx context.Context, c *client.Client, args []string) ([]cobra.Completion, error) {
	switch len(args) {
	case 0:
		return services(ctx, c, args)
	case 1:
		key, err := parseKey(args[0])
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

// overrideNames proposes the backends with an override.
func overrideNames(ctx context.Context, c *client.Client, _ []string) ([]cobra.Completion, error) {
	list, err := c.Overrides(ctx)
	return output.Texts(list.Items, func(o v1.Override) cobra.Completion {
		return cobra.CompletionWithDesc(o.Service+"/"+o.Backend, o.State)
	}), err
}

// poolNames proposes the names of pools.
func poolNames(ctx context.Context, c *client.Client, _ []string) ([]cobra.Completion, error) {
	list, err := c.Pools(ctx)
	return output.Texts(list.Items, func(p v1.Pool) cobra.Completion { return cobra.CompletionWithDesc(p.Name, commaList(p.CIDRs)) }), err
}

// sourceNames proposes the names of the sources.
func sourceNames(ctx context.Context, c *client.Client, _ []string) ([]cobra.Completion, error) {
	list, err := c.Sources(ctx)
	return output.Texts(list.Items, func(s v1.Source) cobra.Completion { return cobra.CompletionWithDesc(s.Name, s.Type) }), err
}

// tableNames proposes the names of the agent's tables.
func tableNames(ctx context.Context, c *client.Client, _ []string) ([]cobra.Completion, error) {
	list, err := c.DebugTables(ctx)
	return output.Texts(list.Items, func(t v1.DebugTableInfo) cobra.Completion { return t.Name }), err
}

// completeFiles proposes files with an extension.
func completeFiles(extension string) cobra.CompletionFunc {
	return cobra.FixedCompletions([]cobra.Completion{extension}, cobra.ShellCompDirectiveFilterFileExt)
}
