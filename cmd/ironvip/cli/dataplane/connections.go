package dataplane

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/ironvip/ironvip/api/client"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/command"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
)

// connectionsAtOnce is the number of connections in one part of the table. Its columns are as wide
// as the widest row so far.
const connectionsAtOnce = 500

func (a *app) dataplaneConnectionsCommand() *cobra.Command {
	var service string
	var limit int
	cmd := &cobra.Command{
		Use:     "connections",
		Aliases: []string{"conns"},
		Short:   "list single connections through this host, as ipvsadm -Lnc does",
		Long: `Lists the connections to services through this host, in any order. EXPIRES is when a connection
ends if nothing more is sent. The state AFFINITY is the record of the backend for a client's next
connections. -o json prints one document per line. Only operators may see the addresses of clients;
"service stats" has the numbers of connections.`,
		Example: "  ironvip dataplane connections --service web\n  ironvip dataplane connections --limit 0 -o json | jq -r .client",
	}
	flags := cmd.Flags()
	flags.StringVar(&service, "service", "", "list connections to this service")
	flags.IntVar(&limit, "limit", 1000, "end the list after this many connections; 0 lists all")
	command.Must(cmd.RegisterFlagCompletionFunc("service", a.Complete(command.Services)))
	cmd.RunE = a.WithClient(func(ctx context.Context, c *client.Client, _ []string) error {
		if limit < 0 {
			return command.Usage(cmd, "invalid --limit %d: must not be negative", limit)
		}
		if err := command.ExpandKey(&service); err != nil {
			return err
		}
		return a.listConnections(ctx, c, service, limit)
	})
	return cmd
}

// listConnections prints connections as they arrive. It asks for one more than the limit, to know
// whether the list is complete.
func (a *app) listConnections(ctx context.Context, c *client.Client, service string, limit int) error {
	p := a.Printer
	ask := limit
	if limit > 0 {
		ask++
	}
	grid := output.NewGrid("CLIENT", "FRONTEND", "BACKEND", "STATE", "EXPIRES", "SERVICE")
	n := 0
	for line, err := range c.Connections(ctx, service, ask) {
		switch {
		case err != nil:
			if printed := p.StreamRows(grid); printed != nil {
				return printed
			}
			return command.NotFound(err, command.SeeServices)
		case n == limit && limit > 0:
			p.Say("there are more than %s: use --limit", output.Plural(limit, "connection"))
			return p.StreamRows(grid)
		}
		n++
		if !p.People() {
			if err := p.Stream(output.View{Data: line, Names: []string{line.Client}}); err != nil {
				return err
			}
			continue
		}
		grid.Add(line.Client, line.Frontend, line.Backend, line.State, expires(line), line.Service)
		if len(grid.Rows) == connectionsAtOnce {
			if err := p.StreamRows(grid); err != nil {
				return err
			}
		}
	}
	if n == 0 {
		p.Say("no connections")
	}
	return p.StreamRows(grid)
}

// expires returns when a connection ends by itself: "14m58s".
func expires(c v1.Connection) string {
	if c.Expires == 0 {
		return ""
	}
	return (time.Duration(c.Expires) * time.Second).String()
}
