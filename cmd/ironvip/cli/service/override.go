package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/spf13/cobra"

	"github.com/ironvip/ironvip/api/client"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/command"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
	"github.com/ironvip/ironvip/vip"
)

func (a *app) backendStateCommand(state, short string) *cobra.Command {
	effect := ""
	if state != vip.Ready.String() {
		effect = `"drain" and "maint" work for services of every source and survive restarts. They end with
"backend ready", after --for, with the service, or an hour after the backend has left it. The last
usable backend needs --force (exit code 5).

`
	}
	cmd := &cobra.Command{
		Use:   state + " SERVICE BACKEND",
		Short: short,
		Long: `Sets a backend to "` + state + `": ` + short + `.

` + effect + `BACKEND is an id from "backend list". SERVICE/BACKEND works too, and so do an address and port from
events, and the address of a service's only backend there.`,
		Example:           "  ironvip backend " + state + " web 10.1.0.13:8080",
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: a.Complete(serviceThenBackend),
	}
	dontWait := command.NoWait(cmd.Flags())
	var period time.Duration
	var force, waitIdle bool
	if state != vip.Ready.String() {
		cmd.Flags().DurationVar(&period, "for", 0, "end the state after this time, for example 2h (default: with \"backend ready\")")
		cmd.Flags().BoolVar(&force, "force", false, "permit it for the last usable backend of the service or of a port")
		cmd.Flags().BoolVar(&waitIdle, "wait", false, "wait until the backend has no connections through this host (exit code 3 after --timeout; the drain continues)")
	}
	cmd.RunE = a.WithClient(func(ctx context.Context, c *client.Client, args []string) error {
		key, id, err := parseBackend(args)
		if err != nil {
			return err
		}
		spec := v1.StateSpec{State: state}
		if cmd.Flags().Changed("for") {
			if period <= 0 {
				return command.Usage(cmd, "invalid --for %s: must be positive", period)
			}
			spec.Expires = new(a.Now().Add(period).UTC())
		}
		b, err := c.SetBackendState(ctx, key.Namespace, key.Name, id, spec, force, a.Write(*dontWait))
		if err != nil {
			return stateRefused(err)
		}
		applied := command.AppliedWord(!*dontWait)
		a.Say("backend %s/%s set to %s (revision %d)%s%s", key, b.ID, b.State, b.Revision, applied, lastOne(state, b))
		if b.Local {
			a.Say("stored on this host only: the fleet's store is not reachable, and gets the change later")
		}
		if waitIdle {
			if err := a.waitIdle(ctx, c, key, id, state); err != nil {
				return err
			}
		}
		return command.ShowChange(a.App, []v1.Backend{b}, []string{key.String() + "/" + b.ID})
	})
	return cmd
}

// stateRefused adds the command's own hint to the refusal of a state.
func stateRefused(err error) error {
	if e, ok := errors.AsType[*client.Error](err); ok && e.Code == v1.CodeLastBackend {
		return &command.Failure{Code: command.ExitConflict, Err: err, Hint: "bring another backend back first, or use --force"}
	}
	return command.NotFound(err, "run ironvip backend list") // the service may be the one that does not exist
}

// lastOne returns why a backend is still not usable after it was set to ready, or for any state,
// that the backend no longer exists.
func lastOne(state string, b v1.Backend) string {
	if b.Removed {
		return "; it was deleted meanwhile"
	}
	if state != vip.Ready.String() || b.Usable {
		return ""
	}
	if b.Health == vip.Unhealthy.String() {
		return "; it takes no new connections yet: " + output.Join(": ", b.Health, output.Clean(b.HealthReason))
	}
	return "; it takes no new connections yet: " + backendState(b.BackendStatus) + ", weight " + fmt.Sprint(b.Weight)
}

func (a *app) overrideListCommand() *cobra.Command {
	return command.List(a.App, "list the operator overrides of backends and groups", `Lists the backends that an operator has set to drain or maint, and the groups of backends that an
operator has given another weight. The author is the user that sent the
command to the unix socket, or "tcp" and an address. NODE is the host that received it. An override
is "missing" if the backend or group has left its service, and "local" if it was set while the fleet's store
was unavailable, until it is merged there.`, (*client.Client).Overrides, a.overrideListView)
}

