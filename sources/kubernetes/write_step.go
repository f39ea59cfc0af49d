package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/ironvip/ironvip/vip"
)

const (
	// answerLasts is how long the server's answer to a write counts for more than
	// the store, which hears of it by the watch.
	answerLasts = 30 * time.Second
	// contestLasts is how long ago the same may have been written for somebody to
	// have changed it back.
	contestLasts = 10 * time.Minute
	contestAfter = 3 // times
)

// entry is what the Writer remembers of one Service: of one that is ours, or that
// has the finalizer, or that was such.
type entry struct {
	uid           types.UID
	held, notHeld bool         // as in situation
	told          []netip.Addr // as in situation
	deleting      bool         // it was being deleted when last seen
	answer        *corev1.Service
	answered      time.Time
	stray         bool // answer is of a Service that the source doesn't follow

	withdrawal *withdrawal
	failures   int
	until      time.Time // not to be written before
	outdated   string    // the version that was; another may be written at once
	done       map[step]deed
	timer      *time.Timer
	events     toldEvents
}

// deed is a write that was done.
type deed struct {
	ingress string
	at      time.Time
	again   int // how often it was done again, that it was undone in between
}

// withdrawal is a wait for a VIP's end.
type withdrawal struct {
	cancel context.CancelFunc
	over   chan error // has a word in it at the end
	done   bool
}

// settle ends what is under way.
func (e *entry) settle() {
	e.giveUp()
	if e.timer != nil {
		e.timer.Stop()
	}
}

// giveUp ends the wait for a withdrawal.
func (e *entry) giveUp() {
	if e.withdrawal != nil {
		e.withdrawal.cancel()
		e.withdrawal = nil
	}
}

// forget is for a Service that there is nothing to remember of.
func (w *Writer) forget(key vip.ServiceKey) {
	if e := w.entries[key]; e != nil {
		e.settle()
		delete(w.entries, key)
	}
	w.troubles.accept(key)
}

// observe returns how things are with a Service, and remembers what later counts.
func (w *Writer) observe(key vip.ServiceKey) situation {
	e := w.entries[key]
	out := situation{service: w.newest(key, e), mode: w.o.IPMode}
	s := out.service
	if s != nil && e != nil && e.uid != s.UID { // another of that name
		w.forget(key)
		e = nil
	}
	if s == nil {
		// The writer sees to it that nothing is left over; the others need not ask
		// after what was going anyway.
		if e != nil && (!e.held || e.deleting && !w.leads) {
			w.forget(key)
			e = nil
		}
		out.held = e != nil
		return out
	}
	alive := *s // whether it is deleted is looked at apart from whose it is
	alive.DeletionTimestamp = nil
	stray := e != nil && e.stray
	out.ours = !stray && w.selects(&alive)
	if !out.ours && !hasFinalizer(s) {
		w.forget(key)
		return out
	}
	if e == nil {
		e = &entry{uid: s.UID}
		w.entries[key] = e
	}
	e.deleting = s.DeletionTimestamp != nil
	if out.ours {
		e.held, e.notHeld, e.told = hasFinalizer(s), false, addresses(s)
		if !e.deleting {
			e.giveUp()
		}
	}
	out.held, out.notHeld, out.told = e.held, e.notHeld, e.told
	out.grant, out.vips = w.granted(key)
	out.withdrawn = w.withdrawn(key, e)
	return out
}

