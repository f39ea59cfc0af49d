package probepath

import (
	"context"

	"github.com/ironvip/ironvip/internal/netlink/watch"
	"github.com/ironvip/ironvip/plane/kernel/filter"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/vip"
)

// tableWatch sees what others change of our table. Without it, only the resync does: then the probes of all paths fail
// meanwhile, and their backends are taken for unhealthy.
type tableWatch struct {
	*watch.Watcher // nil: not watched
	table          *filter.Table
	ignored        uint32
}

// watchTable watches in the network namespace of the calling thread. Without the right to, it sees nothing.
func watchTable(ctx context.Context, name string, of rules) (w tableWatch) {
	table, is := of.(*filter.Table)
	if !is {
		return w
	}
	watcher, err := watch.Open(watch.Options{Table: name})
	if err != nil {
		return w
	}
	w = tableWatch{Watcher: watcher, table: table}
	w.ignoreOwn(ctx)
	return w
}

// ignoreOwn ignores the transactions of the table's socket, whose port changes after an error.
func (w *tableWatch) ignoreOwn(ctx context.Context) {
	if port, err := w.table.Open(ctx); err == nil && port != w.ignored && w.IgnoreTable(port) == nil {
		w.ignored = port
	}
}

func (w *tableWatch) close() {
	w.Close()
	if w.table != nil {
		w.table.Close()
	}
}

// Changed implements reconcile.Target.
func (t *Target) Changed() <-chan struct{} { return t.watch.Changed() }

// Check implements reconcile.Target. Paths are few, so a changed table is a reason to read everything.
func (t *Target) Check(ctx context.Context) (found reconcile.Drift[vip.ProbePath, vip.ProbePath], err error) {
	seen := t.watch.Take(nil)
	if seen.Table != nil {
		t.watch.ignoreOwn(ctx)
	}
	found.Unknown = len(t.record) > 0 && (seen.Lost || seen.Table != nil)
	return found, nil
}
