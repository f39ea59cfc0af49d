package agent

import (
	"context"

	"github.com/ironvip/ironvip/vip"
)

// withdrawn returns once a service of a source takes no new connections here, or belongs to another
// source. It returns an error only when the context ends.
func (a *agent) withdrawn(ctx context.Context, source string, key vip.ServiceKey) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-a.pipeline.Loop.Synced(): // earlier, an unknown service may be in the dataplane
	}
	progress := a.tables.Progress()
	for {
		changed := a.tables.Services.Changed()
		row := a.tables.Services.Row(key)
		if row != nil && row.Value.Source != source {
			return nil
		}
		if row == nil {
			last, _, _ := a.tables.Compiled.Get(key)
			if _, err := progress.WaitGone(ctx, key, last); err != nil {
				return err
			}
			if a.tables.Services.Row(key) != nil { // the source has it again
				continue
			}
			// The row may have been deleted before it could be read. In that case, wait until the
			// dataplane has applied everything up to now.
			return a.pipeline.Loop.WaitTried(ctx, a.tables.Frontends.Revision())
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}
