package statuswriter

import (
	"bytes"
	"context"
	"encoding/json"
	"regexp"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ironvip/ironvip/internal/delayqueue"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// DocumentKey identifies an object other than a Service whose status the Writer writes.
type DocumentKey struct{ Resource, Namespace, Name string }

// String returns "gateways shop/main" for messages.
func (k DocumentKey) String() string {
	if k.Namespace == "" {
		return k.Resource + " " + strict.Name(k.Name)
	}
	return k.Resource + " " + strict.Name(k.Namespace) + "/" + strict.Name(k.Name)
}

// Granted returns the allocation of a Service of the source, if there is one.
type Granted func(vip.ServiceKey) (vip.Allocation, bool)

// Document is an object whose status the Writer writes. It has no finalizer: nothing is cleaned up in it.
type Document struct {
	Key      DocumentKey
	API      schema.GroupVersion
	UID      types.UID
	Version  string
	Services []vip.ServiceKey // whose allocations its status depends on
	// Status returns the status of the object as it is and as it shall be. Both are structures with the keys that are ours.
	Status func(now time.Time, granted Granted) (before, after any)
}

// documents is the Writer's state of the documents.
type documents struct {
	entries map[DocumentKey]*document
	of      map[vip.ServiceKey]map[DocumentKey]struct{} // by the services that their status depends on
	queue   delayqueue.Queue[DocumentKey]
}

// document is the Writer's state of one document.
type document struct {
	attempts
	uid      types.UID
	services []vip.ServiceKey
	based    string    // the version that the last write was based on
	answered time.Time // when that was answered
	wrote    []byte    // the last write, without times
}

func newDocuments() documents {
	return documents{entries: map[DocumentKey]*document{}, of: map[vip.ServiceKey]map[DocumentKey]struct{}{}}
}

// changed handles a new version of a document.
func (d *documents) changed(of *Document, gone bool) {
	was := d.entries[of.Key]
	if was != nil {
		for _, key := range was.services {
			if delete(d.of[key], of.Key); len(d.of[key]) == 0 {
				delete(d.of, key)
			}
		}
	}
	if gone {
		delete(d.entries, of.Key)
		d.queue.Drop(of.Key)
		return
	}
	if was == nil || was.uid != of.UID {
		was = &document{attempts: newAttempts(), uid: of.UID}
		d.entries[of.Key] = was
	}
	was.services = of.Services
	for _, key := range of.Services {
		if d.of[key] == nil {
			d.of[key] = map[DocumentKey]struct{}{}
		}
		d.of[key][of.Key] = struct{}{}
	}
	d.check(of.Key)
}

// allocated handles a change of an allocation.
func (d *documents) allocated(key vip.ServiceKey) {
	for of := range d.of[key] {
		d.check(of)
	}
}

func (d *documents) check(key DocumentKey) { d.queue.Hasten(key, time.Now()) }

// grantedOf implements Granted.
func (w *Writer) grantedOf(key vip.ServiceKey) (vip.Allocation, bool) {
	name := w.o.Prefix.Name(key)
	if row, _, there := w.o.Services.Get(name); !there || row.Source != w.o.Source {
		return vip.Allocation{}, false
	}
	out, _, there := w.o.Allocations.Get(name)
	return out, there && out.Asked != nil
}

// times are those of conditions.
var times = regexp.MustCompile(`"lastTransitionTime":"[^"]*"`)

// write writes the status of a document that is due, if it differs. The results are those of lookAt.
func (w *Writer) write(ctx context.Context, key DocumentKey) (sent bool, wait time.Duration) {
	of, _, there := w.o.Objects.Documents.Get(key)
	e := w.documents.entries[key]
	w.documents.queue.Drop(key)
	if !there || e == nil { // the deletion arrives
		return false, 0
	}
	if left := time.Until(e.answered.Add(answerLasts)); of.Version == e.based && left > 0 {
		w.documents.queue.Set(key, time.Now().Add(left)) // the new version arrives through the watch
		return false, 0
	}
	before, after := of.Status(time.Now(), w.grantedOf)
	old, errOld := json.Marshal(before)
	status, errNew := json.Marshal(after)
	if errOld != nil || errNew != nil || bytes.Equal(old, status) {
		e.failures = 0
		if left := e.contested(); left > 0 {
			w.documents.queue.Set(key, time.Now().Add(left))
		} else {
			w.troubles.accept(key)
		}
		return false, 0
	}
	right := right{"patch", key.Resource + "." + of.API.Group + "/status"}
	rest := max(e.rest(of.Version), w.troubles.lacking(right, key.Namespace))
	timeless := times.ReplaceAll(status, nil)
	undone := bytes.Equal(timeless, e.wrote) // by another program; a status that changes is written as often as it does
	if undone {
		rest = max(rest, e.contested())
	}
	if rest > 0 {
		w.documents.queue.Set(key, time.Now().Add(rest))
		return false, 0
	}
	if wait = w.delay(); wait > 0 {
		w.documents.check(key)
		return false, wait
	}
	err := w.calls.setStatus(ctx, &of, status)
	if ctx.Err() != nil {
		return true, 0
	}
	w.troubles.answered(right, key.Namespace, err)
	w.documents.check(key)
	if err != nil {
		w.failed(&e.attempts, of.Version, func() { w.troubles.refuse(key, err) }, err)
		w.o.Log.Debug("kubernetes: a write is tried again", "object", key, "error", err)
		return true, 0
	}
	w.pause = pause{}
	e.based, e.answered = of.Version, time.Now()
	e.failures, e.until, e.outdated = 0, time.Time{}, ""
	if e.wrote = timeless; undone && e.writes.Allow() && e.contested() > 0 {
		w.troubles.refuse(key, errContested)
	}
	return true, 0
}

// setStatus replaces the keys of a document's status, if its version is still the newest.
func (c *calls) setStatus(ctx context.Context, of *Document, status json.RawMessage) error {
	body, err := json.Marshal(map[string]any{"metadata": map[string]string{"resourceVersion": of.Version}, "status": status})
	if err != nil {
		return err
	}
	request := c.client.REST(of.API).Patch(types.MergePatchType).NamespaceIfScoped(of.Key.Namespace, of.Key.Namespace != "").
		Resource(of.Key.Resource).Name(of.Key.Name).SubResource("status").Param(managerParam, c.manager).Body(body)
	return do(ctx, request, callTimeout, nil)
}
