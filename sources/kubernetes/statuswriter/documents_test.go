package statuswriter

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironvip/ironvip/internal/kubeclient/gatewayapi"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

const (
	gatewayPath   = "/apis/gateway.networking.k8s.io/v1/namespaces/default/gateways/main"
	writeDocument = "PATCH gateways/main/status"
)

// documentStatus is the status of the tests' document: the VIPs of the service web.
type documentStatus struct {
	Addresses []string `json:"addresses"`
}

// follow makes the watch deliver the Gateway as the server has it.
func (h *host) follow() {
	h.api.mu.Lock()
	object := h.api.objects[gatewayPath]
	if object == nil {
		object = h.api.store(gatewayPath, map[string]any{"metadata": map[string]any{"namespace": "default", "name": "main"}})
	}
	var before documentStatus
	list, _ := dig(object, "status", "addresses").([]any)
	for _, a := range list {
		before.Addresses = append(before.Addresses, a.(string))
	}
	web := vip.ServiceKey{Namespace: "default", Name: "web"}
	d := Document{Key: DocumentKey{"gateways", "default", "main"}, API: gatewayapi.V1, Version: dig(object, "metadata", "resourceVersion").(string), Services: []vip.ServiceKey{web},
		Status: func(_ time.Time, granted Granted) (any, any) {
			var after documentStatus
			a, _ := granted(web)
			for _, addr := range a.VIPs {
				after.Addresses = append(after.Addresses, addr.String())
			}
			return before, after
		}}
	h.api.mu.Unlock()
	h.store.Documents.Set(d)
	synctest.Wait()
}

func TestDocumentIsWrittenOnce(t *testing.T) {
	writing(t, func(t *testing.T, api *writable, h *host) {
		h.follow()
		settle(time.Second)
		expect.SameList(t, api.take(), []string(nil), "before the allocator answers")
		h.grant("web", nil, "192.0.2.1")
		settle(10 * time.Second)
		expect.SameList(t, api.take(), []string{writeDocument}, "requests before the watch delivers the new version")
		expect.Equal(t, dig(api.objects[gatewayPath], "status", "addresses").([]any)[0].(string), "192.0.2.1")
		h.follow()
		settle(time.Minute)
		expect.SameList(t, api.take(), []string(nil), "requests when nothing is to be written")
		h.grant("web", nil, "192.0.2.2")
		settle(time.Second)
		expect.SameList(t, api.take(), []string{writeDocument}, "requests for another VIP")
		h.store.Documents.Delete(DocumentKey{"gateways", "default", "main"})
		h.grant("web", nil, "192.0.2.3")
		settle(time.Minute)
		expect.SameList(t, api.take(), []string(nil), "requests for a deleted object")
	})
}

// A status that changes is written each time. Another program that undoes a write has its way after some.
func TestDocumentIsWrittenOften(t *testing.T) {
	writing(t, func(t *testing.T, api *writable, h *host) {
		h.follow()
		for i := range 3 * writesInARow {
			h.grant("web", nil, fmt.Sprintf("192.0.2.%d", i))
			settle(time.Second)
			expect.SameList(t, api.take(), []string{writeDocument}, "requests for VIP %d", i)
			h.follow()
		}
		expect.Empty(t, h.said(), "problems of a status that changes")
		for range 3 * writesInARow {
			api.set(func() {
				object := api.objects[gatewayPath]
				delete(object, "status")
				api.store(gatewayPath, object)
			})
			h.follow()
			settle(time.Second)
		}
		expect.Equal(t, len(api.take()), writesInARow, "writes that are undone")
		expect.SameList(t, h.said(), []string{"the server refused the status of gateways default/main: " + errContested.Error()}, "problems")
	})
}

// A write that is based on an old version is tried again with the newest one.
func TestDocumentOfAnOldVersion(t *testing.T) {
	writing(t, func(t *testing.T, api *writable, h *host) {
		h.follow()
		api.set(func() { api.store(gatewayPath, api.objects[gatewayPath]) })
		h.grant("web", nil, "192.0.2.1")
		settle(50 * time.Millisecond)
		expect.SameList(t, api.take(), []string{writeDocument}, "requests")
		expect.True(t, dig(api.objects[gatewayPath], "status") == nil, "an old version replaced a new one")
		h.follow()
		settle(time.Second)
		expect.SameList(t, api.take(), []string{writeDocument}, "requests with the new version")
		expect.Empty(t, h.said(), "problems")
	})
}

func TestDocumentThatCannotBeWritten(t *testing.T) {
	for _, test := range []struct {
		name, said string
		answer     *http.Response
		writes     int // in 50 s
	}{
		{"without the right", "no right to patch gateways.gateway.networking.k8s.io/status in namespace default",
			failure(http.StatusForbidden, metav1.StatusReasonForbidden, `User "x" cannot patch resource "gateways/status"`), 1},
		{"refused", "the server refused the status of gateways default/main: no", failure(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "no"), 8},
	} {
		t.Run(test.name, func(t *testing.T) {
			writing(t, func(t *testing.T, api *writable, h *host) {
				h.follow()
				body := *test.answer
				text := read(t, test.answer)
				api.set(func() {
					api.fault = func(request string) *http.Response {
						if request != writeDocument {
							return nil
						}
						out := body
						out.Body = text()
						return &out
					}
				})
				h.grant("web", nil, "192.0.2.1")
				settle(50 * time.Second)
				expect.AtMost(t, len(api.take()), test.writes, "writes")
				expect.SameList(t, h.said(), []string{test.said}, "problems")
				api.set(func() { api.fault = nil })
				settle(10 * time.Minute)
				h.follow()
				settle(time.Second)
				expect.True(t, slices.Contains(api.take(), writeDocument), "not written")
				expect.Empty(t, h.said(), "problems afterwards")
			})
		})
	}
}

// A host that is not the writer writes when it becomes it.
func TestDocumentsOfTheNextWriter(t *testing.T) {
	inCluster(t, func(t *testing.T, api *writable) {
		a := newHost(t, api, "a").start()
		b := newHost(t, api, "b").start()
		b.follow()
		b.grant("web", nil, "192.0.2.1")
		settle(10 * time.Second)
		expect.SameList(t, api.take(), []string(nil), "requests of another host than the writer")
		a.stop()
		settle(20 * time.Second)
		expect.SameList(t, api.take(), []string{writeDocument}, "requests of the next writer")
	})
}

// read returns new readers of an answer's body.
func read(t *testing.T, answer *http.Response) func() io.ReadCloser {
	text := must.Get(io.ReadAll(answer.Body))(t)
	return func() io.ReadCloser { return io.NopCloser(bytes.NewReader(text)) }
}
