package stores

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/vip"
)

// OpenState opens the state file, and creates its directory.
func OpenState(cfg *configs.Config) (*store.DB, error) {
	if err := os.MkdirAll(cfg.Node.StateDir, 0o750); err != nil {
		return nil, fmt.Errorf("make the state directory: %w\nhint: set node.state_dir to a directory that this process may write", err)
	}
	return store.Open(StatePath(cfg))
}

// StatePath returns the path of the state file.
func StatePath(cfg *configs.Config) string { return filepath.Join(cfg.Node.StateDir, store.FileName) }

// stateWatchEvery is the interval of the checks of the state file, for an agent that writes nothing.
const stateWatchEvery = 10 * time.Second

// WatchState reports once when the state file can't be written any more, and once when it can. A
// failed write is reported at once, because its cause may be gone at the next check.
func (s *Stores) WatchState(ctx context.Context) error {
	tick := time.NewTicker(stateWatchEvery)
	defer tick.Stop()
	for failing := false; ; {
		switch err := s.DB.Failing(); {
		case err != nil && !failing:
			failing = true
			s.o.Log.Error("state file not writable: new addresses and registrations are refused", "err", err, "hint", stateHint(err))
			s.o.Events.Add(event.Event{Kind: "state_failed", Object: s.DB.Path(), Message: err.Error()})
		case err == nil && failing:
			failing = false
			s.o.Log.Info("state file writable again")
			s.o.Events.Add(event.Event{Kind: "state_recovered", Object: s.DB.Path(), Message: "writable again"})
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		case <-s.DB.Failed():
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
