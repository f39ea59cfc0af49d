package kubernetes

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

// The reasons of events, as "kubectl describe service" shows them.
const (
	ReasonAllocated        = "Allocated"        // the status has the VIPs
	ReasonPoolExhausted    = "PoolExhausted"    // no address is free
	ReasonConflict         = "Conflict"         // another service has what this one asks for
	ReasonAllocationFailed = "AllocationFailed" // it could not be given for another reason
	ReasonBadAnnotation    = "BadAnnotation"    // under ironvip.io/
	ReasonDeprecatedField  = "DeprecatedField"  // such as spec.loadBalancerIP
	ReasonUnsupported      = "Unsupported"      // ironvip can't do what the Service asks for
	ReasonInvalid          = "Invalid"          // ironvip can't use a field
)

const (
	component = "ironvip"
	// eventLasts is how long a server keeps events, if not told otherwise.
	eventLasts = time.Hour
	maxMessage = 1024 // the API's bound
	// maxAnnouncements is how many events may wait to be written. What finds no
	// room is told when the Service is next looked at.
	maxAnnouncements = 1000
	eventTries       = 3
)

// announcement is one event that is to be written.
type announcement struct {
	key     vip.ServiceKey
	object  corev1.ObjectReference
	warning bool
	reason  string
	message string
	tries   int
}

// name is the event's. It is the same on every host and after a restart, so that
// what another has told already is not told again: the server has the name.
func (a *announcement) name() string {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s\x00%s\x00%s", a.object.UID, a.reason, a.message)
	return fmt.Sprintf("%s.%016x", a.key.Name, h.Sum64())
}

// announcements are the events that wait, oldest first.
type announcements struct{ list []announcement }

func (a *announcements) clear() { a.list = nil }

// toldEvents are what was said of one Service.
type toldEvents struct {
	standing map[string]bool   // names of events about what is still wrong
	posted   map[string]posted // events that this host has written
	pace     *rate.Limiter     // nil before the first; so that a Service that changes all the time does not fill the server
}

// posted is an event that this host has written.
type posted struct {
	count int32
	at    time.Time
}

// perService is how many events a Service may have in a row, then one a minute.
const perService = 10

// consider has events written about what has become wrong with a Service that is
// as well served as can be.
func (w *Writer) consider(key vip.ServiceKey, e *entry, s *situation) {
	if !s.ours || s.service == nil || e.deleting {
		return
	}
	standing := map[string]bool{}
	for _, a := range w.wrong(key, s) {
		a.key, a.object = key, reference(s.service)
		name := a.name()
		if e.events.standing[name] || w.enqueue(e, a) {
			standing[name] = true
		}
	}
	e.events.standing = standing
}

// wrong returns what is wrong with a Service, as events.
func (w *Writer) wrong(key vip.ServiceKey, s *situation) (out []announcement) {
	for _, p := range w.store.Problems(key) {
		out = append(out, announcement{warning: true, reason: reasonOfSource(&p), message: messageOf(&p)})
	}
	if row, _, there := w.o.Services.Get(key); there && row.Source != w.source {
		p := vip.Problem{Message: fmt.Sprintf("source %q has a service of this name", row.Source), Hint: "rename one of them"}
		return append(out, announcement{warning: true, reason: ReasonConflict, message: messageOf(&p)})
	} else if !there {
		return out
	}
	allocation, _, _ := w.o.Allocations.Get(key)
	for _, p := range allocation.Problems {
		if reason := reasonOfAllocator(&p); reason != "" {
			out = append(out, announcement{warning: true, reason: reason, message: messageOf(&p)})
		}
	}
	return out
}

// reasonOfSource returns the reason of an event about how a Service is described.
func reasonOfSource(p *vip.Problem) string {
	switch {
	case p.Code == codeDeprecated:
		return ReasonDeprecatedField
	case strings.HasPrefix(p.Field, "metadata.annotations"):
		return ReasonBadAnnotation
	case p.Code == vip.CodeUnsupported:
		return ReasonUnsupported
	default:
		return ReasonInvalid
	}
}

// reasonOfAllocator returns the reason of an event about what could not be given,
// "" for what passes by itself.
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

