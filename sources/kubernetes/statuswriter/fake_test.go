package statuswriter

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/ironvip/ironvip/internal/kubeclient"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/scope"
	"github.com/ironvip/ironvip/vip"
)

// writable is the part of an API server that the Writer uses: versions and their conflicts,
// finalizers that keep a deleted object, managedFields, and faults. It has no network, so fake time
// advances.
type writable struct {
	t *testing.T

	mu      sync.Mutex
	version int
	objects map[string]map[string]any // by path
	log     []string                  // requests: "PATCH services/web/status"
	at      []time.Time
	fault   func(request string) *http.Response // before the request is handled; nil: none
	lost    func(request string) bool           // the request succeeds, but its answer is lost
	page    int                                 // maximum number of objects per list, if set
	noMode  bool                                // a version without ipMode
	mangle  func(object map[string]any)         // like an admission webhook
	watch   []func(key vip.ServiceKey, s *corev1.Service)
}

func newWritable(t *testing.T) *writable {
	return &writable{t: t, objects: map[string]map[string]any{}}
}

// RoundTrip implements http.RoundTripper.
func (a *writable) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		body, _ = io.ReadAll(r.Body)
	}
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	request := r.Method + " " + briefPath(r.URL.Path)
	if name, named := strings.CutPrefix(r.URL.Query().Get("fieldSelector"), "metadata.name="); named {
		request = "LIST services/" + name
	} else if r.Method == "GET" && strings.HasSuffix(r.URL.Path, "/services") {
		request = "LIST metadata " + strings.Trim(strings.TrimSuffix(strings.TrimPrefix(r.URL.Path, "/api/v1"), "services"), "/")
	}
	a.log, a.at = append(a.log, request), append(a.at, time.Now())
	if a.fault != nil {
		if answer := a.fault(request); answer != nil {
			return answer, nil
		}
	}
	answer := a.serve(r, request, body)
	if a.lost != nil && a.lost(request) {
		return nil, fmt.Errorf("connection reset")
	}
	return answer, nil
}

// briefPath removes the API's root and namespaces from a path.
func briefPath(path string) string {
	_, rest, _ := strings.Cut(path, "/namespaces/")
	_, rest, _ = strings.Cut(rest, "/")
	if strings.HasPrefix(rest, "events/") {
		return "events/NAME"
	}
	return rest
}

// failure returns an error in the API's format.
func failure(code int, reason metav1.StatusReason, message string) *http.Response {
	return answerOf(code, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Code: int32(code), Reason: reason, Message: message,
		Details: &metav1.StatusDetails{}})
}

func answerOf(code int, object any) *http.Response {
	b, err := json.Marshal(object)
	if err != nil {
		panic(err)
	}
	return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(b))}
}

func (a *writable) serve(r *http.Request, request string, body []byte) *http.Response {
	var sent map[string]any
	if len(body) > 0 && json.Unmarshal(body, &sent) != nil {
		return failure(http.StatusBadRequest, metav1.StatusReasonBadRequest, "no JSON")
	}
	path, status := strings.CutSuffix(r.URL.Path, "/status")
	if r.Method == "POST" {
		path += "/" + dig(sent, "metadata", "name").(string)
	}
	if name, listed := strings.CutPrefix(request, "LIST services/"); listed {
		items := []any{}
		if object := a.objects[path+"/"+name]; object != nil {
			items = append(items, object)
		}
		return answerOf(http.StatusOK, map[string]any{"kind": "ServiceList", "apiVersion": "v1", "metadata": map[string]any{}, "items": items})
	}
	if strings.HasPrefix(request, "LIST metadata") {
		return a.metadata(r)
	}
	object, there := a.objects[path]
	switch {
	case r.Method == "POST" && there:
		return failure(http.StatusConflict, metav1.StatusReasonAlreadyExists, "already exists")
	case r.Method != "POST" && !there:
		return failure(http.StatusNotFound, metav1.StatusReasonNotFound, "not found")
	case r.Method == "GET":
		return answerOf(http.StatusOK, object)
	}
	if version := dig(sent, "metadata", "resourceVersion"); there && version != nil && version != "" && version != dig(object, "metadata", "resourceVersion") {
		return failure(http.StatusConflict, metav1.StatusReasonConflict, "the object has been modified")
	}
	switch r.Method {
	case "POST", "PUT":
		object = sent
	case "PATCH":
		expect.Equal(a.t, r.Header.Get("Content-Type"), string(types.MergePatchType), "%s as", request)
		part := "metadata"
		if status {
			part = "status"
		}
		if strings.HasPrefix(request, "PATCH services/") {
			for key := range sent {
				if key != "metadata" && key != part {
					a.t.Errorf("%s changes %s", request, key)
				}
			}
		}
		object = merge(object, sent)
		expect.True(a.t, r.URL.Query().Get("fieldManager") != "", "%s has no fieldManager", request)
		a.manage(object, sent, r.URL.Query().Get("fieldManager"))
	}
	return answerOf(http.StatusOK, a.store(path, object))
}

