package health

import (
	"context"
	"log/slog"
	"time"

	"github.com/ironvip/ironvip/health/probe"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/vip"
)

// Store keeps rows across a restart, by the text of their key. A store.Bucket[vip.BackendHealth]
// implements it. One goroutine calls its methods.
type Store interface {
	// Write stores the values of put durably and deletes the keys in remove, all or nothing.
	Write(put map[string]vip.BackendHealth, remove []string) error
	// All returns every value that can be read, also together with an error.
	All() (map[string]vip.BackendHealth, error)
}

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

// keepInterval is the shortest time between two writes. A loss of the last changes costs a backend
// only the time to its next probes.
const keepInterval = time.Second

// keeper updates a Store to the content of the health table. It retries what the store rejects.
type keeper struct {
	store Store
	want  *table.Table[vip.BackendKey, vip.BackendHealth]
	feed  *table.Feed[vip.BackendKey, vip.BackendHealth]
	open  map[vip.BackendKey]struct{} // keys for which the store differs from want
	log   *slog.Logger
}

func newKeeper(store Store, want *table.Table[vip.BackendKey, vip.BackendHealth], log *slog.Logger) *keeper {
	return &keeper{store: store, want: want, feed: want.Watch(), open: map[vip.BackendKey]struct{}{}, log: log}
}

// run writes until the context ends, and then writes the rest once.
func (k *keeper) run(ctx context.Context) {
	defer k.feed.Close()
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		last := ctx.Err() != nil
		batch, changed := k.feed.TryNext()
		for i := range batch {
			k.open[batch[i].Value.Backend] = struct{}{}
		}
		if len(k.open) > 0 {
			if err := k.write(); err != nil {
				k.log.Warn("keep the health of backends; trying again", "err", err)
			}
		}
		if last {
			return
		}
		if len(k.open) == 0 {
			select {
			case <-ctx.Done():
			case <-changed:
			}
		}
		pause.Reset(keepInterval)
		select {
		case <-ctx.Done():
		case <-pause.C:
		}
	}
}

func (k *keeper) write() error {
	put, remove := map[string]vip.BackendHealth{}, []string(nil)
	for key := range k.open {
		if row := k.want.Row(key); row != nil {
			put[nameOf(key)] = row.Value
		} else {
			remove = append(remove, nameOf(key))
		}
	}
	if err := k.store.Write(put, remove); err != nil {
		return err
	}
	clear(k.open)
	return nil
}