// newest returns the newest object of a Service that is known, nil for none.
func (w *Writer) newest(key vip.ServiceKey, e *entry) *corev1.Service {
	s, there := w.store.Get(key)
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

// granted returns what the allocator says.
func (w *Writer) granted(key vip.ServiceKey) (granted, []netip.Addr) {
	if row, _, there := w.o.Services.Get(key); !there || row.Source != w.source {
		return grantUnknown, nil
	}
	allocation, _, there := w.o.Allocations.Get(key)
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

// withdrawn reports whether nothing is served on what a Service had. What is
// served under its name for another source is no concern of it.
func (w *Writer) withdrawn(key vip.ServiceKey, e *entry) bool {
	if row, _, there := w.o.Services.Get(key); w.o.Withdrawn == nil || there && row.Source != w.source {
		return true
	}
	if e.withdrawal == nil {
		return false
	}
	select {
	case err := <-e.withdrawal.over:
		if err != nil {
			e.giveUp()
			w.o.Log.Warn("kubernetes: waiting for a VIP's withdrawal", "service", key, "error", err)
			e.until = time.Now().Add(grown(time.Second, time.Minute, 3))
			return false
		}
		e.withdrawal.done = true
	default:
	}
	return e.withdrawal.done
}

// await has a withdrawal waited for.
func (w *Writer) await(ctx context.Context, key vip.ServiceKey, e *entry) {
	if e.withdrawal != nil {
		return
	}
	if rest := time.Until(e.until); rest > 0 {
		w.later(key, e, rest)
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	wait := &withdrawal{cancel: cancel, over: make(chan error, 1)}
	e.withdrawal = wait
	w.running.Go(func() {
		wait.over <- w.o.Withdrawn(ctx, key)
		w.wakeFor(key)
	})
}

// lookAt does what there is to do next for the first key of the queue. It reports
// whether a request was sent, and what is left of a pause that keeps it from that;
// with neither, the key is out of the queue.
func (w *Writer) lookAt(ctx context.Context, key vip.ServiceKey) (sent bool, wait time.Duration) {
	s := w.observe(key)
	e := w.entries[key]
	next := s.decide()
	switch next {
	case stepNone:
		w.queue.drop()
		if e != nil {
			w.content(key, e)
			w.consider(key, e, &s)
		}
		return false, 0
	case stepAwait:
		w.queue.drop()
		w.await(ctx, key, e)
		return false, 0
	}
	if rest := max(e.rest(s.service), w.troubles.lacking(next.right(), key.Namespace)); rest > 0 {
		w.queue.drop()
		w.later(key, e, rest)
		return false, 0
	}
	if left := w.pause.left(); left > 0 {
		return false, left
	}
	if left := take(w.pace); left > 0 {
		return false, left
	}
	w.do(ctx, key, e, &s, next)
	return true, 0
}

// content notes that a Service is as it should be.
func (w *Writer) content(key vip.ServiceKey, e *entry) {
	e.failures = 0
	for _, d := range e.done {
		if left := contestLasts - time.Since(d.at); d.again >= contestAfter && left > 0 {
			w.later(key, e, left)
			return
		}
	}
	w.troubles.accept(key)
}

// rest returns how long a Service is not to be written.
func (e *entry) rest(s *corev1.Service) time.Duration {
	if e.outdated != "" && s != nil && s.ResourceVersion != e.outdated {
		return 0
	}
	return time.Until(e.until)
}

// right is what a step needs.
func (s step) right() right {
	switch s {
	case stepLookUp:
		return mayList
	case stepWriteIngress:
		return mayWrite
	default:
		return mayFinalize
	}
}

// do makes the request of a step.
func (w *Writer) do(ctx context.Context, key vip.ServiceKey, e *entry, s *situation, next step) {
	var out *corev1.Service
	var err error
	ingress := s.ingress()
	switch next {
	case stepLookUp:
		out, err = w.calls.find(ctx, key)
	case stepAddFinalizer:
		out, err = w.calls.setFinalizers(ctx, s.service, finalizersWith(s.service))
	case stepWriteIngress:
		out, err = w.calls.setIngress(ctx, s.service, ingress)
	case stepRemoveFinalizer:
		out, err = w.calls.setFinalizers(ctx, s.service, finalizersWithout(s.service))
	}
	if ctx.Err() != nil {
		return
	}
	w.troubles.told(next.right(), key.Namespace, err)
	if err != nil {
		w.failed(key, e, s, err)
		return
	}
	w.pause = pause{}
	if next == stepLookUp {
		w.found(key, e, s.service != nil, out)
		return
	}
	e.answer, e.answered = out, time.Now()
	e.held = hasFinalizer(out)
	e.failures, e.until, e.outdated = 0, time.Time{}, ""
	w.did(key, e, next, fmt.Sprint(addresses(out)))
	if next == stepWriteIngress && len(ingress) > 0 {
		w.tellAllocated(key, e, out)
	}
}

var errContested = errors.New("somebody else keeps undoing it")

// did notes what was written. What has to be written again and again, because
// somebody undoes it, is written less and less often.
func (w *Writer) did(key vip.ServiceKey, e *entry, what step, ingress string) {
	if e.done == nil {
		e.done = map[step]deed{}
	}
	switch what { // what we undo ourselves
	case stepAddFinalizer:
		delete(e.done, stepRemoveFinalizer)
	case stepRemoveFinalizer:
		delete(e.done, stepAddFinalizer)
	}
	now, d := time.Now(), e.done[what]
	again := 0
	if what != stepWriteIngress {
		ingress = ""
	}
	if !d.at.IsZero() && d.ingress == ingress && now.Sub(d.at) < contestLasts {
		again = d.again + 1
		e.until = now.Add(grown(time.Second, contestLasts/2, again))
		if again >= contestAfter {
			w.troubles.refuse(key, placeIn(w.source, key), errContested)
		}
	}
	e.done[what] = deed{ingress: ingress, at: now, again: again}
}

// failed notes a request that was not carried out, and when to try again.
func (w *Writer) failed(key vip.ServiceKey, e *entry, s *situation, err error) {
	verdict, asked := judge(err)
	if verdict == verdictLacking { // which says itself for how long
		return
	}
	e.failures++
	e.outdated = ""
	switch verdict {
	case verdictOutdated:
		e.answer, e.stray = nil, false
		e.until = time.Now().Add(grown(100*time.Millisecond, 10*time.Second, e.failures))
		if s.service != nil {
			e.outdated = s.service.ResourceVersion
		}
	case verdictBusy:
		w.pause.fail(asked)
		e.until = time.Now().Add(grown(time.Second, time.Minute, e.failures))
	default:
		e.until = time.Now().Add(max(asked, grown(time.Second, 10*time.Minute, e.failures)))
		if e.failures > 1 {
			w.troubles.refuse(key, placeIn(w.source, key), err)
		}
	}
	w.o.Log.Debug("kubernetes: a write is tried again", "service", key, "error", err)
}

// found takes in what a look at the object itself has shown: nil for nothing.
func (w *Writer) found(key vip.ServiceKey, e *entry, stored bool, s *corev1.Service) {
	soon := func() { // the store will have it by then
		e.failures++
		e.until, e.outdated = time.Now().Add(grown(time.Second, time.Minute, e.failures)), ""
	}
	switch {
	case s == nil && !stored:
		w.forget(key)
	case s == nil:
		soon()
	case stored:
		if s.UID != e.uid {
			soon()
			return
		}
		finalizer, ingress := w.calls.wrote(s.ManagedFields)
		e.held, e.notHeld = finalizer, !finalizer
		if ingress {
			e.told = addresses(s)
		}
	case s.UID != e.uid || !hasFinalizer(s):
		w.forget(key)
	case w.within(s):
		soon()
	default:
		if _, ingress := w.calls.wrote(s.ManagedFields); ingress {
			e.told = addresses(s)
		}
		s.ManagedFields = nil
		e.answer, e.answered, e.stray = s, time.Now(), true
	}
}

// placeIn names a Service in messages, as the source does.
func placeIn(source string, key vip.ServiceKey) string {
	o := Options{Name: source}
	return o.place(key)
}