// metadata returns a page of the Services' metadata with managedFields.
func (a *writable) metadata(r *http.Request) *http.Response {
	expect.Contains(a.t, r.Header.Get("Accept"), "as=PartialObjectMetadataList", "%s accepts", r.URL)
	limit, err := strconv.Atoi(r.URL.Query().Get("limit"))
	expect.Succeed(a.t, err, "%s", r.URL)
	if a.page > 0 {
		limit = min(limit, a.page)
	}
	_, namespaced, _ := strings.Cut(r.URL.Path, "/namespaces/")
	items, from, next := []any{}, r.URL.Query().Get("continue"), ""
	for _, path := range slices.Sorted(maps.Keys(a.objects)) {
		if !strings.Contains(path, "/services/") || path < from || !strings.Contains(path, namespaced) {
			continue
		}
		if len(items) == limit {
			next = path
			break
		}
		items = append(items, map[string]any{"metadata": a.objects[path]["metadata"]})
	}
	return answerOf(http.StatusOK, map[string]any{"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1",
		"metadata": map[string]any{"continue": next}, "items": items})
}

// manage records the writers of the fields that tests check.
func (a *writable) manage(object, sent map[string]any, manager string) {
	fields := map[string]any{}
	if dig(sent, "metadata", "finalizers") != nil {
		fields["f:metadata"] = map[string]any{"f:finalizers": map[string]any{`v:"` + Finalizer + `"`: map[string]any{}}}
	}
	if dig(sent, "status") != nil {
		fields["f:status"] = map[string]any{"f:loadBalancer": map[string]any{"f:ingress": map[string]any{}}}
	}
	meta := object["metadata"].(map[string]any)
	all, _ := meta["managedFields"].([]any)
	meta["managedFields"] = append(all, map[string]any{"manager": manager, "operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": fields})
}

// store stores an object as a new version and notifies the watchers. The caller holds mu.
func (a *writable) store(path string, object map[string]any) map[string]any {
	a.version++
	meta := object["metadata"].(map[string]any)
	meta["resourceVersion"] = strconv.Itoa(a.version)
	if meta["uid"] == nil {
		meta["uid"] = "uid-" + strconv.Itoa(a.version)
	}
	if ingress, _ := dig(object, "status", "loadBalancer", "ingress").([]any); a.noMode {
		for _, one := range ingress {
			delete(one.(map[string]any), "ipMode")
		}
	}
	if a.mangle != nil {
		a.mangle(object)
	}
	a.objects[path] = object
	finalizers, _ := meta["finalizers"].([]any)
	gone := meta["deletionTimestamp"] != nil && len(finalizers) == 0
	if gone {
		delete(a.objects, path)
	}
	if strings.Contains(path, "/services/") {
		var s corev1.Service
		b, _ := json.Marshal(object)
		if err := json.Unmarshal(b, &s); err != nil {
			panic(err)
		}
		s.ManagedFields = nil
		key := vip.ServiceKey{Namespace: s.Namespace, Name: s.Name}
		for _, send := range a.watch {
			if gone {
				send(key, nil)
			} else {
				send(key, &s)
			}
		}
	}
	return object
}

func servicePath(name string) string { return "/api/v1/namespaces/default/services/" + name }

// edit changes a Service like another client. It may run in another goroutine than the test.
func (a *writable) edit(name string, change func(*corev1.Service)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var s corev1.Service
	s.Namespace, s.Name = "default", name
	if object := a.objects[servicePath(name)]; object != nil {
		b, _ := json.Marshal(object)
		if err := json.Unmarshal(b, &s); err != nil {
			a.t.Error(err)
			return
		}
	}
	change(&s)
	var object map[string]any
	b, _ := json.Marshal(&s)
	if err := json.Unmarshal(b, &object); err != nil {
		a.t.Error(err)
		return
	}
	a.store(servicePath(name), object)
}

// remove deletes a Service. The Service stays while it has finalizers.
func (a *writable) remove(name string) {
	a.edit(name, func(s *corev1.Service) { s.DeletionTimestamp = &metav1.Time{Time: time.Now()} })
}

// get returns a Service; nil: it does not exist.
func (a *writable) get(name string) *corev1.Service {
	a.mu.Lock()
	defer a.mu.Unlock()
	object := a.objects[servicePath(name)]
	if object == nil {
		return nil
	}
	var s corev1.Service
	b, _ := json.Marshal(object)
	must.Succeed(a.t, json.Unmarshal(b, &s))
	return &s
}

