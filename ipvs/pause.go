package ipvs

import (
	"context"

	"github.com/ironvip/ironvip/plane/kernel/filter"
)

// pause drops new connections of the services that get another scheduler, and returns
// the elements for resume. The kernel unbinds the old scheduler, waits until no
// processor uses it (some 10 ms), and binds the new one. It would refuse clients in
// between; dropped clients retry, after a second for TCP. Open connections continue.
//
// If pause fails, the change is made anyway: it is worse to leave the service as it is
// than to refuse a few clients.
func (t *Target) pause(ctx context.Context, ops []op, todo []*item) filter.Change {
	c := filter.Change{}
	for i := range ops {
		if ops[i].switchesScheduler {
			it := todo[ops[i].item]
			c[filter.ElementOf(filter.SetPaused, it.key, it.mark)] = true
		}
	}
	if err := t.fw.Apply(ctx, c); err != nil {
		t.opt.Log.Warn("new connections may be refused while a scheduler changes", "err", err)
	}
	return c
}

// resume ends a pause. If it fails, the elements expire.
func (t *Target) resume(ctx context.Context, paused filter.Change) {
	for e := range paused {
		paused[e] = false
	}
	if err := t.fw.Apply(context.WithoutCancel(ctx), paused); err != nil {
		t.opt.Log.Warn("new connections wait for as long as a pause may last", "longest", filter.LongestPause, "err", err)
	}
}
