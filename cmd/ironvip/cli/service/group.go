package service

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ironvip/ironvip/api/client"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/command"
	"github.com/ironvip/ironvip/vip"
)

// weightOf is the new weight of a group.
type weightOf struct {
	group string
	v1.WeightSpec
}

func (a *app) serviceWeightCommand() *cobra.Command {
	var period time.Duration
	var force bool
	cmd := &cobra.Command{
		Use:   "weight SERVICE GROUP=WEIGHT...",
		Short: "set the weights of groups of backends",
		Long: `Sets the weights of groups of backends, in services of every source: each group gets its share of
new connections. Open connections stay. The weights survive restarts. They end with "override clear
SERVICE GROUP", which gives a group the weight of its source again, after --for, with the service, or
an hour after the group has left it. "service get" shows the groups.`,
		Example:           "  ironvip service weight web stable=90 canary=10",
		Args:              cobra.MinimumNArgs(2),
		ValidArgsFunction: a.Complete(command.OnlyFirst(command.Services)),
	}
	dontWait := command.NoWait(cmd.Flags())
	cmd.Flags().DurationVar(&period, "for", 0, "end the weights after this time, for example 2h (default: with \"override clear\")")
	cmd.Flags().BoolVar(&force, "force", false, "permit the weight 0 for the last group with a usable backend")
	cmd.RunE = a.WithClient(func(ctx context.Context, c *client.Client, args []string) error {
		key, err := command.ParseKey(args[0])
		if err != nil {
			return err
		}
		var expires *time.Time
		if cmd.Flags().Changed("for") {
			if period <= 0 {
				return command.Usage(cmd, "invalid --for %s: must be positive", period)
			}
			expires = new(a.Now().Add(period).UTC())
		}
		weights := make([]weightOf, len(args)-1) // all are read before the first is set
		for i, arg := range args[1:] {
			group, word, _ := strings.Cut(arg, "=")
			weight, err := strconv.ParseUint(word, 10, 32)
			switch {
			case vip.CheckLabel(group) != nil:
				return command.Usage(cmd, "invalid %q: use GROUP=WEIGHT", arg)
			case err != nil || weight > vip.MaxWeight:
				return invalidWeight(cmd, word)
			}
			weights[i] = weightOf{group, v1.WeightSpec{Weight: new(int(weight)), Expires: expires}}
		}
		// The weights 0 come last, so that there is always a group with a weight.
		slices.SortStableFunc(weights, func(a, b weightOf) int { return min(*b.Weight, 1) - min(*a.Weight, 1) })
		var service v1.Service // of several groups, all must exist before the first is changed
		if len(weights) > 1 {
			if service, err = c.Service(ctx, key.Namespace, key.Name, client.Wait{}); err != nil {
				return command.NotFound(err, "run ironvip service list")
			}
		}
		for _, w := range weights {
			if len(weights) > 1 && !slices.ContainsFunc(service.Status.Groups, func(g v1.GroupStatus) bool { return g.Name == w.group }) {
				return &command.Failure{Code: command.ExitNotFound, Err: fmt.Errorf("service %q has no group %q", key, w.group), Hint: "see its groups: ironvip service get " + key.String()}
			}
		}
		set, names := make([]v1.Group, len(weights)), make([]string, len(weights))
		for i, w := range weights {
			g, err := c.SetGroupWeight(ctx, key.Namespace, key.Name, w.group, w.WeightSpec, force, a.Write(*dontWait))
			if e, ok := errors.AsType[*client.Error](err); ok && e.Code == v1.CodeLastBackend {
				return &command.Failure{Code: command.ExitConflict, Err: err, Hint: "give another group a weight first, or use --force"}
			}
			if err != nil {
				return command.NotFound(err, "run ironvip service get "+key.String())
			}
			share := "" // the next weight changes it
			if i == len(weights)-1 {
				share = fmt.Sprintf(", %g%% of new connections", g.Share)
			}
			a.Say("group %s of %s has weight %d%s (revision %d)%s", g.Name, key, g.Weight, share, g.Revision, command.AppliedWord(!*dontWait))
			if g.Local {
				a.Say("stored on this host only: the fleet's store is not reachable, and gets the change later")
			}
			set[i], names[i] = g, key.String()+"/"+g.Name
		}
		return command.ShowChange(a.App, set, names)
	})
	return cmd
}
