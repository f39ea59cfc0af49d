package statuswriter

import (
	"net/netip"
	"slices"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/ironvip/ironvip/vip"
)

// answerLasts is how long the server's answer to a write takes precedence over Objects,
// which receive the change through the watch.
const answerLasts = 30 * time.Second

// entry is the Writer's state of one Service that is or was ours, or has the finalizer.
type entry struct {
	uid types.UID
	written
	deleting bool // deletion had begun at the last check
	answer   *corev1.Service
	answered time.Time
	stray    bool // answer is a Service that the source doesn't follow

	withdrawal *withdrawal
	attempts
	events eventState
}

// attempts are the writes of one object.
type attempts struct {
	failures int
	until    time.Time // do not write before this time
	outdated string    // the version that was outdated; another version may be written at once
	writes   *rate.Limiter
}

func newAttempts() attempts {
	return attempts{writes: rate.NewLimiter(rate.Every(writeEvery), writesInARow)}
}

func newEntry(uid types.UID) *entry {
	return &entry{uid: uid, attempts: newAttempts(),
		events: eventState{pace: rate.NewLimiter(rate.Every(time.Minute), perService)}}
}

// forget removes the state of a Service.
func (w *Writer) forget(key vip.ServiceKey) {
	if e := w.entries[key]; e != nil {
		e.giveUp()
		delete(w.entries, key)
	}
	w.troubles.accept(keyOf(key))
}

// observe returns the situation of a Service and updates its entry.
func (w *Writer) observe(key vip.ServiceKey) situation {
	e := w.entries[key]
	out := situation{service: w.newest(key, e), mode: w.o.IPMode}
	s := out.service
	if s != nil && e != nil && e.uid != s.UID { // a new Service with the same name
		w.forget(key)
		e = nil
	}
	if s == nil {
		// The writer ensures that nothing is left over. Other hosts need not check a Service after
		// a deletion that had begun.
		if e != nil && (!e.held || e.deleting && !w.leads) {
			w.forget(key)
			e = nil
		}
		out.held = e != nil
		return out
	}
	alive := *s // check ownership independently of deletion
	alive.DeletionTimestamp = nil
	stray := e != nil && e.stray
	out.ours = !stray && w.o.Selects(&alive)
	if !out.ours && !hasFinalizer(s) {
		w.forget(key)
		return out
	}
	if e == nil {
		e = newEntry(s.UID)
		w.entries[key] = e
	}
	e.deleting = s.DeletionTimestamp != nil
	if out.ours {
		e.written = written{held: hasFinalizer(s), addrs: addresses(s)}
		if !e.deleting {
			e.giveUp()
		}
	}
	out.written = e.written
	out.grant, out.vips = w.granted(key)
	out.withdrawn = e.withdrawal != nil && e.withdrawal.done || w.servedByOther(key)
	return out
}

// newest returns the newest known object of a Service; nil: none.
func (w *Writer) newest(key vip.ServiceKey, e *entry) *corev1.Service {
	object, _, there := w.o.Objects.Get(key)
	s := object.Service
	if e == nil || e.answer == nil {
		return s
	}
	fresh := time.Since(e.answered) < answerLasts
	if fresh && !there && e.stray {
		return e.answer
	}
	if fresh && there && s.UID == e.answer.UID {
		if order, err := resourceversion.CompareResourceVersion(e.answer.ResourceVersion, s.ResourceVersion); err == nil && order > 0 {
			return e.answer
		}
	}
	e.answer, e.stray = nil, false
	return s
}

// granted returns the allocator's result.
func (w *Writer) granted(key vip.ServiceKey) (granted, []netip.Addr) {
	name := w.o.Prefix.Name(key)
	if row, _, there := w.o.Services.Get(name); !there || row.Source != w.o.Source {
		return grantUnknown, nil
	}
	allocation, _, there := w.o.Allocations.Get(name)
	switch {
	case !there:
		return grantUnknown, nil
	case len(allocation.VIPs) > 0:
		return grantSome, allocation.VIPs
	case slices.ContainsFunc(allocation.Problems, func(p vip.Problem) bool { return p.Code == vip.CodeStore || p.Code == vip.CodeWaiting }):
		return grantUnknown, nil
	default:
		return grantNone, nil
	}
}
