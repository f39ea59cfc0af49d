package statuswriter

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironvip/ironvip/vip"
)

// strays finds Services with our finalizer that the source doesn't follow. They left its selector
// while no agent ran, or the selector or the namespaces changed. The search runs once, when this
// host is first elected, as one paged list of metadata. Later changes are known from the watch.
// managedFields show who wrote a finalizer, so those of other Leases' holders are not changed. If
// the source follows all Services, no request is sent.
type strays struct {
	inside   []string // namespaces to search if listing all is not permitted
	left     []string // namespaces still to list, "": all; empty at the end
	next     string   // the list's continue token
	pages    int      // read of the list
	failures int
	until    time.Time // do not send a request before this time
}

const (
	straysPage = 500  // Services
	mostPages  = 1000 // of a list; a server that has more of them may never end
)

var errEndless = errors.New("the list of Services does not end")

func newStrays(o *Options) strays {
	out := strays{}
	if !o.Selector.Empty() {
		out.inside = o.Namespaces
	}
	if !o.Selector.Empty() || len(o.Namespaces) > 0 {
		out.left = []string{""}
	}
	return out
}

// seek requests the next page, if any. It returns the time until the next call.
func (w *Writer) seek(ctx context.Context) (again time.Duration) {
	l := &w.strays
	if len(l.left) == 0 {
		return forever
	}
	if again = time.Until(l.until); again > 0 {
		return again
	}
	if again = w.delay(); again > 0 {
		return again
	}
	page, err := w.calls.listMetadata(ctx, l.left[0], l.next, straysPage)
	if ctx.Err() != nil {
		return forever
	}
	if err == nil && page.Continue != "" && (len(page.Items) == 0 || l.pages == mostPages) {
		err = errEndless
	}
	if err != nil {
		w.notSought(err)
		return time.Until(l.until)
	}
	l.failures, l.until, w.pause = 0, time.Time{}, pause{}
	for i := range page.Items {
		w.stray(&page.Items[i])
	}
	l.pages++
	if l.next = page.Continue; l.next == "" {
		l.left, l.pages = l.left[1:], 0
	}
	return 0
}

// notSought handles a failed request for a page.
func (w *Writer) notSought(err error) {
	l := &w.strays
	verdict, asked := judge(err)
	l.failures++
	switch {
	case verdict == verdictLacking && len(w.o.Namespaces) > 0:
		// Listing all is not required. Services in other namespaces could not be changed either.
		if l.left[0] == "" {
			l.left, l.next, l.pages, l.failures = l.inside, "", 0, 0
			return
		}
		l.until = time.Now().Add(lackingFor)
	case verdict == verdictLacking:
		l.until = time.Now().Add(lackingFor)
	case apierrors.IsResourceExpired(err) || apierrors.IsGone(err): // the list took too long
		l.next, l.pages, l.until = "", 0, time.Now().Add(grown(time.Second, time.Minute, l.failures))
	default:
		if verdict == verdictBusy {
			w.pause.fail(asked)
		}
		l.until = time.Now().Add(max(asked, grown(time.Second, 10*time.Minute, l.failures)))
	}
	w.o.Log.Debug("kubernetes: looking for Services that were ours", "error", err)
}

// stray adds a Service with our finalizer that is not the source's to the queue, to release it.
func (w *Writer) stray(of *metav1.PartialObjectMetadata) {
	key := vip.ServiceKey{Namespace: of.Namespace, Name: of.Name}
	object := corev1.Service{ObjectMeta: of.ObjectMeta}
	if !hasFinalizer(&object) || w.within(&object) || w.entries[key] != nil {
		return
	}
	if w.o.Objects.Row(key) != nil {
		return
	}
	if finalizer, _ := w.calls.wrote(object.ManagedFields); !finalizer {
		return
	}
	w.o.Log.Info("kubernetes: a Service that the source no longer takes has its finalizer and status", "service", key)
	w.entries[key] = newEntry(of.UID)
	w.entries[key].held = true
	w.check(key)
}

// listMetadata lists one page of the metadata of Services, from a continue token on.
func (c *calls) listMetadata(ctx context.Context, namespace, from string, limit int) (*metav1.PartialObjectMetadataList, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	request := c.core.Get().NamespaceIfScoped(namespace, namespace != "").Resource("services").
		SetHeader("Accept", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1").
		Param("limit", strconv.Itoa(limit))
	if from != "" {
		request.Param("continue", from)
	}
	answer := request.MaxRetries(0).Do(ctx)
	if err := answer.Error(); err != nil {
		return nil, err
	}
	body, err := answer.Raw()
	if err != nil {
		return nil, err
	}
	out := &metav1.PartialObjectMetadataList{}
	return out, json.Unmarshal(body, out)
}
