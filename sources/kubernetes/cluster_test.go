package kubernetes

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ironvip/ironvip/internal/kubeclient"
	"github.com/ironvip/ironvip/internal/kubeclient/gatewayapi"
	"github.com/ironvip/ironvip/sources/kubernetes/gateway"
	"github.com/ironvip/ironvip/test/must"
)

// cluster is an API server in memory for lists and watches, with faults. It answers in JSON without
// a network, so that it works with fake time.
type cluster struct {
	mu       sync.Mutex
	version  int
	floor    int // changes up to this version are compacted
	objects  map[string]map[types.NamespacedName]object
	history  []change
	watches  map[*held]struct{}
	requests []string
	// refuse answers a request, in the form of requests; nil means a normal answer.
	refuse  func(request string) *http.Response
	missing []string // what the server does not have: ends of paths
	away    bool
	stalled chan struct{} // closed when requests are answered again; nil while they are answered
}

type change struct {
	version  int
	resource string
	how      string
	object   object
}

// held is a watch.
type held struct{ wake, cut chan struct{} }

func newCluster() *cluster {
	return &cluster{version: 100, objects: map[string]map[types.NamespacedName]object{}, watches: map[*held]struct{}{}}
}

// client returns a client of the cluster.
func (c *cluster) client(t testing.TB) *kubeclient.Client {
	t.Helper()
	return must.Get(kubeclient.NewThrough(c))(t)
}

func kindOf(o object) (resource string, gvk schema.GroupVersionKind) {
	switch o.(type) {
	case *corev1.Service:
		return "services", corev1.SchemeGroupVersion.WithKind("Service")
	case *corev1.Node:
		return "nodes", corev1.SchemeGroupVersion.WithKind("Node")
	case *discoveryv1.EndpointSlice:
		return "endpointslices", discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice")
	case *networkingv1.ServiceCIDR:
		return "servicecidrs", networkingv1.SchemeGroupVersion.WithKind("ServiceCIDR")
	case *corev1.Namespace:
		return "namespaces", corev1.SchemeGroupVersion.WithKind("Namespace")
	case *gatewayapi.GatewayClass:
		return gateway.ResourceClasses, gatewayapi.V1.WithKind("GatewayClass")
	case *gatewayapi.Gateway:
		return gateway.ResourceGateways, gatewayapi.V1.WithKind("Gateway")
	case *gatewayapi.ReferenceGrant:
		return gateway.ResourceGrants, gatewayapi.V1.WithKind("ReferenceGrant")
	case *gatewayapi.Route:
		kind := o.GetObjectKind().GroupVersionKind().Kind
		return gateway.ResourceOf[kind], gatewayapi.V1.WithKind(kind)
	}
	panic(fmt.Sprintf("%T", o))
}

// put creates or changes objects.
func (c *cluster) put(all ...object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, o := range all {
		resource, gvk := kindOf(o)
		c.version++
		o = o.DeepCopyObject().(object)
		o.GetObjectKind().SetGroupVersionKind(gvk)
		o.SetResourceVersion(strconv.Itoa(c.version))
		if c.objects[resource] == nil {
			c.objects[resource] = map[types.NamespacedName]object{}
		}
		how := "MODIFIED"
		if c.objects[resource][nameOf(o)] == nil {
			how = "ADDED"
		}
		c.objects[resource][nameOf(o)] = o
		c.happened(change{c.version, resource, how, o})
	}
}

// remove deletes objects.
func (c *cluster) remove(all ...object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, o := range all {
		resource, _ := kindOf(o)
		c.version++
		was := c.objects[resource][nameOf(o)].DeepCopyObject().(object)
		was.SetResourceVersion(strconv.Itoa(c.version))
		delete(c.objects[resource], nameOf(o))
		c.happened(change{c.version, resource, "DELETED", was})
	}
}

