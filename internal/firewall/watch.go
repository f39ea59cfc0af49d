package firewall

import (
	"context"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ironvip/ironvip/internal/parallel"
	"github.com/ironvip/ironvip/vip"
)

// watchEvery is how often the rules of other programs are read. One reading costs O(chains of nftables).
const watchEvery = time.Minute

// Watch finds rules of other programs that drop packets of the dataplane, again and again. Its zero value is ready for Run.
type Watch struct {
	found atomic.Pointer[[]vip.Problem]
}

// Problems returns what the last reading that succeeded has found.
func (w *Watch) Problems() []vip.Problem {
	if all := w.found.Load(); all != nil {
		return *all
	}
	return nil
}

// Run reads the rules until the context ends. A rule that can't be read is logged once. If nothing can be read, the
// earlier findings stay, as they do after a panic of find at a rule that it doesn't know.
func (w *Watch) Run(ctx context.Context, find func() ([]Drop, error), log *slog.Logger) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	unread := ""
	for {
		var drops []Drop
		err := parallel.Recovered(func() (err error) {
			drops, err = find()
			return err
		})
		switch {
		case err == nil:
			unread = ""
		case err.Error() != unread:
			unread = err.Error()
			log.Warn("rules of other programs were not read: whether they drop packets of VIPs is not known", "err", err)
		}
		if err == nil || drops != nil { // else nothing was read
			w.set(drops, log)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// set replaces the problems, and logs the new ones.
func (w *Watch) set(drops []Drop, log *slog.Logger) {
	before, found := w.Problems(), make([]vip.Problem, 0, len(drops))
	for _, d := range drops {
		p := vip.Problem{Code: vip.CodeDataplane, Message: d.String(), Hint: d.Remedy()}
		if found = append(found, p); !slices.Contains(before, p) {
			log.Warn("a firewall drops packets of VIPs", "rule", p.Message, "fix", p.Hint)
		}
	}
	w.found.Store(&found)
}
