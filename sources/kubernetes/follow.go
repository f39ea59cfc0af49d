package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/ironvip/ironvip/internal/backoff"
	"github.com/ironvip/ironvip/internal/kubeclient"
)

// object is one of the API's objects.
type object interface {
	runtime.Object
	metav1.Object
}

// stream is one list of objects that is followed: one kind, in one namespace or in all. Fields
// without a mark belong to the goroutine that follows the stream.
type stream struct {
	*kind
	namespace string                          // "": all
	version   string                          // the API version that is known; "": read everything again
	doubt     bool                            // the server may have an older state than this one
	known     map[types.NamespacedName]string // the known objects and their versions
	settle    time.Duration                   // how long the next watch must last if more than settledAfter
	lacking   int                             // versions of the kind in a row that the server lacks

	// Fields below are protected by run.mu. Only the goroutine of the stream changes api.
	api    schema.GroupVersion // the version of the kind that is followed
	listed bool                // has been read in this run
	err    error               // why it can't be followed now
	verb   string              // the request that failed
	since  time.Time           // when the failure began
}

// errGone means that a fresh list is already too old for a watch.
var errGone = errors.New("what was listed is at once too old to be watched")

// follow keeps a stream's objects up to date until the context ends.
func (r *run) follow(ctx context.Context, s *stream) {
	rest := backoff.Backoff{Lo: r.o.timing.minBackoff, Hi: r.o.timing.maxBackoff}
	for ctx.Err() == nil {
		verb, reread, err := r.catchUp(ctx, s)
		began := time.Now()
		if err == nil {
			verb = "watch"
			err = r.watch(ctx, s, &rest)
		}
		switch {
		case ctx.Err() != nil:
			continue
		case err == nil:
			if time.Since(began) < settledAfter { // it had changes, and may end at once for ever
				backoff.Sleep(ctx, rest.Next())
			}
			continue
		case s.ofGateways && apierrors.IsNotFound(err) && r.tryOther(s):
			continue
		case lostVersion(err):
			s.version = ""
			if !reread {
				continue // normal after some time without contact
			}
			err = errGone
		default:
			s.doubt = true
		}
		r.failed(s, verb, err)
		backoff.Sleep(ctx, r.restAfter(err, &rest))
	}
}

// tryOther chooses the next version of a stream's kind, after the server was found to lack one, to read everything again. It
// returns false if the server lacks all versions.
func (r *run) tryOther(s *stream) bool {
	versions := append([]schema.GroupVersion{s.gv}, s.older...)
	s.lacking++
	r.mu.Lock()
	defer r.mu.Unlock()
	s.api, s.version = versions[(slices.Index(versions, s.api)+1)%len(versions)], ""
	return s.lacking%len(versions) != 0
}

// lostVersion reports whether an error means that the server can no longer return the changes since
// the known version.
func lostVersion(err error) bool {
	return errors.Is(err, errGone) || apierrors.IsGone(err) || apierrors.IsResourceExpired(err)
}

// restAfter returns the wait after a failure. It respects the wait that the server requests, within
// bounds.
func (r *run) restAfter(err error, rest *backoff.Backoff) time.Duration {
	const longest = time.Minute
	out := rest.Next()
	if apierrors.IsNotFound(err) {
		out = r.o.timing.watch // the server does not have this kind; a newer server may
	}
	if seconds, says := apierrors.SuggestsClientDelay(err); says {
		out = max(out, about(min(time.Duration(seconds)*time.Second, longest)))
	}
	return out
}

// catchUp makes sure that a watch can begin at the stream's version. It reads all objects again if
// there is no version, or if the server's state is older, as after a restore. The older server
// would accept a watch, but send no changes until it reaches that version.
func (r *run) catchUp(ctx context.Context, s *stream) (verb string, reread bool, err error) {
	if s.version != "" && s.doubt {
		list, err := r.list(ctx, s, metav1.ListOptions{Limit: 1})
		if err != nil {
			return "list", false, err
		}
		if accessor, err := meta.ListAccessor(list); err != nil || older(accessor.GetResourceVersion(), s.version) {
			s.version = ""
		}
	}
	s.doubt = false
	if s.version != "" {
		return "", false, nil
	}
	return "list", true, r.readAll(ctx, s)
}

