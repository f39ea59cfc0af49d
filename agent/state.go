package agent

import (
	"context"
	"errors"
	"time"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/vip"
)

// stateWatchEvery is the interval of the checks of the state file, for an agent that writes nothing.
const stateWatchEvery = 10 * time.Second

// watchState reports once when the state file can't be written any more, and once when it can. A
// failed write is reported at once, because its cause may be gone at the next check.
func (a *agent) watchState(ctx context.Context) error {
	tick := time.NewTicker(stateWatchEvery)
	defer tick.Stop()
	for failing := false; ; {
		switch err := a.db.Failing(); {
		case err != nil && !failing:
			failing = true
			a.log.Error("state file not writable: new addresses and registrations are refused", "err", err, "hint", stateHint(err))
			a.events.Add(event.Event{Kind: "state_failed", Object: a.db.Path(), Message: err.Error()})
		case err == nil && failing:
			failing = false
			a.log.Info("state file writable again")
			a.events.Add(event.Event{Kind: "state_recovered", Object: a.db.Path(), Message: "writable again"})
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		case <-a.db.Failed():
		}
	}
}

// stateHint returns what to do about a state file that can't be written.
func stateHint(err error) string {
	if p, ok := errors.AsType[vip.Problem](err); ok && p.Hint != "" {
		return p.Hint
	}
	return "traffic goes on; new addresses and registrations are refused until the file can be written"
}

// stateChecks returns the lines about problems of the state file.
func (a *agent) stateChecks() []v1.Check {
	if err := a.db.Failing(); err != nil {
		return []v1.Check{{Name: "state", Level: v1.LevelFail, Message: err.Error(), Hint: stateHint(err)}}
	}
	if a.stateLost {
		p := a.stateLostProblem()
		return []v1.Check{{Name: "state", Level: v1.LevelWarn, Message: p.Error(), Hint: p.Hint}}
	}
	return nil
}

// stateLostProblem describes a state file that is new although an agent ran here before.
func (a *agent) stateLostProblem() vip.Problem {
	p := vip.Problem{Place: a.db.Path(), Message: "missing at the start, although an agent ran here before: created a new one",
		Hint: "leases and registrations are in Consul; connections that were draining are not finished"}
	if a.stores == nil || a.stores.tree == nil {
		p.Hint = "services may have got other addresses; to return to the earlier ones, stop the agent, put a backup in its place, start it"
	}
	return p
}
