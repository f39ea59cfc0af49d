package proxy

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ironvip/ironvip/internal/backoff"
	"github.com/ironvip/ironvip/internal/event"
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

// reportOutliers writes the rows, events and log lines of changed backends until ctx ends, and then deletes the
// rows. It also ends ejections that no client has tried to end.
func (t *Target) reportOutliers(ctx context.Context) {
	o := t.outliers
	if t.opts.Passive != nil {
		defer func() {
			for key := range t.opts.Passive.All() {
				t.opts.Passive.Delete(key)
			}
		}()
	}
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for ctx.Err() == nil {
		put, remove, ejected, readmitted := o.collect(time.Now())
		if t.opts.Passive != nil {
			t.opts.Passive.SetAll(put)
			for _, key := range remove {
				t.opts.Passive.Delete(key)
			}
		}
		t.reportServices("backend_ejected", "connections of clients failed: ", ejected)
		t.reportServices("backend_readmitted", "clients are sent there again: ", readmitted)
		timer.Reset(o.nextReport(time.Now()))
		select {
		case <-ctx.Done():
		case <-o.wake:
			backoff.Sleep(ctx, reportPause) // others fail at the same time
		case <-timer.C:
		}
	}
}

// nextReport returns how long nothing happens without a change.
func (o *outliers) nextReport(now time.Time) time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	next := now.Add(time.Hour)
	if _, at, ok := o.ended.First(); ok {
		next = at
	}
	for key := range o.changed { // those of services with a recent event
		if x := o.m[key]; x != nil && x.service().told.Add(eventPause).Before(next) {
			next = x.service().told.Add(eventPause)
		}
	}
	return max(next.Sub(now), 0)
}

// collect takes the rows that changed and the ejections that began and ended, by service. Backends of services
// with a recent event stay among the changed ones.
func (o *outliers) collect(now time.Time) (put []vip.PassiveHealth, remove []vip.PassiveKey, ejected, readmitted map[vip.ServiceKey][]change) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for key := range o.ended.Due(now) {
		o.ended.Drop(key)
		if x := o.m[key]; x != nil {
			x.readmit()
		}
	}
	ejected, readmitted = make(map[vip.ServiceKey][]change), make(map[vip.ServiceKey][]change)
	for key := range o.changed {
		if row, ok := o.row(key); ok {
			put = append(put, row)
		} else {
			remove = append(remove, key)
		}
		x := o.m[key]
		if x == nil || x.ejected == x.reported {
			delete(o.changed, key)
			continue
		}
		s := x.service()
		if s.told != now && now.Sub(s.told) < eventPause {
			continue
		}
		s.told = now
		delete(o.changed, key)
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

// reportServices adds events of one kind.
func (t *Target) reportServices(kind, why string, of map[vip.ServiceKey][]change) {
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
		if t.opts.Report != nil {
			t.opts.Report(event.Event{Kind: kind, Service: service.String(), Object: object, Message: why + message})
		}
		t.log.Warn(strings.ReplaceAll(kind, "_", " "), "service", service.String(), "backends", message)
	}
}
