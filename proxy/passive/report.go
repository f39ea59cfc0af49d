package passive

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ironvip/ironvip/internal/backoff"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/internal/text"
	"github.com/ironvip/ironvip/vip"
)

const (
	reportPause = 100 * time.Millisecond // before a batch of changes
	// eventPause is the time between two events of a service. A backend that fails and works in turn would push all other
	// events out of the log.
	eventPause = 10 * time.Second
	maxListed  = 5 // backends that an event lists
)

// Sink is where a Table is reported.
type Sink struct {
	Rows  *table.Table[vip.PassiveKey, vip.PassiveHealth] // the Table is its only writer; nil: none
	Event func(event.Event)                               // nil: none
	Log   *slog.Logger
}

// Run writes the rows, events and log lines of changed backends until ctx ends, and then deletes the
// rows. It also ends ejections that no client has tried to end.
func (t *Table) Run(ctx context.Context, to Sink) {
	if to.Rows != nil {
		defer func() {
			for key := range to.Rows.All() {
				to.Rows.Delete(key)
			}
		}()
	}
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for ctx.Err() == nil {
		put, remove, ejected, readmitted := t.collect(time.Now())
		if to.Rows != nil {
			to.Rows.SetAll(put)
			for _, key := range remove {
				to.Rows.Delete(key)
			}
		}
		to.report("backend_ejected", "connections of clients failed: ", ejected)
		to.report("backend_readmitted", "clients are sent there again: ", readmitted)
		timer.Reset(t.nextReport(time.Now()))
		select {
		case <-ctx.Done():
		case <-t.wake:
			backoff.Sleep(ctx, reportPause) // others fail at the same time
		case <-timer.C:
		}
	}
}

// nextReport returns how long nothing happens without a change.
func (t *Table) nextReport(now time.Time) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	next := now.Add(time.Hour)
	if _, at, ok := t.ended.First(); ok {
		next = at
	}
	for key := range t.changed { // those of services with a recent event
		if x := t.backends[key]; x != nil && x.service().told.Add(eventPause).Before(next) {
			next = x.service().told.Add(eventPause)
		}
	}
	return max(next.Sub(now), 0)
}

// collect takes the rows that changed and the ejections that began and ended, by service. Backends of services
// with a recent event stay among the changed ones.
func (t *Table) collect(now time.Time) (put []vip.PassiveHealth, remove []vip.PassiveKey, ejected, readmitted map[vip.ServiceKey][]change) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for key := range t.ended.Due(now) {
		t.ended.Drop(key)
		if x := t.backends[key]; x != nil {
			x.readmit()
		}
	}
	ejected, readmitted = make(map[vip.ServiceKey][]change), make(map[vip.ServiceKey][]change)
	for key := range t.changed {
		x := t.backends[key]
		if x != nil && x.since != 0 {
			put = append(put, x.row())
		} else {
			remove = append(remove, key)
		}
		if x == nil || x.ejected == x.reported {
			delete(t.changed, key)
			continue
		}
		s := x.service()
		if s.told != now && now.Sub(s.told) < eventPause {
			continue
		}
		s.told = now
		delete(t.changed, key)
		if x.reported = x.ejected; x.ejected {
			ejected[key.Service] = append(ejected[key.Service], change{key.Addr.String(), ": " + x.reason})
		} else {
			readmitted[key.Service] = append(readmitted[key.Service], change{key.Addr.String(), ""})
		}
	}
	return put, remove, ejected, readmitted
}

// change is the address of an ejected or readmitted backend, and why.
type change struct{ addr, why string }

func (c change) String() string { return c.addr + c.why }

// report adds events of one kind.
func (to Sink) report(kind, why string, of map[vip.ServiceKey][]change) {
	for _, service := range slices.SortedFunc(maps.Keys(of), vip.ServiceKey.Compare) {
		list := of[service]
		slices.SortFunc(list, func(a, b change) int { return strings.Compare(a.addr, b.addr) })
		message, object := text.Join(list[:min(len(list), maxListed)], "; ", change.String), list[0].addr
		if len(list) > 1 {
			object = text.Plural(len(list), "backend")
		}
		if more := len(list) - maxListed; more > 0 {
			message += fmt.Sprintf("; and %d more", more)
		}
		if to.Event != nil {
			to.Event(event.Event{Kind: kind, Service: service.String(), Object: object, Message: why + message})
		}
		to.Log.Warn(strings.ReplaceAll(kind, "_", " "), "service", service.String(), "backends", message)
	}
}

// row returns the row of a backend of which something is known. The caller holds mu.
func (x *Backend) row() vip.PassiveHealth {
	row := vip.PassiveHealth{PassiveKey: x.key, Health: vip.Healthy, Since: x.since}
	if x.ejected {
		row.Health, row.Until, row.Reason = vip.Ejected, x.until, x.reason
	}
	return row
}