func (c *cluster) happened(what change) {
	c.history = append(c.history, what)
	for w := range c.watches {
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
}

// set changes how the cluster answers. With cut it ends all watches.
func (c *cluster) set(cut bool, f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
	if cut {
		for w := range c.watches {
			close(w.cut)
		}
		clear(c.watches)
	}
}

// leave makes the cluster unavailable: it does not answer, and all watches end.
func (c *cluster) leave() { c.set(true, func() { c.away = true }) }

// comeBack makes the cluster available again. With compacted its history is lost.
func (c *cluster) comeBack(compacted bool) {
	c.set(true, func() {
		c.away = false
		if compacted {
			c.version++
			c.floor, c.history = c.version, nil
		}
	})
}

// asked returns the requests since the last call, sorted: "list services", "probe services" for a
// list of one object, "watch services".
func (c *cluster) asked() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := c.requests
	c.requests = nil
	slices.Sort(out)
	return out
}

func refusal(code int, header ...string) *http.Response {
	status := metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Code: int32(code)}
	switch code {
	case http.StatusForbidden:
		status.Reason, status.Message = metav1.StatusReasonForbidden, "the user may not do that"
	case http.StatusGone:
		status.Reason = metav1.StatusReasonExpired
	case http.StatusNotFound:
		status.Reason = metav1.StatusReasonNotFound
	}
	out := answer(code, status)
	if status.Reason == "" { // like an overloaded server
		out.Header.Set("Content-Type", "text/plain")
		out.Body = io.NopCloser(strings.NewReader("not now"))
	}
	for i := 0; i+1 < len(header); i += 2 {
		out.Header.Set(header[i], header[i+1])
	}
	return out
}

func answer(code int, body any) *http.Response {
	data, err := json.Marshal(body)
	if err != nil {
		panic(err)
	}
	return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(data))}
}

// RoundTrip implements http.RoundTripper.
func (c *cluster) RoundTrip(r *http.Request) (*http.Response, error) {
	query := r.URL.Query()
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	resource, namespace := parts[len(parts)-1], ""
	if at := slices.Index(parts, "namespaces"); at >= 0 && at+1 < len(parts) {
		namespace = parts[at+1]
	}
	verb := "list"
	switch {
	case query.Get("watch") != "":
		verb = "watch"
	case query.Get("limit") == "1":
		verb = "probe"
	}
	request := strings.TrimSpace(verb + " " + resource + " " + namespace)

	c.mu.Lock()
	c.requests = append(c.requests, request)
	stalled, away, missing := c.stalled, c.away, c.missing
	var refused *http.Response
	if c.refuse != nil {
		refused = c.refuse(request)
	}
	c.mu.Unlock()
	if stalled != nil {
		select {
		case <-r.Context().Done():
			return nil, r.Context().Err()
		case <-stalled:
		}
	}
	if away {
		return nil, errors.New("dial tcp 192.0.2.1:6443: connect: connection refused")
	}
	if refused != nil {
		return refused, nil
	}
	if slices.ContainsFunc(missing, func(end string) bool { return strings.HasSuffix(r.URL.Path, end) }) {
		return refusal(http.StatusNotFound), nil
	}
	selector, err := labels.Parse(query.Get("labelSelector"))
	if err != nil {
		return refusal(http.StatusBadRequest), nil
	}
	matches := func(o object) bool {
		return (namespace == "" || o.GetNamespace() == namespace) && selector.Matches(labels.Set(o.GetLabels()))
	}
	from, _ := strconv.Atoi(query.Get("resourceVersion"))
	if verb == "watch" {
		c.mu.Lock()
		defer c.mu.Unlock()
		if from < c.floor {
			return refusal(http.StatusGone), nil
		}
		seconds, _ := strconv.Atoi(query.Get("timeoutSeconds"))
		w := &held{make(chan struct{}, 1), make(chan struct{})}
		c.watches[w] = struct{}{}
		body, to := io.Pipe()
		go c.stream(r.Context(), w, to, time.Duration(seconds)*time.Second, from, resource, matches)
		return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: body}, nil
	}
	return c.page(resource, query.Get("limit"), query.Get("continue"), matches), nil
}

