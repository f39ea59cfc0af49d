package node

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ironvip/ironvip/api/client"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/command"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/render"
	"github.com/ironvip/ironvip/internal/access"
)

func (a *app) tokenCreateCommand() *cobra.Command {
	var role string
	var namespaces, hostnames, backends []string
	var period time.Duration
	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "create a token and print it once",
		Long: `Creates a token for callers of the API, and prints it on stdout, once. It works on every host of a
fleet. A viewer reads; a registrar also writes services and backends of its namespaces; an operator
writes those of all namespaces, drains, reloads and repairs; an admin also manages tokens and reads
the whole store.`,
		Example: "  ironvip token create deploy --role registrar --namespace shop > /etc/deploy/ironvip-token\n" +
			"  ironvip token create prometheus --role viewer --expires 8760h",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	flags := cmd.Flags()
	flags.StringVar(&role, "role", "", "viewer, registrar, operator or admin (required)")
	flags.StringArrayVar(&namespaces, "namespace", nil, "a namespace of a registrar (repeatable)")
	flags.StringArrayVar(&backends, "backend", nil, "a range of addresses that backends of a registrar may have (repeatable; default: all but loopback and link-local addresses)")
	flags.StringArrayVar(&hostnames, "hostname", nil, "a hostname that services of a registrar may have, or *.DOMAIN (repeatable)")
	flags.DurationVar(&period, "expires", 0, "how long it is valid, for example 720h (default: until it is revoked)")
	command.Must(cmd.RegisterFlagCompletionFunc("role", cobra.FixedCompletions([]cobra.Completion{
		access.Viewer.String(), access.Registrar.String(), access.Operator.String(), access.Admin.String()}, cobra.ShellCompDirectiveNoFileComp)))
	cmd.RunE = a.WithClient(func(ctx context.Context, c *client.Client, args []string) error {
		spec := v1.TokenSpec{Role: role, Namespaces: namespaces, Hostnames: hostnames}
		if role == "" {
			return command.Usage(cmd, "%s: --role is missing", cmd.CommandPath())
		}
		for _, text := range backends {
			p, err := netip.ParsePrefix(text)
			if err != nil {
				return command.Usage(cmd, "invalid --backend %q: write a range such as 10.1.0.0/16", text)
			}
			spec.Backends = append(spec.Backends, p)
		}
		if cmd.Flags().Changed("expires") {
			if period <= 0 {
				return command.Usage(cmd, "invalid --expires %s: must be positive", period)
			}
			spec.Expires = new(a.Now().Add(period).UTC().Truncate(time.Second))
		}
		t, err := c.CreateToken(ctx, args[0], spec)
		if err != nil {
			return err
		}
		if a.People() {
			a.Say("token %s created: %s", t.Name, tokenGrant(t))
		}
		return a.Show(output.View{Data: t, Names: []string{t.Name}, Text: func(*output.Printer) string { return t.Token + "\n" }})
	})
	return cmd
}

func (a *app) tokenListCommand() *cobra.Command {
	return command.List(a.App, "list the tokens of callers of the API", "", (*client.Client).Tokens, func(list v1.TokenList) output.View {
		grid := output.NewGrid("NAME", "ROLE", "NAMESPACES", "HOSTNAMES", "BACKENDS", "CREATED", "EXPIRES", "AUTHOR")
		for _, t := range list.Items {
			expires := output.Cell{Text: "never"}
			if t.Expires != nil {
				expires.Text = a.Ago(t.Expires)
			}
			if t.Expired {
				expires = output.Cell{Text: "expired " + expires.Text, Style: output.Caution}
			}
			grid.Add(t.Name, t.Role, strings.Join(t.Namespaces, ","), strings.Join(t.Hostnames, ","), render.CommaList(t.Backends), a.Ago(&t.Created), expires, t.Author)
		}
		return output.List(list, grid, "no tokens")
	})
}

func (a *app) tokenRevokeCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "revoke NAME",
		Short:             "make a token invalid",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.Complete(command.OnlyFirst(tokenNames)),
		RunE: a.WithClient(func(ctx context.Context, c *client.Client, args []string) error {
			t, err := c.RevokeToken(ctx, args[0])
			if err != nil {
				return command.NotFound(err, "run ironvip token list")
			}
			a.Say("token %s revoked", t.Name)
			return command.ShowChange(a.App, []v1.Token{t}, []string{t.Name})
		}),
	}
}

// tokenNames proposes the names of the tokens.
func tokenNames(ctx context.Context, c *client.Client, _ []string) ([]cobra.Completion, error) {
	list, err := c.Tokens(ctx)
	return output.Texts(list.Items, func(t v1.Token) cobra.Completion { return cobra.CompletionWithDesc(t.Name, tokenGrant(t)) }), err
}

// tokenGrant describes what a token allows: "registrar of shop".
func tokenGrant(t v1.Token) string {
	if len(t.Namespaces) == 0 {
		return t.Role
	}
	return fmt.Sprintf("%s of %s", t.Role, strings.Join(t.Namespaces, ", "))
}