func (a *app) overrideListView(list v1.OverrideList) output.View {
	grid := output.NewGrid("SERVICE", "BACKEND OR GROUP", "STATE", "AUTHOR", "NODE", "SINCE", "EXPIRES", "+REVISION")
	for _, o := range list.Items {
		state := o.State
		if o.Weight != nil {
			state = fmt.Sprintf("weight %d", *o.Weight)
		}
		state += output.When(o.Missing, ", missing") + output.When(o.Local, ", local")
		grid.Add(o.Service, o.Backend+o.Group, output.Cell{Text: state, Style: output.Caution}, o.Author, o.Node, a.Ago(o.Since), cmp.Or(a.Ago(o.Expires), "never"), o.Revision)
	}
	return output.List(list, grid, "no overrides", 0, 1)
}

// overridden describes a backend's override: "by root 5m ago, expires in 2h".
func (a *app) overridden(o *v1.OverrideInfo) string {
	if o == nil {
		return ""
	}
	return cmp.Or(output.When(o.Author != "", "by "+o.Author), "set") + output.When(o.Node != "", " through "+o.Node) +
		output.When(o.Since != nil, " "+a.Ago(o.Since)) + output.When(o.Expires != nil, ", expires "+a.Ago(o.Expires)) + output.When(o.Local, ", local")
}

func (a *app) overrideClearCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "clear SERVICE BACKEND|GROUP",
		Short: "end the override of a backend or group",
		Long: `Ends an override, as "backend ready" does, also of a backend that its service no longer has. A group
of backends gets the weight of its source again.`,
		Example:           "  ironvip override clear web 10.1.0.13:8080\n  ironvip override list -o name | xargs -n 1 ironvip override clear",
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: a.Complete(command.OnlyFirst(overrideNames)),
	}
	dontWait := command.NoWait(cmd.Flags())
	cmd.RunE = a.WithClient(func(ctx context.Context, c *client.Client, args []string) error {
		key, id, err := parseID(args)
		if err != nil {
			return err
		}
		if vip.CheckLabel(id) != nil {
			if key, id, err = parseBackend(args); err != nil {
				return err
			}
		}
		d, err := c.DeleteOverride(ctx, key.Namespace, key.Name, id, a.Write(*dontWait))
		if err != nil {
			return command.NotFound(err, "run ironvip override list")
		}
		a.Say("override of %s/%s ended (revision %d)%s", key, id, d.Revision, command.AppliedWord(!*dontWait))
		return command.ShowChange(a.App, []v1.Deleted{d}, []string{key.String() + "/" + id})
	})
	return cmd
}

// overrideNames proposes the backends and groups with an override.
func overrideNames(ctx context.Context, c *client.Client, _ []string) ([]cobra.Completion, error) {
	list, err := c.Overrides(ctx)
	return output.Texts(list.Items, func(o v1.Override) cobra.Completion {
		return cobra.CompletionWithDesc(o.Service+"/"+o.Backend+o.Group, o.State)
	}), err
}

// idlePoll is the interval between counts of a draining backend's connections. Each costs the agent
// one read of the service's frontends in the dataplane.
const idlePoll = 500 * time.Millisecond

// waitIdle waits until a backend has no connections through the agent's host, at most for
// --timeout. It prints the number that remains whenever it changes. If connections remain, or the
// backend is no longer in the state that it was set to, it returns a failure with command.ExitDegraded.
func (a *app) waitIdle(ctx context.Context, c *client.Client, key vip.ServiceKey, id, state string) error {
	begun, name := time.Now(), key.String()+"/"+id
	var shown uint64
	return command.Poll(ctx, idlePoll, func() (done bool, err error) {
		now, err := c.BackendConnections(ctx, key.Namespace, key.Name, id)
		switch {
		case client.IsNotFound(err):
			a.Say("backend %s was removed from its service", name)
			return true, nil
		case err != nil:
			return false, fmt.Errorf("count the connections of backend %s: %w", name, err)
		case now.State != "" && now.State != state:
			return false, &command.Failure{Code: command.ExitDegraded, Err: fmt.Errorf("backend %s was set to %s meanwhile", name, now.State), Hint: "run ironvip override list; run ironvip events"}
		case now.Connections == 0:
			a.Say("backend %s has no connections", name)
			return true, nil
		case time.Since(begun) >= a.Timeout:
			return false, &command.Failure{Code: command.ExitDegraded, Err: errors.New("backend " + name + " still has " + connectionsOf(now) + " after " + a.Timeout.String()),
				Hint: "repeat the command to wait longer, with a larger --timeout"}
		case now.Connections != shown:
			a.Say("backend %s has %s", name, connectionsOf(now))
		}
		shown = now.Connections
		return false, nil
	})
}

func connectionsOf(c v1.BackendConnections) string {
	return output.Plural(int(min(c.Connections, math.MaxInt)), "open connection")
}
