package cli

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/ironvip/ironvip/api/client"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
	"github.com/ironvip/ironvip/vip"
)

// idlePoll is the interval between counts of a draining backend's connections. Each costs the agent
// one read of the service's frontends in the dataplane.
const idlePoll = 500 * time.Millisecond

// waitIdle waits until a backend has no connections through the agent's host, at most for
// --timeout. It prints the number that remains whenever it changes. If connections remain, or the
// backend is no longer in the state that it was set to, it returns a failure with ExitDegraded.
func (a *app) waitIdle(ctx context.Context, c *client.Client, key vip.ServiceKey, id, state string) error {
	begun := time.Now()
	name := key.String() + "/" + id
	poll := time.NewTimer(0)
	defer poll.Stop()
	var last v1.BackendConnections
	for first := true; ; first = false {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-poll.C:
		}
		now, err := c.BackendConnections(ctx, key.Namespace, key.Name, id)
		left := a.timeout - time.Since(begun)
		switch {
		case client.IsNotFound(err):
			a.printer().Say("backend %s was removed from its service", name)
			return nil
		case err != nil:
			return fmt.Errorf("count the connections of backend %s: %w", name, err)
		case now.State != "" && now.State != state:
			return &failure{code: ExitDegraded, err: fmt.Errorf("backend %s was set to %s meanwhile", name, now.State), hint: "run ironvip override list; run ironvip events"}
		case now.Connections == 0:
			a.printer().Say("backend %s has no connections", name)
			return nil
		case left <= 0:
			return &failure{code: ExitDegraded, err: errors.New("backend " + name + " still has " + connectionsOf(now) + " after " + a.timeout.String()),
				hint: "repeat the command to wait longer, with a larger --timeout"}
		case first || now.Connections != last.Connections:
			a.printer().Say("backend %s has %s", name, connectionsOf(now))
		}
		last = now
		poll.Reset(min(idlePoll, left))
	}
}

func connectionsOf(c v1.BackendConnections) string {
	return output.Plural(int(min(c.Connections, math.MaxInt)), "open connection")
}
