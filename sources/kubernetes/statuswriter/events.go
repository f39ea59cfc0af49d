package statuswriter

import (
	"context"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironvip/ironvip/vip"
)

// Reasons of events, as "kubectl describe service" shows them.
const (
	ReasonAllocated        = "Allocated"        // the status has the VIPs
	ReasonPoolExhausted    = "PoolExhausted"    // no address is free
	ReasonConflict         = "Conflict"         // another service has the requested address, port or name
	ReasonAllocationFailed = "AllocationFailed" // allocation was not possible for another reason
	ReasonBadAnnotation    = "BadAnnotation"    // under ironvip.io/
	ReasonDeprecatedField  = "DeprecatedField"  // such as spec.loadBalancerIP
	ReasonUnsupported      = "Unsupported"      // ironvip does not support a requested feature
	ReasonInvalid          = "Invalid"          // a field is invalid
)

const (
	// Component is the component that reports the events.
	Component  = "ironvip"
	maxMessage = 1024 // the API's limit
	// maxAnnouncements is the maximum number of events that wait to be written. An event that finds
	// no room is added when the Writer next checks the Service.
	maxAnnouncements = 1000
	eventTries       = 3
)

// announcement is an event to be written.
type announcement struct {
	key     vip.ServiceKey
	object  corev1.ObjectReference
	warning bool
	reason  string
	message string
	tries   int
}

// name returns the event's name. It is the same on every host and after a restart. An event is not
// written again while the server has the name, for an hour by default.
func (a *announcement) name() string {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s\x00%s\x00%s", a.object.UID, a.reason, a.message)
	return fmt.Sprintf("%s.%016x", a.key.Name, h.Sum64())
}

// eventState are the events of one Service.
type eventState struct {
	current map[string]bool // names of events about current problems
	pace    *rate.Limiter   // limits the events of a Service that changes all the time
}

// perService is the maximum number of events of a Service in a row. After that the rate is one per
// minute.
const perService = 10

// consider adds events for new problems with a Service that needs no other step.
func (w *Writer) consider(key vip.ServiceKey, e *entry, s *situation) {
	if !s.ours || s.service == nil || e.deleting {
		return
	}
	current := map[string]bool{}
	for _, a := range w.wrong(key, s) {
		a.key, a.object = key, reference(s.service)
		name := a.name()
		if e.events.current[name] || w.enqueue(e, a) {
			current[name] = true
		}
	}
	e.events.current = current
}

// wrong returns the problems with a Service as events.
func (w *Writer) wrong(key vip.ServiceKey, s *situation) (out []announcement) {
	object, _, _ := w.o.Objects.Get(key)
	for _, p := range object.Problems {
		out = append(out, announcement{warning: true, reason: reasonOfSource(&p), message: messageOf(&p)})
	}
	if row, _, there := w.o.Services.Get(w.o.Prefix.Name(key)); there && row.Source != w.o.Source {
		p := vip.Problem{Message: fmt.Sprintf("source %q has a service of this name", row.Source), Hint: "rename one of them, or set namespace_prefix of a source"}
		return append(out, announcement{warning: true, reason: ReasonConflict, message: messageOf(&p)})
	} else if !there {
		return out
	}
	allocation, _, _ := w.o.Allocations.Get(w.o.Prefix.Name(key))
	for _, p := range allocation.Problems {
		if reason := reasonOfAllocator(&p); reason != "" {
			out = append(out, announcement{warning: true, reason: reason, message: messageOf(&p)})
		}
	}
	return out
}

// reasonOfSource returns the reason of an event for a problem with the Service's definition.
func reasonOfSource(p *vip.Problem) string {
	switch {
	case p.Code == vip.CodeDeprecated:
		return ReasonDeprecatedField
	case strings.HasPrefix(p.Field, "metadata.annotations"):
		return ReasonBadAnnotation
	case p.Code == vip.CodeUnsupported:
		return ReasonUnsupported
	default:
		return ReasonInvalid
	}
}