func (a *writable) lease() *coordinationv1.Lease {
	a.mu.Lock()
	defer a.mu.Unlock()
	var l coordinationv1.Lease
	b, _ := json.Marshal(a.objects["/apis/coordination.k8s.io/v1/namespaces/ironvip/leases/ironvip"])
	must.Succeed(a.t, json.Unmarshal(b, &l))
	return &l
}

// events returns the events as "reason: message xCOUNT", sorted.
func (a *writable) events() (out []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for path, object := range a.objects {
		if strings.Contains(path, "/events/") {
			out = append(out, fmt.Sprintf("%s %s: %s x%v", object["type"], object["reason"], object["message"], object["count"]))
		}
	}
	slices.Sort(out)
	return out
}

// take returns the requests since the last call, except for those for the Lease and for the list of
// strays.
func (a *writable) take() []string {
	return slices.DeleteFunc(a.takeAll(), func(request string) bool { return strings.HasPrefix(request, "LIST metadata") })
}

// takeAll returns the requests since the last call, except for those for the Lease.
func (a *writable) takeAll() (out []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, request := range a.log {
		if !strings.Contains(request, " leases") {
			out = append(out, request)
		}
	}
	a.log, a.at = nil, nil
	return out
}

// set changes a fault. Requests may be in progress.
func (a *writable) set(change func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change()
}

// dig returns the value at a path of an object; nil: none.
func dig(object any, path ...string) any {
	for _, key := range path {
		fields, is := object.(map[string]any)
		if !is {
			return nil
		}
		object = fields[key]
	}
	return object
}

// merge returns an object with a merge patch applied, as in RFC 7386.
func merge(object, patch map[string]any) map[string]any {
	out := maps.Clone(object)
	if out == nil {
		out = map[string]any{}
	}
	for key, value := range patch {
		fields, is := value.(map[string]any)
		switch {
		case value == nil:
			delete(out, key)
		case is:
			before, _ := out[key].(map[string]any)
			out[key] = merge(before, fields)
		default:
			out[key] = value
		}
	}
	return out
}

// client returns a client of one API group.
func (a *writable) client(root string, gv schema.GroupVersion, add func(*runtime.Scheme) error) rest.Interface {
	scheme := runtime.NewScheme()
	must.Succeed(a.t, add(scheme))
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	client, err := rest.RESTClientForConfigAndClient(&rest.Config{Host: "http://api", APIPath: root, QPS: -1,
		ContentConfig: rest.ContentConfig{GroupVersion: &gv, ContentType: runtime.ContentTypeJSON,
			NegotiatedSerializer: serializer.NewCodecFactory(scheme).WithoutConversion()}}, &http.Client{Transport: a})
	must.Succeed(a.t, err)
	return client
}

// prefix begins the namespaces of all Services.
const prefix = "east-"

// host is one host with a Writer, the objects of its source, and its tables.
type host struct {
	*Writer
	t            *testing.T
	api          *writable
	store        *Objects
	services     *table.Table[vip.ServiceKey, vip.Service]
	allocations  *table.Table[vip.ServiceKey, vip.Allocation]
	disconnected bool // the watch delivers nothing new

	mu      sync.Mutex
	wrong   []vip.Problem // as reported
	reports int
	serving map[vip.ServiceKey]chan struct{} // closed when it is withdrawn
	stop    func()
}

// newHost returns a host with a source in touch. Its Writer does not run yet.
func newHost(t *testing.T, api *writable, identity string) *host {
	return newHostWith(t, api, identity, Options{Selector: matching("!hidden")})
}

// matching returns a label selector.
func matching(text string) labels.Selector {
	selector, err := labels.Parse(text)
	if err != nil {
		panic(err)
	}
	return selector
}

