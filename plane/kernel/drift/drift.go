// Package drift tells at once that other programs have changed what a dataplane in the kernel needs: its nftables table, and
// the forwarding of packets.
//
// Its inputs are the events of internal/netlink/watch. Its output is a reconcile.Drift that asks for a read of everything,
// which finds what the change was. It reads and repairs nothing.
package drift

import (
	"context"
	"log/slog"

	"github.com/ironvip/ironvip/internal/netlink/watch"
	"github.com/ironvip/ironvip/plane/reconcile"
)

// Watch is the watch of one dataplane. The zero value sees nothing. The goroutine of Apply calls its methods.
type Watch struct {
	*watch.Watcher
	port    func(context.Context) (uint32, error) // see filter.Table.Open
	ignored uint32
}

// Open watches in the network namespace of the calling thread. Port opens the socket that changes the table and returns
// its port: its events are ignored. If the kernel can't be watched, only the resync finds changes.
func Open(ctx context.Context, o watch.Options, port func(context.Context) (uint32, error), log *slog.Logger) Watch {
	w, err := watch.Open(o)
	if err != nil {
		log.Warn("changes by other programs are not seen at once", "err", err)
		return Watch{}
	}
	x := Watch{Watcher: w, port: port}
	if err := x.ignore(ctx); err != nil {
		log.Warn("own changes of the kernel are read as if others had made them", "err", err)
	}
	return x
}

// ignore ignores the transactions of the socket that changes the table. An error can have closed that socket, and a
// new one has another port.
func (w *Watch) ignore(ctx context.Context) error {
	port, err := w.port(ctx)
	if err != nil || port == w.ignored {
		return err
	}
	if err = w.IgnoreTable(port); err == nil {
		w.ignored = port
	}
	return err
}

// Check is reconcile.Target.Check for a dataplane: any change that was seen asks for a read of everything.
func Check[K comparable, V any](ctx context.Context, w *Watch) (found reconcile.Drift[K, V], err error) {
	seen := w.Take(nil)
	found.Unknown = seen.Any()
	if seen.Table != nil {
		found.By, err = seen.Table.String(), w.ignore(ctx)
	}
	return found, err
}
