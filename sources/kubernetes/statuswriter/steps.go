package statuswriter

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/ironvip/ironvip/vip"
)

// A Service is written at most writesInARow times, and then once in writeEvery. It never needs so many writes, unless
// another program undoes them.
const (
	writesInARow = 10
	writeEvery   = 2 * time.Minute
)

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
	if rest := max(e.rest(versionOf(s.service)), e.contested(), w.troubles.lacking(next.right(), key.Namespace)); rest > 0 {
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
	if left := e.contested(); left > 0 {
		w.later(key, left)
		return
	}
	w.troubles.accept(keyOf(key))
}

// contested returns how long an object must not be written because it was written so often.
func (e *attempts) contested() time.Duration {
	return time.Duration((1 - e.writes.Tokens()) * float64(writeEvery))
}

// rest returns how long an object of a version must not be written.
func (e *attempts) rest(version string) time.Duration {
	if e.outdated != "" && version != "" && version != e.outdated {
		return 0
	}
	return time.Until(e.until)
}

// versionOf returns the version of a Service; "" for nil.
func versionOf(s *corev1.Service) string {
	if s == nil {
		return ""
	}
	return s.ResourceVersion
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
		if w.failed(&e.attempts, versionOf(s.service), func() { w.troubles.refuse(keyOf(key), err) }, err) == verdictOutdated {
			e.answer, e.stray = nil, false
		}
		w.o.Log.Debug("kubernetes: a write is tried again", "service", key, "error", err)
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
	if e.writes.Allow(); e.contested() > 0 {
		w.troubles.refuse(keyOf(key), errContested)
	}
	if next == stepWriteIngress && len(ingress) > 0 {
		w.announceAllocated(key, e, out)
	}
}

var errContested = errors.New("somebody else keeps undoing it")

// failed records a failed write of a version of an object, and when to try again. It calls refuse for a write that is
// refused more than once.
func (w *Writer) failed(e *attempts, version string, refuse func(), err error) verdict {
	verdict, asked := judge(err)
	if verdict == verdictLacking { // lacking returns its wait
		return verdict
	}
	e.failures++
	e.outdated = ""
	switch verdict {
	case verdictOutdated:
		e.until = time.Now().Add(grown(100*time.Millisecond, 10*time.Second, e.failures))
		e.outdated = version
	case verdictBusy:
		w.pause.fail(asked)
		e.until = time.Now().Add(grown(time.Second, time.Minute, e.failures))
	default:
		e.until = time.Now().Add(max(asked, grown(time.Second, 10*time.Minute, e.failures)))
		if e.failures > 1 {
			refuse()
		}
	}
	return verdict
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