// older reports whether a version of the API's state is older than another one, or invalid.
func older(version, than string) bool {
	order, err := resourceversion.CompareResourceVersion(version, than)
	return err != nil || order < 0
}

// readAll reads all objects of the stream and removes those that no longer exist. A list that fails
// leaves no more objects than are allowed.
func (r *run) readAll(ctx context.Context, s *stream) error {
	var added []types.NamespacedName
	err := r.readPages(ctx, s, &added)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil && len(s.known) > r.o.timing.objects {
		for _, name := range added {
			r.drop(s, name)
		}
	}
	return err
}

// readPages reads all objects, page by page, and appends the names of the new ones to added. It is an
// error if a page before the last one has no other objects than the pages before, or if there are many more
// pages than the objects need: the list might never end.
func (r *run) readPages(ctx context.Context, s *stream, added *[]types.NamespacedName) error {
	there := map[types.NamespacedName]struct{}{}
	options := metav1.ListOptions{Limit: r.o.timing.page}
	most := 2 * (r.o.timing.objects/int(r.o.timing.page) + 1)
	for restarted, pages := false, 1; ; pages++ {
		list, err := r.list(ctx, s, options)
		if err != nil && options.Continue != "" && lostVersion(err) && !restarted {
			// Reading took longer than the server keeps the list's state.
			restarted = true
			clear(there)
			options = metav1.ListOptions{}
			continue
		}
		if err != nil {
			return err
		}
		page, err := meta.ListAccessor(list)
		if err != nil {
			return err
		}
		// Copy the objects. Otherwise one object keeps its whole page in memory.
		var objects []object
		if err := meta.EachListItemWithAlloc(list, func(o runtime.Object) error {
			objects = append(objects, o.(object)) // of the type of s.one
			return nil
		}); err != nil {
			return err
		}
		before := len(there)
		r.mu.Lock()
		for _, o := range objects {
			name := nameOf(o)
			there[name] = struct{}{}
			if _, known := s.known[name]; !known {
				*added = append(*added, name)
			}
			r.take(s, o)
		}
		if len(there) > r.o.timing.objects {
			r.mu.Unlock()
			return r.tooMany()
		}
		if page.GetContinue() == "" {
			for name := range s.known {
				if _, still := there[name]; !still {
					r.drop(s, name)
					r.lost = r.lost || s.whole
				}
			}
			s.version, s.listed = page.GetResourceVersion(), true
			r.reached(s)
			r.mu.Unlock()
			return nil
		}
		r.publisher.Wake()
		r.mu.Unlock()
		switch {
		case len(there) == before:
			return errors.New("the list continues without new objects")
		case pages == most:
			return fmt.Errorf("the list has more than %d pages: most of them are short", most)
		}
		options.Continue = page.GetContinue()
	}
}

// list requests one page.
func (r *run) list(ctx context.Context, s *stream, options metav1.ListOptions) (runtime.Object, error) {
	limit := r.o.timing.answer
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("no answer within %s", limit))
	defer cancel()
	list, err := r.request(s, options).Do(ctx).Get()
	if err != nil {
		return nil, because(ctx, err)
	}
	return list, check(list, s.list)
}

// request returns a request for the stream's objects. client-go's own retries are disabled, because
// the source decides about retries.
func (r *run) request(s *stream, options metav1.ListOptions) *rest.Request {
	options.LabelSelector = s.labels
	client := r.o.Client
	return client.REST(s.api).Get().NamespaceIfScoped(s.namespace, s.namespace != "").Resource(s.resource).
		VersionedParams(&options, client.Params()).MaxRetries(0)
}

// because returns the cause of an error.
func because(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return kubeclient.Cause(err)
}