// page answers a list.
func (c *cluster) page(resource, limit, from string, matches func(object) bool) *http.Response {
	c.mu.Lock()
	defer c.mu.Unlock()
	var items []object
	for _, name := range slices.SortedFunc(maps.Keys(c.objects[resource]), func(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) }) {
		if o := c.objects[resource][name]; matches(o) {
			items = append(items, o)
		}
	}
	many, _ := strconv.Atoi(limit)
	first, _ := strconv.Atoi(from)
	items = items[min(first, len(items)):]
	meta := map[string]string{"resourceVersion": strconv.Itoa(c.version)}
	if many > 0 && len(items) > many {
		items = items[:many]
		meta["continue"] = strconv.Itoa(first + many)
	}
	kinds := map[string][2]string{"services": {"ServiceList", "v1"}, "nodes": {"NodeList", "v1"},
		"endpointslices": {"EndpointSliceList", "discovery.k8s.io/v1"}, "servicecidrs": {"ServiceCIDRList", "networking.k8s.io/v1"}, "namespaces": {"NamespaceList", "v1"}}
	for name, kind := range map[string]string{gateway.ResourceClasses: "GatewayClassList", gateway.ResourceGateways: "GatewayList", gateway.ResourceGrants: "ReferenceGrantList", "tcproutes": "TCPRouteList", "udproutes": "UDPRouteList"} {
		kinds[name] = [2]string{kind, gatewayapi.V1.String()}
	}
	return answer(http.StatusOK, map[string]any{"kind": kinds[resource][0], "apiVersion": kinds[resource][1], "metadata": meta, "items": items})
}

// stream answers a watch.
func (c *cluster) stream(ctx context.Context, w *held, to *io.PipeWriter, limit time.Duration, from int, resource string, matches func(object) bool) {
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.watches, w)
	}()
	defer to.Close() //nolint:errcheck // it has none
	encode := json.NewEncoder(to)
	end, bookmark := time.NewTimer(limit), time.NewTicker(time.Minute)
	defer end.Stop()
	defer bookmark.Stop()
	for {
		c.mu.Lock()
		var news []change
		for _, h := range c.history {
			if h.version > from && h.resource == resource && matches(h.object) {
				news = append(news, h)
			}
		}
		latest := c.version
		c.mu.Unlock()
		for _, h := range news {
			if encode.Encode(map[string]any{"type": h.how, "object": h.object}) != nil {
				return
			}
			from = h.version
		}
		select {
		case <-ctx.Done():
			return
		case <-w.cut:
			return
		case <-end.C:
			return
		case <-w.wake:
		case <-bookmark.C:
			if latest < from {
				continue // like a real server: no past events
			}
			_, gvk := kindOf(map[string]object{"namespaces": &corev1.Namespace{}, gateway.ResourceClasses: &gatewayapi.GatewayClass{}, gateway.ResourceGateways: &gatewayapi.Gateway{}, gateway.ResourceGrants: &gatewayapi.ReferenceGrant{},
				"tcproutes": &gatewayapi.Route{TypeMeta: metav1.TypeMeta{Kind: gatewayapi.TCPRoute}}, "udproutes": &gatewayapi.Route{TypeMeta: metav1.TypeMeta{Kind: gatewayapi.UDPRoute}},
				"services": &corev1.Service{}, "nodes": &corev1.Node{},
				"endpointslices": &discoveryv1.EndpointSlice{}, "servicecidrs": &networkingv1.ServiceCIDR{}}[resource])
			if encode.Encode(map[string]any{"type": "BOOKMARK", "object": map[string]any{"kind": gvk.Kind, "apiVersion": gvk.GroupVersion().String(),
				"metadata": map[string]string{"resourceVersion": strconv.Itoa(latest)}}}) != nil {
				return
			}
		}
	}
}
