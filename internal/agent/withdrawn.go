package agent

import (
	"context"
	"time"

	"github.com/ironvip/ironvip/internal/pipeline"
	"github.com/ironvip/ironvip/vip"
)

// withdrawn returns once a service that a source gave no longer takes new
// connections here, or belongs to another source; an error only when the
// context ends.
func (a *agent) withdrawn(ctx context.Context, source string, key vip.ServiceKey) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-a.reconciler.Synced(): // before, what isn't known may well be in the dataplane
	}
	for {
		changed := a.services.Changed()
		row, _, there := a.services.Get(key)
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
	last, _, _ := a.compiled.Get(key)
	if _, err := pipeline.WaitGone(ctx, a.compiled, a.applied, key, last); err != nil {
		return err
	}
	// Its row may have been gone before it could be read: then all that the
	// dataplane was told until now is waited for.
	for until := a.frontends.Revision(); a.reconciler.Stats().AppliedRev < until; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(withdrawnEvery):
		}
	}
	return nil
}

// withdrawnEvery is how often it is looked whether the dataplane is as far as it
// should be, which says so to nobody.
const withdrawnEvery = 100 * time.Millisecond
