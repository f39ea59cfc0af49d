package service

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ironvip/ironvip/api/client"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/command"
	"github.com/ironvip/ironvip/sources/rest"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

func (a *app) backendWeightCommand() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "weight SERVICE BACKEND WEIGHT",
		Short: "set the weight of a backend of a service of the API",
		Long: `Sets a backend's share of new connections, relative to the others, in a service of the API. Change
the weights of other sources there. Open connections stay. The weight 0 stops new connections, as
"backend drain" does for services of every source.

BACKEND is an id from "backend list". SERVICE/BACKEND works too.`,
		Example:           "  ironvip backend weight web 10.1.0.13:8080 50",
		Args:              cobra.RangeArgs(2, 3),
		ValidArgsFunction: a.Complete(serviceThenBackend),
	}
	dontWait := command.NoWait(cmd.Flags())
	cmd.Flags().BoolVar(&force, "force", false, "permit the weight 0 for the last usable backend")
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		// A negative weight looks like a flag.
		if missing, ok := errors.AsType[*pflag.NotExistError](err); ok {
			word := "-" + missing.GetSpecifiedShortnames()
			if _, err := strconv.ParseInt(word, 10, 64); err == nil {
				return invalidWeight(cmd, word)
			}
		}
		return cmd.Parent().FlagErrorFunc()(cmd, err)
	})
	cmd.RunE = a.WithClient(func(ctx context.Context, c *client.Client, args []string) error {
		key, id, err := parseBackend(args[:len(args)-1])
		if err != nil {
			return err
		}
		word := args[len(args)-1]
		weight, err := strconv.ParseUint(word, 10, 32)
		if err != nil || weight > vip.MaxWeight {
			return invalidWeight(cmd, word)
		}
		id, stored, err := setWeight(ctx, c, key, id, int(weight), force, a.Write(*dontWait))
		if err != nil {
			return err
		}
		at := slices.IndexFunc(stored.Status.Backends, func(b v1.BackendStatus) bool { return b.ID == id })
		if at < 0 {
			return fmt.Errorf("backend %s/%s was deleted meanwhile", key, id)
		}
		b := v1.Backend{Service: key.String(), Revision: stored.Revision, BackendStatus: stored.Status.Backends[at]}
		a.Say("backend %s/%s has weight %d (revision %d)%s", key, id, b.Weight, b.Revision, command.AppliedWord(!*dontWait))
		return command.ShowChange(a.App, []v1.Backend{b}, []string{key.String() + "/" + id})
	})
	return cmd
}

func invalidWeight(cmd *cobra.Command, word string) error {
	return command.Usage(cmd, "invalid weight %q: must be 0 to %d", word, vip.MaxWeight)
}

// setWeight reads the definition of a service, and writes it with the new weight. It begins again if
// the service was changed meanwhile. It returns the backend's id, which may have a port that named
// does not have.
func setWeight(ctx context.Context, c *client.Client, key vip.ServiceKey, named string, weight int, force bool, w client.Write) (id string, s v1.Service, err error) {
	const attempts = 5
	for i := 1; ; i++ {
		s, err = c.Service(ctx, key.Namespace, key.Name, client.Wait{})
		if err != nil {
			return id, s, command.NotFound(err, command.SeeServices)
		}
		if s.Source != rest.Type {
			return id, s, &command.Failure{Code: command.ExitConflict, Err: fmt.Errorf("service %s is defined by source %s: %s", key, s.Source, s.Origin), Hint: "change the weight there, or use ironvip backend drain"}
		}
		backends := s.Spec.All()
		at := indexOf(backends, named)
		if at < 0 {
			return id, s, &command.Failure{Code: command.ExitNotFound, Err: fmt.Errorf("service %s has no backend %s", key, named), Hint: "run ironvip backend list " + key.String()}
		}
		id = backendID(backends[at])
		if weight == 0 && !force && isLastUsable(s.Status.Backends, id) {
			return id, s, &command.Failure{Code: command.ExitConflict, Err: fmt.Errorf("%s is the last usable backend of service %s: new connections would be refused", id, key),
				Hint: "bring another backend back first, or use --force"}
		}
		backends[at].Weight = &weight
		w.IfMatch = s.ETag
		stored, err := c.PutService(ctx, key.Namespace, key.Name, s.Spec, w)
		if i == attempts || !client.IsCode(err, v1.CodePreconditionFailed) {
			return id, stored, err
		}
	}
}

// indexOf returns the index of a backend by its id, or by its address if it is the only one there; -1
// if it is not found.
func indexOf(backends []*spec.Backend, id string) int {
	if at := slices.IndexFunc(backends, func(b *spec.Backend) bool { return backendID(b) == id }); at >= 0 {
		return at
	}
	found := -1
	for i, b := range backends {
		switch {
		case b.Address != strings.Trim(id, "[]"):
		case found >= 0:
			return -1
		default:
			found = i
		}
	}
	return found
}

func backendID(b *spec.Backend) string {
	addr, err := netip.ParseAddr(b.Address)
	if err != nil { // the agent's definitions have addresses
		return b.Address
	}
	return vip.Backend{Address: addr, Port: uint16(b.Port)}.ID()
}

// isLastUsable reports whether a backend is usable, and no other is.
func isLastUsable(all []v1.BackendStatus, id string) bool {
	usable := slices.DeleteFunc(slices.Clone(all), func(b v1.BackendStatus) bool { return !b.Usable || b.LeavingAt != nil })
	return len(usable) == 1 && usable[0].ID == id
}
