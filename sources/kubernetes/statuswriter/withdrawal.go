package statuswriter

import (
	"context"
	"time"

	"github.com/ironvip/ironvip/vip"
)

// withdrawal is a wait until a VIP is withdrawn.
type withdrawal struct {
	cancel context.CancelFunc
	done   bool
}

// withdrawn is the end of a withdrawal.
type withdrawn struct {
	key vip.ServiceKey
	of  *withdrawal
	err error
}

// giveUp ends the wait for a withdrawal.
func (e *entry) giveUp() {
	if e.withdrawal != nil {
		e.withdrawal.cancel()
		e.withdrawal = nil
	}
}

// servedByOther reports whether another source serves a service of this name. Nothing of ours is
// served then.
func (w *Writer) servedByOther(key vip.ServiceKey) bool {
	row, _, there := w.o.Services.Get(w.o.Prefix.Name(key))
	return there && row.Source != w.o.Source
}

// await starts a wait for a withdrawal.
func (w *Writer) await(ctx context.Context, key vip.ServiceKey, e *entry) {
	if e.withdrawal != nil {
		return
	}
	if rest := time.Until(e.until); rest > 0 {
		w.later(key, rest)
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	wait := &withdrawal{cancel: cancel}
	e.withdrawal = wait
	w.waiting.Run(ctx, func(ctx context.Context) {
		err := w.o.Withdrawn(ctx, w.o.Prefix.Name(key))
		select {
		case w.over <- withdrawn{key, wait, err}:
		case <-ctx.Done():
		}
	})
}

// ended handles the end of a withdrawal, unless the wait for it was given up.
func (w *Writer) ended(end withdrawn) {
	e := w.entries[end.key]
	if e == nil || e.withdrawal != end.of {
		return
	}
	e.withdrawal.done = true
	if end.err != nil {
		e.giveUp()
		w.o.Log.Warn("kubernetes: waiting for a VIP's withdrawal", "service", end.key, "error", end.err)
		e.until = time.Now().Add(grown(time.Second, time.Minute, 3))
	}
	w.check(end.key)
}
