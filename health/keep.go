package health

import (
	"context"
	"log/slog"
	"time"

	"github.com/ironvip/ironvip/health/probe"
	"github.com/ironvip/ironvip/internal/keep"
	"github.com/ironvip/ironvip/vip"
)

// Store keeps rows across a restart, by the text of their key.
type Store = keep.Store[vip.BackendHealth]

// nameOf returns the key of a row in a Store.
func nameOf(k vip.BackendKey) string {
	return k.Service.Namespace + "/" + k.Service.Name + "/" + k.ID()
}

// restore reads the rows of an earlier run.
func restore(store Store, log *slog.Logger) map[vip.BackendKey]vip.BackendHealth {
	out := map[vip.BackendKey]vip.BackendHealth{}
	if store == nil {
		return out
	}
	stored, err := store.All()
	if err != nil {
		log.Error("read the health of backends before the restart; what is lost is unknown until its first probe", "err", err)
	}
	for name, row := range stored {
		if name == nameOf(row.Backend) && len(row.Checks) > 0 {
			out[row.Backend] = row
		}
	}
	return out
}

// restoredResult returns the result of a check in a row of an earlier run, or the zero Result.
func restoredResult(row vip.BackendHealth, c check) (r probe.Result) {
	for _, was := range row.Checks {
		if was.Type != c.target.Check().Type || was.Port != c.target.Addr.Port() || was.Health == vip.Unknown {
			continue
		}
		r = probe.Result{Target: c.target, Health: was.Health, Since: was.Since, Reason: was.Reason, Outcome: probe.OK}
		if was.Held() { // the hold ended with the process
			r.Health = vip.Unhealthy
		}
		if r.Health == vip.Unhealthy {
			r.Outcome = probe.TimedOut
		}
		return r
	}
	return r
}

// keepPause is the longest time that a change waits to be written. A loss of the last changes costs a backend
// only the time to its next probes.
const keepPause = time.Second

func (s *Stage) keep(ctx context.Context) {
	k := keep.Keeper[vip.BackendKey, vip.BackendHealth, vip.BackendHealth]{
		Table: s.Health, Store: s.Store, Log: s.Log, What: "the health of backends", Pause: keepPause,
		Name: nameOf, Row: func(row *vip.BackendHealth) vip.BackendHealth { return *row },
	}
	k.Run(ctx)
}
