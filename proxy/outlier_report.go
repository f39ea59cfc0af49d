package proxy

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ironvip/ironvip/internal/backoff"
	"github.com/ironvip/ironvip/internal/delayqueue"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/text"
	"github.com/ironvip/ironvip/vip"
)

// How often ejections are reported. Rows of backends that change together are one batch. A backend
// that fails and works in turn would push all other events out of the log.
const (
	reportPause = 100 * time.Millisecond // before a batch of rows
	newsPause   = time.Second            // between two batches of events
	eventPause  = 10 * time.Second       // between two events of a service
)

// Bounds of one report: the backends that an event lists, and the services that have an event of
// their own. The others share one.
const (
	maxListed    = 5
	maxOwnEvents = 10
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
	news := eventPace{}
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for ctx.Err() == nil {
		put, remove, ejected, readmitted := o.collect(time.Now(), &news)
		if t.opts.Passive != nil {
			t.opts.Passive.SetAll(put)
			for _, key := range remove {
				t.opts.Passive.Delete(key)
			}
		}
		t.reportServices("backend_ejected", "connections of clients failed: ", ejected)
		t.reportServices("backend_readmitted", "clients are sent there again: ", readmitted)
		timer.Reset(o.nextReport(time.Now(), &news))
		select {
		case <-ctx.Done():
		case <-o.wake:
			backoff.Sleep(ctx, reportPause) // others fail at the same time
		case <-timer.C:
		}
	}
}

// eventPace states when events may be added.
type eventPace struct {
	quiet delayqueue.Queue[vip.ServiceKey] // services with a recent event
	next  time.Time                        // of the next batch
}

// nextReport returns how long nothing happens without a change.
func (o *outliers) nextReport(now time.Time, news *eventPace) time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	next := now.Add(time.Hour)
	if _, at, ok := o.ended.First(); ok && at.Before(next) {
		next = at
	}
	if _, at, ok := news.quiet.First(); ok && at.Before(next) {
		next = at
	}
	if len(o.news) > 0 && news.next.After(now) && news.next.Before(next) {
		next = news.next
	}
	return max(next.Sub(now), 0)
}

// collect takes the rows that changed and the ejections that began and ended, by service, except
// for services with a recent event.
func (o *outliers) collect(now time.Time, news *eventPace) (put []vip.PassiveHealth, remove []vip.PassiveKey,
	ejected, readmitted map[vip.ServiceKey][]change) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for key := range o.ended.Due(now) {
		o.ended.Drop(key)
		if x := o.m[key]; x != nil {
			x.readmit()
		}
	}
	for key := range o.changed {
		if row, ok := o.row(key); ok {
			put = append(put, row)
		} else {
			remove = append(remove, key)
		}
	}
	clear(o.changed)
	for service := range news.quiet.Due(now) {
		news.quiet.Drop(service)
	}
	if now.Before(news.next) {
		return put, remove, nil, nil
	}
	ejected, readmitted = make(map[vip.ServiceKey][]change), make(map[vip.ServiceKey][]change)
	for service, keys := range o.news {
		if news.quiet.Has(service) {
			continue
		}
		delete(o.news, service)
		for key := range keys {
			x := o.m[key]
			if x == nil || x.ejected == x.reported {
				continue
			}
			if x.reported = x.ejected; x.ejected {
				ejected[service] = append(ejected[service], change{key.Addr.String(), ": " + x.reason})
			} else {
				readmitted[service] = append(readmitted[service], change{key.Addr.String(), ""})
			}
			news.quiet.Set(service, now.Add(eventPause))
			news.next = now.Add(newsPause)
		}
	}
	return put, remove, ejected, readmitted
}

// change is the address of an ejected or readmitted backend, and why.
type change struct{ addr, why string }

func (c change) String() string { return c.addr + c.why }

func (t *Target) event(e event.Event) {
	if t.opts.Report != nil {
		t.opts.Report(e)
	}
}

// reportServices adds events of one kind.
func (t *Target) reportServices(kind, why string, of map[vip.ServiceKey][]change) {
	services := slices.SortedFunc(maps.Keys(of), vip.ServiceKey.Compare)
	shared := 0
	for i, service := range services {
		list := of[service]
		if len(services) > maxOwnEvents && i >= maxOwnEvents-1 {
			shared += len(list)
			continue
		}
		slices.SortFunc(list, func(a, b change) int { return strings.Compare(a.addr, b.addr) })
		message, object := text.Join(list[:min(len(list), maxListed)], "; ", change.String), list[0].addr
		if len(list) > 1 {
			object = text.Plural(len(list), "backend")
		}
		if more := len(list) - maxListed; more > 0 {
			message += fmt.Sprintf("; and %d more", more)
		}
		t.event(event.Event{Kind: kind, Service: service.String(), Object: object, Message: why + message})
		t.log.Warn(strings.ReplaceAll(kind, "_", " "), "service", service.String(), "backends", message)
	}
	if shared > 0 {
		message := fmt.Sprintf("%s%s of %s", why, text.Plural(shared, "backend"), text.Plural(len(services)-maxOwnEvents+1, "more service"))
		t.event(event.Event{Kind: kind, Object: text.Plural(shared, "backend"), Message: message})
		t.log.Warn(strings.ReplaceAll(kind, "_", " "), "backends", shared)
	}
}
