package kubernetes

import (
	"context"
	"encoding/json"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironvip/ironvip/vip"
)

// strays looks for Services that bear our finalizer and that the source doesn't
// follow: they have left its selector while no agent ran, or the selector or the
// namespaces were changed. It is done once, when this host is first elected, by
// one list of metadata, page by page: what leaves later is known. Whose a
// finalizer is, is said by managedFields, so what another Lease's holders wrote
// is not touched. Where the source follows all there is, nothing is asked.
type strays struct {
	inside   []string // namespaces to look in when all may not be
	left     []string // namespaces to be listed, "" is all; empty at the end
	next     string   // where the list goes on
	failures int
	until    time.Time // not to be asked before
}

const straysPage = 500 // Services

func newStrays(source *Options) strays {
	out := strays{}
	if source.Selector != "" {
		out.inside = source.Namespaces
	}
	if source.Selector != "" || len(source.Namespaces) > 0 {
		out.left = []string{""}
	}
	return out
}

// seek asks for the next page, if there is one to ask for. It returns when to go
// on; waits says that there is something left.
func (w *Writer) seek(ctx context.Context) (again time.Duration, waits bool) {
	l := &w.strays
	if len(l.left) == 0 {
		return 0, false
	}
	if left := max(time.Until(l.until), w.pause.left()); left > 0 {
		return left, true
	}
	if left := take(w.pace); left > 0 {
		return left, true
	}
	page, err := w.calls.listMetadata(ctx, l.left[0], l.next, straysPage)
	if ctx.Err() != nil {
		return 0, false
	}
	if err != nil {
		w.notSought(err)
		return max(0, time.Until(l.until)), true
	}
	l.failures, l.until, w.pause = 0, time.Time{}, pause{}
	for i := range page.Items {
		w.stray(&page.Items[i])
	}
	if l.next = page.Continue; l.next == "" {
		l.left = l.left[1:]
	}
	return 0, true
}

// notSought takes in that a page could not be had.
func (w *Writer) notSought(err error) {
	l := &w.strays
	verdict, asked := judge(err)
	l.failures++
	switch {
	case verdict == verdictLacking && len(w.namespaces) > 0:
		// The right isn't needed. What is elsewhere could not be changed either.
		if l.left[0] == "" {
			l.left, l.next, l.failures = l.inside, "", 0
			return
		}
		l.until = time.Now().Add(lackingFor)
	case verdict == verdictLacking:
		l.until = time.Now().Add(lackingFor)
	case apierrors.IsResourceExpired(err) || apierrors.IsGone(err): // reading took too long
		l.next, l.until = "", time.Now().Add(grown(time.Second, time.Minute, l.failures))
	default:
		if verdict == verdictBusy {
			w.pause.fail(asked)
		}
		l.until = time.Now().Add(max(asked, grown(time.Second, 10*time.Minute, l.failures)))
	}
	w.o.Log.Debug("kubernetes: looking for Services that were ours", "error", err)
}

// stray has a Service let go that bears our finalizer and is not the source's.
func (w *Writer) stray(of *metav1.PartialObjectMetadata) {
	key := vip.ServiceKey{Namespace: of.Namespace, Name: of.Name}
	object := corev1.Service{ObjectMeta: of.ObjectMeta}
	if !hasFinalizer(&object) || w.within(&object) || w.entries[key] != nil {
		return
	}
	if _, there := w.store.Get(key); there {
		return
	}
	if finalizer, _ := w.calls.wrote(object.ManagedFields); !finalizer {
		return
	}
	w.o.Log.Info("kubernetes: a Service that the source no longer takes has its finalizer and status", "service", key)
	w.entries[key] = &entry{uid: of.UID, held: true}
	w.queue.add(key)
}

// listMetadata lists Services, without what they are: a page from where another
// one ended.
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
