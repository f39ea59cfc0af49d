package kubernetes

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/vip"
)

// sends makes the cluster answer one request with a text; it answers later ones itself.
func (b *cluster) sends(request, text string) {
	b.set(true, func() {
		b.refuse = func(got string) *http.Response {
			if got != request {
				return nil
			}
			b.refuse = nil
			return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(text))}
		}
	})
}

const (
	aPod  = `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"web","namespace":"shop","resourceVersion":"9"}}`
	aList = `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"9"},"items":[]}`
)

// An object of another kind changes nothing. The source is stale until it has read the objects anew.
func TestWrongKinds(t *testing.T) {
	for _, how := range []string{"ADDED", "MODIFIED", "DELETED", "BOOKMARK"} {
		bubble.Run(t, how, func(t *testing.T) {
			b := small().start(t, nil)
			b.says("first", smallIs)
			b.asked()
			b.sends("watch services", fmt.Sprintf(`{"type":%q,"object":%s}`, how, aPod))
			b.after(20 * time.Second)
			if words := b.out.take(); strings.Contains(words, "delete") || strings.Contains(words, "put") {
				t.Errorf("received %q", words)
			}
			expect.Contains(t, strings.Join(b.asked(), "; "), "list services", "requests")
			b.put(slice("web-1", "web", 3))
			b.says("a change after it", "put shop/web=3")
			b.after(time.Second)
			b.remove(balancer("web"))
			b.says("a removal", "delete shop/web")
		})
	}
	bubble.Run(t, "list", func(t *testing.T) {
		b := small().start(t, nil)
		b.says("first", smallIs)
		b.set(true, func() { b.floor = b.version + 1 }) // so that it lists again
		b.sends("list services", aList)
		b.after(2 * time.Second)
		b.set(true, func() { b.floor = 0 })
		b.after(time.Minute)
		for words := range strings.SplitSeq(b.out.take(), "; ") {
			expect.True(t, words == "" || words == smallIs || words == "stale" || words == "fresh", "received %q", words)
		}
	})
}

// Nothing that a server sends in a watch ends the source.
func FuzzWatch(f *testing.F) {
	for _, o := range []object{balancer("web"), slice("web-1", "web", 1, 2), nodeNamed("n1", "10.1.0.0/24"), serviceCIDR("kubernetes", "10.96.0.0/16")} {
		resource, gvk := kindOf(o)
		o.GetObjectKind().SetGroupVersionKind(gvk)
		var body bytes.Buffer
		_, _ = body.ReadFrom(answer(http.StatusOK, o).Body)
		f.Add(resource, "MODIFIED", body.String())
		f.Add(resource, "DELETED", fmt.Sprintf(`{"kind":%q,"apiVersion":%q}`, gvk.Kind, gvk.GroupVersion()))
		f.Add(resource, "ADDED", aPod)
	}
	f.Add("services", "BOOKMARK", `null`)
	f.Add("services", "ERROR", aPod)
	f.Add("services", "ADDED", `{"kind":"Status","apiVersion":"v1","status":"Success"}`)
	f.Add("services", "ADDED", `{"kind":"Service","apiVersion":"v1","spec":{"type":"LoadBalancer","ports":[{},null]}}`)
	f.Add("endpointslices", "ADDED", `{"kind":"EndpointSlice","apiVersion":"discovery.k8s.io/v1","endpoints":[{},null],"ports":[{},null]}`)
	f.Add("services", "NEW", aPod)
	f.Fuzz(func(t *testing.T, resource, how, text string) {
		bubble.Test(t, func(t *testing.T) {
			b := small().start(t, nil)
			b.after(time.Second)
			b.sends("watch "+resource, fmt.Sprintf(`{"type":%q,"object":%s}`, how, text))
			b.after(30 * time.Second)
			synctest.Wait()
			if b.source.objects.Row(vip.ServiceKey{Namespace: "shop", Name: "web"}) == nil && how != "DELETED" {
				t.Errorf("a Service is gone")
			}
		})
	})
}