// reasonOfAllocator returns the reason of an event for a problem with the allocation. It returns ""
// for temporary problems.
func reasonOfAllocator(p *vip.Problem) string {
	switch p.Code {
	case vip.CodeWaiting, vip.CodeStore, vip.CodeHeldBack:
		return ""
	case vip.CodePoolFull:
		return ReasonPoolExhausted
	case vip.CodeAddressTaken, vip.CodePortTaken, vip.CodeNameTaken:
		return ReasonConflict
	case vip.CodeUnsupported:
		return ReasonUnsupported
	default:
		return ReasonAllocationFailed
	}
}

// messageOf returns the message of an event for a problem. It omits the Service, because events are
// shown with their Service.
func messageOf(p *vip.Problem) string {
	out := p.Message
	if p.Field != "" {
		out = p.Field + ": " + out
	}
	if p.Hint != "" {
		out += " (hint: " + p.Hint + ")"
	}
	if len(out) > maxMessage {
		out = out[:maxMessage-len("...")]
		for !utf8.ValidString(out) {
			out = out[:len(out)-1]
		}
		out += "..."
	}
	return out
}

// announceAllocated adds an event that a Service's status has its VIPs.
func (w *Writer) announceAllocated(key vip.ServiceKey, e *entry, s *corev1.Service) {
	message := "assigned " + joined(s.Status.LoadBalancer.Ingress)
	if allocation, _, there := w.o.Allocations.Get(w.o.Prefix.Name(key)); there && allocation.Pool != "" {
		message += fmt.Sprintf(" from pool %q", allocation.Pool)
	}
	w.enqueue(e, announcement{key: key, object: reference(s), reason: ReasonAllocated, message: message})
}

// enqueue adds an event and reports whether there was room.
func (w *Writer) enqueue(e *entry, a announcement) bool {
	if len(w.events) >= maxAnnouncements || !e.events.pace.Allow() {
		return false
	}
	w.events = append(w.events, a)
	return true
}

// announce writes the first event that may be written. It returns the time until the next call.
func (w *Writer) announce(ctx context.Context) (again time.Duration) {
	w.events = slices.DeleteFunc(w.events, func(a announcement) bool { return w.entries[a.key] == nil })
	if len(w.events) == 0 {
		return forever
	}
	at, lacking := -1, lackingFor
	for i := range w.events {
		left := w.troubles.lacking(mayCreateEvents, w.events[i].key.Namespace)
		if left <= 0 {
			at = i
			break
		}
		lacking = min(lacking, left)
	}
	if at < 0 {
		return lacking
	}
	if again = w.delay(); again > 0 {
		return again
	}
	if w.post(ctx, &w.events[at]) {
		w.events = slices.Delete(w.events, at, at+1)
	}
	return 0
}

// post writes an event and reports whether the event can be removed.
func (w *Writer) post(ctx context.Context, a *announcement) bool {
	err := w.calls.createEvent(ctx, a.event(w.o.Identity, time.Now()))
	if apierrors.IsAlreadyExists(err) {
		err = nil
	}
	if ctx.Err() != nil {
		return false
	}
	w.troubles.answered(mayCreateEvents, a.key.Namespace, err)
	switch verdict, asked := judge(err); verdict {
	case verdictDone:
		return true
	case verdictLacking:
		return false
	case verdictBusy:
		w.pause.fail(asked)
		a.tries++
		return a.tries >= eventTries
	default:
		w.o.Log.Debug("kubernetes: an event is not written", "service", a.key, "reason", a.reason, "error", err)
		return true
	}
}

// event returns the API's object of the event.
func (a *announcement) event(identity string, now time.Time) *corev1.Event {
	kind := corev1.EventTypeNormal
	if a.warning {
		kind = corev1.EventTypeWarning
	}
	at := metav1.NewTime(now)
	return &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: a.key.Namespace, Name: a.name()},
		InvolvedObject: a.object, Type: kind, Reason: a.reason, Message: a.message,
		Source:         corev1.EventSource{Component: Component, Host: identity},
		FirstTimestamp: at, LastTimestamp: at, Count: 1,
		ReportingController: Component, ReportingInstance: identity,
	}
}

func reference(s *corev1.Service) corev1.ObjectReference {
	return corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: s.Namespace, Name: s.Name, UID: s.UID, ResourceVersion: s.ResourceVersion}
}

func joined(list []corev1.LoadBalancerIngress) string {
	var ips []string
	for _, ingress := range list {
		ips = append(ips, ingress.IP)
	}
	return strings.Join(ips, " and ")
}
