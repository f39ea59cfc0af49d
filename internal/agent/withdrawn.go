package agent

import (
	"context"
	"time"

	"github.com/ironvip/ironvip/internal/pipeline"
	"github.com/ironvip/ironvip/vip"
)

// withdrawn returns once a service of a source takes no new connections here, or belongs to another
// source. It returns an error only when the context ends.
func (a *agent) withdrawn(ctx context.Context, source string, key vip.ServiceKey) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-a.pipeline.Reconciler.Synced(): // earlier, an unknown service may be in the dataplane
	}
	for {
		changed := a.tables.Services.Changed()
		row, _, there := a.tables.Services.Get(key)
		if there && row.Source != source {
			return nil
		}
		if !there {
			break
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
	last, _, _ := a.tables.Compiled.Get(key)
	if _, err := pipeline.WaitGone(ctx, a.tables.Compiled, a.tables.Applied, key, last); err != nil {
		return err
	}
	// The row may have been deleted before it could be read. In that case, wait until the dataplane
	// has applied everything up to now.
	for until := a.tables.Frontends.Revision(); a.pipeline.Reconciler.Stats().AppliedRev < until; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(withdrawnEvery):
		}
	}
	return nil
}

// withdrawnEvery is the interval of checks of the dataplane's progress, which has no notification.
const withdrawnEvery = 100 * time.Millisecond
