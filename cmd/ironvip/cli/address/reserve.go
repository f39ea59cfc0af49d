package address

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/ironvip/ironvip/api/client"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/command"
)

func (a *app) vipReserveCommand() *cobra.Command {
	var spec v1.ReservationSpec
	cmd := &cobra.Command{
		Use:   "reserve ADDRESS | --pool POOL",
		Short: "keep an address for a service, or for a later request",
		Long: `Reserves an address, or with --pool a free one, until "vip release". With --for, the service gets it
when it needs an address, and no other service does; the service need not exist. Without --for, a
service that requests the address gets it. Services with the share_key of the holder can join it.

A service that holds an address keeps it, and does not move to the reserved one by itself. An address
that a service holds or had lately can be reserved only for this service.`,
		Example: "  ironvip vip reserve 192.0.2.10 --for shop/web\n" +
			"  ironvip vip reserve --pool public-v4 --for shop/web -o name",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	flags := cmd.Flags()
	flags.StringVar(&spec.Pool, "pool", "", "reserve a free address of this pool")
	command.ChoiceFlag(cmd, &spec.Family, "family", "with --pool: ipv4 or ipv6 (default ipv4, if the pool has it)", "ipv4", "ipv6")
	flags.StringVar(&spec.For, "for", "", "the only service that gets it: NAME or NAMESPACE/NAME")
	command.Must(cmd.RegisterFlagCompletionFunc("pool", a.Complete(poolNames)))
	command.Must(cmd.RegisterFlagCompletionFunc("for", a.Complete(command.Services)))
	cmd.RunE = a.WithClient(func(ctx context.Context, c *client.Client, args []string) error {
		flag := cmd.Flags().Changed
		switch {
		case len(args) == 0 && spec.Pool == "":
			return command.Usage(cmd, "no address: name one, or a pool with --pool")
		case len(args) > 0 && flag("pool"):
			return command.Usage(cmd, "--pool can't be combined with an address")
		case len(args) > 0 && flag("family"):
			return command.Usage(cmd, "--family can't be combined with an address")
		case len(args) > 0:
			if err := checkAddress(cmd, args); err != nil {
				return err
			}
			spec.Address = args[0]
		}
		if flag("for") {
			key, err := command.ParseKey(spec.For)
			if err != nil {
				return err
			}
			spec.For = key.String()
		}
		v, err := c.ReserveVIP(ctx, spec)
		if err != nil {
			return err
		}
		a.Say("%s reserved%s (revision %d)", v.Address, reservedFor(v), v.Revision)
		return command.ShowChange(a.App, []v1.VIP{v}, []string{v.Address})
	})
	return cmd
}

// reservedFor returns " for service web", or " for a service that requests it".
func reservedFor(v v1.VIP) string {
	if v.Reservation == nil || v.Reservation.For == "" {
		return " for a service that requests it"
	}
	return " for service " + v.Reservation.For
}

func (a *app) vipReleaseCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "release ADDRESS",
		Short: "end the reservation of an address",
		Long: `Ends the reservation of an address. A service that holds the address keeps it; without such a
service, the address is free at once.`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.Complete(command.OnlyFirst(reservedAddresses)),
		PreRunE:           checkAddress,
		RunE: a.WithClient(func(ctx context.Context, c *client.Client, args []string) error {
			v, err := c.ReleaseVIP(ctx, args[0])
			if err != nil {
				return command.NotFound(err, "run ironvip vip list")
			}
			rest := "it is free"
			if len(v.Holders) > 0 {
				rest = "service " + v.Holders[0].Service + " keeps it"
			}
			a.Say("reservation of %s released (revision %d); %s", v.Address, v.Revision, rest)
			return command.ShowChange(a.App, []v1.VIP{v}, []string{v.Address})
		}),
	}
}

// reservedAddresses proposes the addresses that are reserved.
func reservedAddresses(ctx context.Context, c *client.Client, _ []string) (out []cobra.Completion, err error) {
	list, err := c.VIPs(ctx, v1.KindAddress)
	for _, v := range list.Items {
		if r := v.Reservation; r != nil {
			out = append(out, cobra.CompletionWithDesc(v.Address, r.For))
		}
	}
	return out, err
}
