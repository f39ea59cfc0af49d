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
	begun, name := time.Now(), key.String()+"/"+id
	var shown uint64
	return poll(ctx, idlePoll, func() (done bool, err error) {
		now, err := c.BackendConnections(ctx, key.Namespace, key.Name, id)
		switch {
		case client.IsNotFound(err):
			a.printer().Say("backend %s was removed from its service", name)
			return true, nil
		case err != nil:
			return false, fmt.Errorf("count the connections of backend %s: %w", name, err)
		case now.State != "" && now.State != state:
			return false, &failure{code: ExitDegraded, err: fmt.Errorf("backend %s was set to %s meanwhile", name, now.State), hint: "run ironvip override list; run ironvip events"}
		case now.Connections == 0:
			a.printer().Say("backend %s has no connections", name)
			return true, nil
		case time.Since(begun) >= a.timeout:
			return false, &failure{code: ExitDegraded, err: errors.New("backend " + name + " still has " + connectionsOf(now) + " after " + a.timeout.String()),
				hint: "repeat the command to wait longer, with a larger --timeout"}
		case now.Connections != shown:
			a.printer().Say("backend %s has %s", name, connectionsOf(now))
		}
		shown = now.Connections
		return false, nil
	})
}

func connectionsOf(c v1.BackendConnections) string {
	return output.Plural(int(min(c.Connections, math.MaxInt)), "open connection")
}
