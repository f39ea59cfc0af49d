package statuswriter

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/ironvip/ironvip/vip"
)

const (
	// contestLasts is the period in which repeated writes of the same value mean that another
	// program undoes them.
	contestLasts = 10 * time.Minute
	contestAfter = 3 // repeated writes
)

// deed is a completed write.
type deed struct {
	ingress string
	at      time.Time
	again   int // how often it was repeated because another program had undone it
}

// lookAt performs the next step of a Service that is due. It reports whether a request was sent, or
// how long a pause delays the request. If neither, the Service is no longer due.
func (w *Writer) lookAt(ctx context.Context, key vip.ServiceKey) (sent bool, wait time.Duration) {
	s := w.observe(key)
	e := w.entries[key]
	next := s.decide()
	switch next {
	case stepNone:
		w.queue.Drop(key)
		if e != nil {
			w.content(key, e)
			w.consider(key, e, &s)
		}
		return false, 0
	case stepAwait:
		w.queue.Drop(key)
		w.await(ctx, key, e)
		return false, 0
	}
	if rest := max(e.rest(s.service), w.troubles.lacking(next.right(), key.Namespace)); rest > 0 {
		w.later(key, rest)
		return false, 0
	}
	if wait = w.delay(); wait > 0 {
		return false, wait
	}
	w.do(ctx, key, e, &s, next)
	return true, 0
}

// content records that a Service is in the desired state.
func (w *Writer) content(key vip.ServiceKey, e *entry) {
	e.failures = 0
	for _, d := range e.done {
		if left := contestLasts - time.Since(d.at); d.again >= contestAfter && left > 0 {
			w.later(key, left)
			return
		}
	}
	w.troubles.accept(key)
}

// rest returns how long a Service must not be written.
func (e *entry) rest(s *corev1.Service) time.Duration {
	if e.outdated != "" && s != nil && s.ResourceVersion != e.outdated {
		return 0
	}
	return time.Until(e.until)
}

// right returns the permission that a step needs.
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

// do sends the request of a step.
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
	w.troubles.answered(next.right(), key.Namespace, err)
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
		w.announceAllocated(key, e, out)
	}
}

var errContested = errors.New("somebody else keeps undoing it")

// did records a write. The interval grows for writes that another program undoes again and again.
func (w *Writer) did(key vip.ServiceKey, e *entry, what step, ingress string) {
	if e.done == nil {
		e.done = map[step]deed{}
	}
	switch what { // undoing our own write does not count
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
			w.troubles.refuse(key, w.o.Place(key), errContested)
		}
	}
	e.done[what] = deed{ingress: ingress, at: now, again: again}
}

// failed records a failed request and when to try again.
func (w *Writer) failed(key vip.ServiceKey, e *entry, s *situation, err error) {
	verdict, asked := judge(err)
	if verdict == verdictLacking { // lacking returns its wait
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
			w.troubles.refuse(key, w.o.Place(key), err)
		}
	}
	w.o.Log.Debug("kubernetes: a write is tried again", "service", key, "error", err)
}

// found handles an object that was read directly; nil: it does not exist.
func (w *Writer) found(key vip.ServiceKey, e *entry, stored bool, s *corev1.Service) {
	soon := func() { // the store will have received it by then
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
			e.addrs = addresses(s)
		}
	case s.UID != e.uid || !hasFinalizer(s):
		w.forget(key)
	case w.within(s):
		soon()
	default:
		if _, ingress := w.calls.wrote(s.ManagedFields); ingress {
			e.addrs = addresses(s)
		}
		s.ManagedFields = nil
		e.answer, e.answered, e.stray = s, time.Now(), true
	}
}