// messageOf returns a problem in the words of an event, which is shown beside its
// Service.
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

// tellAllocated has an event written that a Service's status has its VIPs.
func (w *Writer) tellAllocated(key vip.ServiceKey, e *entry, s *corev1.Service) {
	var vips []string
	for _, ingress := range s.Status.LoadBalancer.Ingress {
		vips = append(vips, ingress.IP)
	}
	message := "assigned " + strings.Join(vips, " and ")
	if allocation, _, there := w.o.Allocations.Get(key); there && allocation.Pool != "" {
		message += fmt.Sprintf(" from pool %q", allocation.Pool)
	}
	w.enqueue(e, announcement{key: key, object: reference(s), reason: ReasonAllocated, message: message})
}

// enqueue has an event written, and reports whether there was room.
func (w *Writer) enqueue(e *entry, a announcement) bool {
	if e.events.pace == nil {
		e.events.pace = rate.NewLimiter(rate.Every(time.Minute), perService)
	}
	if len(w.events.list) >= maxAnnouncements || !e.events.pace.Allow() {
		return false
	}
	w.events.list = append(w.events.list, a)
	return true
}

// announce writes the first event that may be written, and returns when to go on;
// waits says that there is something left.
func (w *Writer) announce(ctx context.Context) (again time.Duration, waits bool) {
	w.events.list = slices.DeleteFunc(w.events.list, func(a announcement) bool { return w.entries[a.key] == nil })
	if len(w.events.list) == 0 {
		return 0, false
	}
	at, lacking := -1, lackingFor
	for i := range w.events.list {
		left := w.troubles.lacking(mayTell, w.events.list[i].key.Namespace)
		if left <= 0 {
			at = i
			break
		}
		lacking = min(lacking, left)
	}
	if at < 0 {
		return lacking, true
	}
	if left := w.pause.left(); left > 0 {
		return left, true
	}
	if left := take(w.pace); left > 0 {
		return left, true
	}
	if a := &w.events.list[at]; w.post(ctx, a, w.entries[a.key]) {
		w.events.list = slices.Delete(w.events.list, at, at+1)
	}
	return 0, true
}

// post writes an event, and reports whether that is done with.
func (w *Writer) post(ctx context.Context, a *announcement, e *entry) bool {
	now, name := time.Now(), a.name()
	last, before := e.events.posted[name]
	before = before && now.Sub(last.at) < eventLasts && w.troubles.lacking(mayRepeat, a.key.Namespace) <= 0
	needs := mayTell
	var err error
	if before {
		needs = mayRepeat
		last.count++
		err = w.calls.repeatEvent(ctx, a.key.Namespace, name, last.count, metav1.NewTime(now))
		if apierrors.IsNotFound(err) {
			delete(e.events.posted, name)
			return false
		}
	} else {
		last = posted{count: 1}
		err = w.calls.createEvent(ctx, a.event(w.o.Identity, now))
		if apierrors.IsAlreadyExists(err) { // told by a former writer
			err = nil
		}
	}
	if ctx.Err() != nil {
		return false
	}
	w.troubles.told(needs, a.key.Namespace, err)
	switch verdict, asked := judge(err); verdict {
	case verdictDone:
		if e.events.posted == nil || len(e.events.posted) >= 2*perService {
			e.events.posted = map[string]posted{}
		}
		last.at = now
		e.events.posted[name] = last
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

// event returns the event as the API has it.
func (a *announcement) event(identity string, now time.Time) *corev1.Event {
	kind := corev1.EventTypeNormal
	if a.warning {
		kind = corev1.EventTypeWarning
	}
	at := metav1.NewTime(now)
	return &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: a.key.Namespace, Name: a.name()},
		InvolvedObject: a.object, Type: kind, Reason: a.reason, Message: a.message,
		Source:         corev1.EventSource{Component: component, Host: identity},
		FirstTimestamp: at, LastTimestamp: at, Count: 1,
		ReportingController: component, ReportingInstance: identity,
	}
}

func reference(s *corev1.Service) corev1.ObjectReference {
	return corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: s.Namespace, Name: s.Name, UID: s.UID, ResourceVersion: s.ResourceVersion}
}