// watch receives changes until the server ends the watch, which is normal every few minutes and not
// an error.
func (r *run) watch(ctx context.Context, s *stream, rest *backoff.Backoff) error {
	t := r.o.timing
	asked := (t.watch + rand.N(t.watch)).Truncate(time.Second)
	seconds := int64(asked / time.Second)
	options := metav1.ListOptions{Watch: true, AllowWatchBookmarks: true, ResourceVersion: s.version, TimeoutSeconds: &seconds}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	late := time.AfterFunc(t.answer, func() { cancel(fmt.Errorf("no answer within %s", t.answer)) })
	began := time.Now()
	from, err := r.request(s, options).Watch(ctx)
	late.Stop()
	if err != nil {
		return because(ctx, err)
	}
	defer from.Stop()
	// This timer ends a watch that the server fails to end in time.
	late = time.AfterFunc(asked+t.answer, func() { cancel(errors.New("the watch should have ended")) })
	defer late.Stop()
	settled := time.NewTimer(max(settledAfter, s.settle))
	defer settled.Stop()
	inTouch := false
	reached := func() {
		if !inTouch {
			inTouch = true
			r.mu.Lock()
			r.reached(s)
			r.mu.Unlock()
		}
	}
	for open := true; open; {
		var event watch.Event
		select {
		case <-settled.C:
			s.settle = 0
			rest.Reset()
			reached()
		case event, open = <-from.ResultChan():
			if !open {
				break
			}
			if err := r.event(s, event); err != nil {
				// The next one may fail like this one, after as long.
				s.settle = min(2*max(s.settle, time.Since(began)), 3*t.maxBackoff)
				return err
			}
			reached()
		}
	}
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	s.doubt = time.Since(began) < asked
	if !inTouch {
		return errors.New("the watch ended at once")
	}
	return nil
}

// settledAfter is how long a watch must last so that the next one begins without a pause, and one
// without changes to count as successful. If the connection breaks instead of an answer, client-go
// returns a watch that ends at once.
const settledAfter = time.Second

// event handles one change.
func (r *run) event(s *stream, event watch.Event) error {
	if event.Type == watch.Error {
		return apierrors.FromObject(event.Object)
	}
	if err := check(event.Object, s.one); err != nil {
		s.version = "" // the same watch would send it again
		return err
	}
	o := event.Object.(object)
	r.mu.Lock()
	defer r.mu.Unlock()
	switch event.Type {
	case watch.Added, watch.Modified:
		if _, known := s.known[nameOf(o)]; !known && len(s.known) >= r.o.timing.objects {
			s.version = "" // a new list removes those that don't exist
			return r.tooMany()
		}
		r.take(s, o)
	case watch.Deleted:
		r.drop(s, nameOf(o))
	case watch.Bookmark:
		r.answered = true
	}
	s.version = o.GetResourceVersion()
	r.publisher.Wake()
	return nil
}

func nameOf(o metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
}

func (r *run) tooMany() error {
	return fmt.Errorf("the server has more than %d objects", r.o.timing.objects)
}

// take stores the newest version of an object. The caller holds mu.
func (r *run) take(s *stream, o object) {
	name, version := nameOf(o), string(o.GetUID())+" "+o.GetResourceVersion()
	if s.known[name] == version {
		return
	}
	s.known[name] = version
	o.SetManagedFields(nil)
	s.put(r, o)
}

// drop removes an object. The caller holds mu.
func (r *run) drop(s *stream, name types.NamespacedName) {
	if _, there := s.known[name]; there {
		delete(s.known, name)
		s.gone(r, name)
	}
}

// reached records that the stream can be followed. The caller holds mu.
func (r *run) reached(s *stream) {
	if s.err != nil && s.required {
		r.back = time.Now()
	}
	s.err, s.verb, s.since, s.lacking = nil, "", time.Time{}, 0
	r.answered = true
	r.publisher.Wake()
}

// failed records that the stream can't be followed.
func (r *run) failed(s *stream, verb string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.err == nil {
		s.since = time.Now()
	}
	s.err, s.verb = err, verb
	r.publisher.Wake()
}

// about returns d plus a jitter of up to a tenth. The result is never less than a wait that the
// server requested.
func about(d time.Duration) time.Duration { return d + rand.N(d/10+1) }