// newHostWith is newHost with a Lease's name, namespaces and a selector.
func newHostWith(t *testing.T, api *writable, identity string, o Options) *host {
	clock := &table.Clock{}
	h := &host{t: t, api: api, store: NewObjects(), services: table.New(clock, vip.KeyOfService, nil),
		allocations: table.New(clock, vip.KeyOfAllocation, nil), serving: map[vip.ServiceKey]chan struct{}{}}
	client := must.Get(kubeclient.NewThrough(api))(t)
	o.Prefix = prefix
	o.Source, o.Objects, o.Client, o.Identity, o.IPMode = "cluster", h.store, client, identity, corev1.LoadBalancerIPModeProxy
	o.LeaseNamespace, o.LeaseName = "ironvip", cmp.Or(o.LeaseName, "ironvip")
	o.Services, o.Allocations, o.Log = h.services, h.allocations, slog.New(slog.DiscardHandler)
	if o.Selector == nil {
		o.Selector = labels.Everything()
	}
	o.Selects = func(s *corev1.Service) bool {
		return s.Spec.Type == corev1.ServiceTypeLoadBalancer && s.DeletionTimestamp == nil && (s.Spec.LoadBalancerClass == nil || *s.Spec.LoadBalancerClass == ourClass) &&
			(len(o.Namespaces) == 0 || slices.Contains(o.Namespaces, s.Namespace))
	}
	o.Place = func(key vip.ServiceKey) string { return "service " + key.String() }
	o.Report = func(problems []vip.Problem) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.wrong = problems
		h.reports++
	}
	o.Withdrawn = func(ctx context.Context, key vip.ServiceKey) error {
		h.mu.Lock()
		gone := h.serving[key]
		h.mu.Unlock()
		if gone == nil {
			return nil
		}
		select {
		case <-gone:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	h.Writer = New(o)
	h.calls.core = api.client("/api", corev1.SchemeGroupVersion, corev1.AddToScheme)
	h.calls.coordination = api.client("/apis", coordinationv1.SchemeGroupVersion, coordinationv1.AddToScheme)
	api.mu.Lock()
	defer api.mu.Unlock()
	api.watch = append(api.watch, func(key vip.ServiceKey, s *corev1.Service) {
		if s != nil && !h.within(s) {
			s = nil
		}
		if !h.disconnected {
			h.put(key, s)
		}
	})
	h.store.SetInTouch(true)
	return h
}

// start runs the Writer. stop ends it.
func (h *host) start() *host {
	h.stop = scope.Go(h.t, h.Run)
	synctest.Wait()
	return h
}

// grant sets the allocator's result for a service of the source.
func (h *host) grant(name string, problem *vip.Problem, vips ...string) {
	key := vip.ServiceKey{Namespace: prefix + "default", Name: name}
	asked := h.services.Put(vip.Service{Key: key, Source: "cluster"})
	answer := vip.Allocation{Asked: &asked.Value, ServiceRev: asked.Rev, Pool: "public"}
	for _, text := range vips {
		answer.VIPs = append(answer.VIPs, netip.MustParseAddr(text))
	}
	if problem != nil {
		answer.Problems = []vip.Problem{*problem}
	}
	h.allocations.Set(answer)
}

// offer makes a Service of ours with a VIP.
func (h *host) offer(name string) {
	h.api.edit(name, oursWith(corev1.IPv4Protocol))
	h.grant(name, nil, "192.0.2.1")
}

// said returns the reported problems in short form.
func (h *host) said() (out []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range h.wrong {
		out = append(out, p.Message)
	}
	return out
}

// reported returns how many times other problems were reported than before.
func (h *host) reported() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.reports
}

// serves makes the dataplane serve a service until the returned function is called.
func (h *host) serves(name string) (withdraw func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	gone := make(chan struct{})
	h.serving[vip.ServiceKey{Namespace: prefix + "default", Name: name}] = gone
	return func() { close(gone) }
}

// put makes the watch deliver a Service; nil: it is gone.
func (h *host) put(key vip.ServiceKey, s *corev1.Service) {
	if s == nil {
		h.store.Delete(key)
	} else {
		h.store.Store(s)
	}
}

// known returns the newest Service that the watch has delivered.
func (h *host) known(key vip.ServiceKey) *corev1.Service {
	object, _, _ := h.store.Get(key)
	return object.Service
}

// ourClass is the class of Services that the source serves, like no class.
const ourClass = "ironvip.io/vip"

// oursWith makes a Service ours.
func oursWith(families ...corev1.IPFamily) func(*corev1.Service) {
	return func(s *corev1.Service) {
		class := ourClass
		s.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, LoadBalancerClass: &class, ClusterIP: "10.96.0.9", IPFamilies: families}
	}
}

// ingressOf returns a Service's ingress as "ip/mode".
func ingressOf(s *corev1.Service) (out []string) {
	for _, ingress := range s.Status.LoadBalancer.Ingress {
		mode := "none"
		if ingress.IPMode != nil {
			mode = string(*ingress.IPMode)
		}
		out = append(out, ingress.IP+"/"+mode)
	}
	return out
}

// settle sleeps for d and then waits until all goroutines are idle.
func settle(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func inCluster(t *testing.T, f func(*testing.T, *writable)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) { f(t, newWritable(t)) })
}

// writing runs a test with a host that writes.
func writing(t *testing.T, f func(*testing.T, *writable, *host)) {
	t.Helper()
	inCluster(t, func(t *testing.T, api *writable) { f(t, api, newHost(t, api, "a").start()) })
}
