package ipvs

import (
	"context"

	"github.com/ironvip/ironvip/ipvs/internal/filter"
)

// pause makes new connections wait for the services whose scheduler ops change,
// and returns what resume needs. The kernel takes a service's old scheduler away,
// waits until no processor uses it (some 10 ms), and sets the new one; whoever
// connects in between is refused. Dropped instead, a client tries again by
// itself, after a second for TCP. Open connections go on.
//
// Where it fails, the change is made all the same: a few refusals are less of an
// evil than a service that isn't as wanted.
func (t *Target) pause(ctx context.Context, ops []op, todo []*item) filter.Change {
	c := filter.Change{}
	for i := range ops {
		if ops[i].pauses {
			it := todo[ops[i].item]
			c[filter.ElementOf(filter.SetPaused, it.key, it.mark)] = true
		}
	}
	if err := t.fw.Apply(ctx, c); err != nil {
		t.opt.Log.Warn("new connections may be refused while a scheduler changes", "err", err)
	}
	return c
}

// resume ends a pause. Where it fails, the pause ends by itself.
func (t *Target) resume(ctx context.Context, paused filter.Change) {
	for e := range paused {
		paused[e] = false
	}
	if err := t.fw.Apply(context.WithoutCancel(ctx), paused); err != nil {
		t.opt.Log.Warn("new connections wait for as long as a pause may last", "longest", filter.LongestPause, "err", err)
	}
}
