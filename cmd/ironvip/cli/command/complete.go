package command

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ironvip/ironvip/api/client"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/render"
)

// completionTimeout bounds the wait of a shell's completion for the agent.
const completionTimeout = time.Second

// Completer proposes values for the argument after args. Values that args has are left out.
type Completer func(ctx context.Context, c *client.Client, args []string) ([]cobra.Completion, error)

// Complete converts a completer to a cobra completion. If the agent doesn't answer, it proposes
// nothing and prints no message into the command line.
func (a *App) Complete(propose Completer) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(cmd.Context()), completionTimeout)
		defer cancel()
		c, err := a.ClientWithin(completionTimeout)
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

// OnlyFirst limits a completer to the first argument.
func OnlyFirst(propose Completer) Completer {
	return func(ctx context.Context, c *client.Client, args []string) ([]cobra.Completion, error) {
		if len(args) > 0 {
			return nil, nil
		}
		return propose(ctx, c, args)
	}
}

// Services proposes the names of services.
func Services(ctx context.Context, c *client.Client, _ []string) ([]cobra.Completion, error) {
	var out []cobra.Completion
	for s, err := range c.AllServices(ctx, client.List{}) {
		if err != nil {
			return nil, err
		}
		out = append(out, cobra.CompletionWithDesc(ServiceName(s), s.Status.State+" "+render.CommaList(s.Status.VIPs)))
	}
	return out, nil
}

// Sources proposes the names of the sources.
func Sources(ctx context.Context, c *client.Client, _ []string) ([]cobra.Completion, error) {
	list, err := c.Sources(ctx)
	return output.Texts(list.Items, func(s v1.Source) cobra.Completion { return cobra.CompletionWithDesc(s.Name, s.Type) }), err
}

// Addresses proposes the addresses with a lease.
func Addresses(ctx context.Context, c *client.Client, _ []string) ([]cobra.Completion, error) {
	list, err := c.VIPs(ctx, v1.KindAddress)
	return output.Texts(list.Items, func(v v1.VIP) cobra.Completion { return cobra.CompletionWithDesc(v.Address, v.State) }), err
}

// CompleteFiles proposes files with an extension.
func CompleteFiles(extension string) cobra.CompletionFunc {
	return cobra.FixedCompletions([]cobra.Completion{extension}, cobra.ShellCompDirectiveFilterFileExt)
}
