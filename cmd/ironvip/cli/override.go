package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/ironvip/ironvip/api/client"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
	"github.com/ironvip/ironvip/vip"
)

func (a *app) backendStateCommand(state, short string) *cobra.Command {
	effect := `The override ends.`
	if state != vip.Ready.String() {
		effect = `The override survives restarts. It ends with
"backend ready", after --for, with its service, or an hour after the backend has left its
service. "override list" shows it. The last usable backend needs --force (exit code 5).

With --wait, the command returns when the backend has no connections left through this
host, and shows how many remain. If some remain after --timeout, it exits with 3, and the
drain continues: repeat the command to wait longer. Each host of a fleet counts its own.`
	}
	cmd := &cobra.Command{
		Use:   state + " SERVICE BACKEND",
		Short: short,
		Long: `Sets a backend to "` + state + `": ` + short + `.

It works for services of every source. ` + effect + `

BACKEND is an id from "backend list": ADDRESS:PORT or ADDRESS. SERVICE/BACKEND, as printed
by -o name, also works, and so do an address and port from events, and the address alone of
a backend with a port, if the service has only one there.`,
		Example:           "  ironvip backend " + state + " web 10.1.0.13:8080\n  ironvip backend " + state + " web/10.1.0.13:8080",
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: a.complete(serviceThenBackend),
	}
	dontWait := noWait(cmd.Flags())
	var period time.Duration
	var force, waitIdle bool
	if state != vip.Ready.String() {
		cmd.Flags().DurationVar(&period, "for", 0, "end the override after this time, for example 2h (default: when it is set to ready)")
		cmd.Flags().BoolVar(&force, "force", false, "permit it for the last usable backend of the service or of one of its ports")
		cmd.Flags().BoolVar(&waitIdle, "wait", false, "wait until the backend has no connections through this host, and show how many remain")
	}
	cmd.RunE = a.withClient(func(ctx context.Context, c *client.Client, args []string) error {
		key, id, err := parseBackend(args)
		if err != nil {
			return err
		}
		spec := v1.StateSpec{State: state}
		if cmd.Flags().Changed("for") {
			if period <= 0 {
				return usage(cmd, "invalid --for %s: must be positive", period)
			}
			spec.Expires = new(a.Now().Add(period).UTC())
		}
		b, err := c.SetBackendState(ctx, key.Namespace, key.Name, id, spec, force, a.write(*dontWait))
		if err != nil {
			return stateRefused(err)
		}
		applied := appliedWord(!*dontWait)
		a.printer().Say("backend %s/%s set to %s (revision %d)%s%s", key, b.ID, b.State, b.Revision, applied, lastOne(state, b))
		if b.Local {
			a.printer().Say("stored on this host only: the fleet's store is not reachable, and gets the change later")
		}
		if waitIdle {
			if err := a.waitIdle(ctx, c, key, id, state); err != nil {
				return err
			}
		}
		return showChange(a, []v1.Backend{b}, []string{key.String() + "/" + b.ID})
	})
	return cmd
}

// stateRefused adds the command's own hint to the refusal of a state.
func stateRefused(err error) error {
	if e, ok := errors.AsType[*client.Error](err); ok && e.Code == v1.CodeLastBackend {
		return &failure{code: ExitConflict, err: err, hint: "bring another backend back first, or use --force"}
	}
	return notFound(err, "run ironvip backend list") // the service may be the one that does not exist
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
	cmd := listCommand(a, "list the operator overrides of single backends", (*client.Client).Overrides, a.overrideListView)
	cmd.Long = `Lists the backends that an operator has set to drain or maint, with the author, the time, and
when the override ends by itself. The author is the user that sent the command to the
agent's unix socket, or "tcp" and an address. NODE is the host that received it.

An override ends with "backend ready" or "override clear", at EXPIRES, with its service, or
an hour after the backend has left its service (then shown as missing). One that was set
while Consul was unavailable is "local" until it is merged with the fleet's store.`
	return cmd
}

func (a *app) overrideListView(list v1.OverrideList) output.View {
	grid := output.NewGrid("SERVICE", "BACKEND", "STATE", "AUTHOR", "NODE", "SINCE", "EXPIRES", "+REVISION")
	for _, o := range list.Items {
		state := output.Cell{Text: o.State, Style: output.Caution}
		if o.Missing {
			state.Text += ", missing"
		}
		expires := "never"
		if o.Expires != nil {
			expires = a.ago(o.Expires)
		}
		if o.Local {
			state.Text += ", local"
		}
		grid.Add(o.Service, o.Backend, state, o.Author, o.Node, a.ago(o.Since), expires, o.Revision)
	}
	view := output.List(list, grid, "no overrides")
	view.Names = output.Texts(list.Items, func(o v1.Override) string { return o.Service + "/" + o.Backend })
	return view
}

// overridden describes a backend's override: "by root 5m ago, expires in 2h".
func (a *app) overridden(o *v1.OverrideInfo) string {
	if o == nil {
		return ""
	}
	text := "set"
	if o.Author != "" {
		text = "by " + o.Author
	}
	if o.Node != "" {
		text += " through " + o.Node
	}
	if o.Since != nil {
		text += " " + a.ago(o.Since)
	}
	if o.Expires != nil {
		text += ", expires " + a.ago(o.Expires)
	}
	if o.Local {
		text += ", local"
	}
	return text
}

func (a *app) overrideClearCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "clear SERVICE BACKEND",
		Short: "end the override of a backend",
		Long: `Ends an override, as "backend ready" does. It also works for a backend that its service no
longer has.`,
		Example:           "  ironvip override clear web 10.1.0.13:8080\n  ironvip override list -o name | xargs -n 1 ironvip override clear",
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: a.complete(onlyFirst(overrideNames)),
	}
	dontWait := noWait(cmd.Flags())
	cmd.RunE = a.withClient(func(ctx context.Context, c *client.Client, args []string) error {
		key, id, err := parseBackend(args)
		if err != nil {
			return err
		}
		d, err := c.DeleteOverride(ctx, key.Namespace, key.Name, id, a.write(*dontWait))
		if err != nil {
			return notFound(err, "run ironvip override list")
		}
		a.printer().Say("override of backend %s/%s ended (revision %d)%s", key, id, d.Revision, appliedWord(!*dontWait))
		return showChange(a, []v1.Deleted{d}, []string{key.String() + "/" + id})
	})
	return cmd
}
