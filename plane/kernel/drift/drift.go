// Package drift finds at once what other programs change of a dataplane in the kernel: its nftables table, and the
// forwarding of packets.
//
// Its inputs are the events of internal/netlink/watch and the dataplane's records. Its output is a reconcile.Drift. It
// lets the dataplane read what an event says of the table, and nothing else. It repairs nothing.
package drift

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"github.com/ironvip/ironvip/internal/netlink/watch"
	"github.com/ironvip/ironvip/plane/kernel/usage"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/vip"
)

// Watch is the watch of one dataplane. The zero value sees nothing. The goroutine of Apply calls its methods.
type Watch struct {
	*watch.Watcher
	table    string
	port     func(context.Context) (uint32, error) // see filter.Table.Open
	ignored  uint32
	reported vip.FrontendKey // see representative
}

// Open watches in the network namespace of the calling thread. Port opens the socket that changes the table and returns
// its port: its events are ignored. If the kernel can't be watched, only the resync finds changes.
func Open(ctx context.Context, table string, port func(context.Context) (uint32, error), log *slog.Logger) Watch {
	w, err := watch.Open(watch.Options{Forwarding: true, Table: table})
	if err != nil {
		log.Warn("changes by other programs are not seen at once", "err", err)
		return Watch{}
	}
	x := Watch{table: table, port: port, Watcher: w}
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

// TableState is what a dataplane finds when it reads its table.
type TableState int

const (
	Whole   TableState = iota // as recorded
	Broken                    // missing, or not as this version makes it: any repair rebuilds it
	Altered                   // elements differ from the records, and only a read of everything shows for which frontends
)

// representative returns the frontend that damage of all is reported for. It stays the same as long as there is one, so that
// the changes of the table count for one frontend.
func (w *Watch) representative(records *usage.Records) *vip.Frontend {
	f := records.Frontends[w.reported]
	if f == nil {
		for w.reported, f = range records.Frontends {
			break
		}
	}
	return f
}

// Check returns what others have changed. Read is called if they have touched the table, and
// settings if they have switched forwarding off: it describes the settings that are not as the dataplane needs them.
func (w *Watch) Check(ctx context.Context, records *usage.Records, settings func() []string, read func(context.Context) (TableState, error)) (found reconcile.Drift[vip.FrontendKey, vip.Frontend], err error) {
	seen := w.Take(nil)
	add := func(what string, by watch.Author) {
		if f := w.representative(records); f != nil {
			found.Damaged = append(found.Damaged, reconcile.Damage[vip.FrontendKey]{Key: f.Key, What: what, By: by.String()})
		}
	}
	found.Unknown = seen.Lost
	if seen.Unforwarded {
		if wrong := settings(); len(wrong) > 0 { // one repair sets all of them
			add(strings.Join(wrong, "; "), watch.Author{})
		}
	}
	if seen.Table == nil {
		return found, nil
	}
	if err := w.ignore(ctx); err != nil {
		return found, err
	}
	state, err := read(ctx)
	if state == Broken {
		add(fmt.Sprintf("nftables table inet %s is missing or not as it should be", w.table), *seen.Table)
	}
	if state == Altered {
		found.Unknown, found.By = true, seen.Table.String()
	}
	return found, err
}
