package statuswriter

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

// hidden makes a Service leave the selector of newHost.
func hidden(s *corev1.Service) { s.Labels = map[string]string{"hidden": "yes"} }

// restarted returns another run of a host. Its source reads the existing objects.
func restarted(t *testing.T, api *writable, o Options) *host {
	h := newHostWith(t, api, "a", o)
	api.mu.Lock()
	var names []string
	for path := range api.objects {
		if name, is := strings.CutPrefix(path, servicePath("")); is {
			names = append(names, name)
		}
	}
	api.mu.Unlock()
	for _, name := range names {
		if s := api.get(name); h.within(s) {
			s.ManagedFields = nil
			h.store.Store(s)
		}
	}
	return h
}

const listAll = "LIST metadata "

func TestServicesThatLeftWhileNoAgentRan(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		api, h := withVIP(t)
		for _, name := range []string{"gone", "kept"} {
			api.edit(name, oursWith(corev1.IPv4Protocol))
			h.grant(name, nil, "192.0.2.2")
		}
		settle(time.Second)
		h.stop()
		api.edit("web", hidden)
		api.edit("gone", func(s *corev1.Service) { // another controller serves it now
			other := "example.com/cloud"
			hidden(s)
			s.Spec.LoadBalancerClass = &other
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "198.51.100.1"}}
			s.ManagedFields = slices.DeleteFunc(s.ManagedFields, func(by metav1.ManagedFieldsEntry) bool {
				return strings.Contains(string(by.FieldsV1.GetRawBytes()), "f:ingress")
			})
		})
		api.edit("cloud", func(s *corev1.Service) { // was never ours
			oursWith(corev1.IPv4Protocol)(s)
			hidden(s)
			s.Finalizers = []string{Finalizer}
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "198.51.100.2"}}
		})
		api.edit("plain", hidden)
		kept := api.get("kept").ResourceVersion
		api.takeAll()

		again := restarted(t, api, Options{Selector: matching("!hidden")})
		withdraw := again.serves("web")
		again.grant("kept", nil, "192.0.2.2")
		again.start()
		settle(time.Minute)
		expect.True(t, hasFinalizer(api.get("web")), "given up while it is served")
		withdraw()
		settle(time.Second)
		got := api.takeAll()
		slices.Sort(got)
		expect.SameList(t, got, []string{listAll, "LIST services/gone", "LIST services/web", "LIST services/web", "PATCH services/gone", addFinalizer, writeStatus}, "requests")
		expect.SameList(t, api.get("web").Finalizers, []string(nil), "finalizers")
		expect.SameList(t, ingressOf(api.get("web")), []string(nil), "ingress")
		expect.SameList(t, api.get("gone").Finalizers, []string(nil), "finalizers of what another serves")
		expect.SameList(t, ingressOf(api.get("gone")), []string{"198.51.100.1/none"}, "its ingress")
		expect.SameList(t, api.get("cloud").Finalizers, []string{Finalizer}, "finalizers of another's")
		expect.SameList(t, ingressOf(api.get("cloud")), []string{"198.51.100.2/none"}, "its ingress")
		expect.Equal(t, api.get("kept").ResourceVersion, kept, "version of what stays")
		expect.Equal(t, len(again.entries), 1, "entries")

		// After another election the host does not search again.
		again.store.SetInTouch(false)
		settle(time.Minute)
		again.store.SetInTouch(true)
		settle(15 * time.Minute)
		expect.SameList(t, api.takeAll(), []string(nil), "later requests")
	})
}

// Two fleets in one cluster with the same class are separated by their Leases.
func TestServicesOfAnotherFleetAreLeftAlone(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		api, h := withVIP(t)
		h.stop()
		other := restarted(t, api, Options{LeaseName: "other", Selector: matching("tier=back")}).start()
		settle(time.Minute)
		must.True(t, other.election.mine(), "not elected")
		other.stop()
		expect.SameList(t, api.takeAll(), []string{listAll}, "requests of the other")
		expect.SameList(t, ingressOf(api.get("web")), []string{"192.0.2.1/Proxy"}, "ingress")
		restarted(t, api, Options{Selector: matching("tier=front")}).start()
		settle(time.Minute)
		expect.SameList(t, api.takeAll(), []string{listAll, "LIST services/web", writeStatus, addFinalizer}, "requests of its own")
	})
}

func TestWhereStraysAreLookedFor(t *testing.T) {
	forbidden := func(request string) *http.Response {
		if request == listAll {
			return failure(http.StatusForbidden, metav1.StatusReasonForbidden, `services is forbidden: User "x" cannot list resource "services"`)
		}
		return nil
	}
	for _, tc := range []struct {
		name    string
		options Options
		fault   func(string) *http.Response
		want    []string // in ten minutes
		left    bool     // the Service is released
	}{
		{"all is followed", Options{}, nil, nil, false},
		{"namespaces", Options{Namespaces: []string{"shop"}}, nil, []string{listAll, "LIST services/web", writeStatus, addFinalizer}, true},
		{"rights in namespaces alone", Options{Namespaces: []string{"shop"}}, forbidden, []string{listAll}, false},
		{"rights in namespaces alone, and a selector", Options{Namespaces: []string{"shop", "default"}, Selector: matching("!hidden")}, forbidden,
			[]string{listAll, "LIST metadata namespaces/shop", "LIST metadata namespaces/default", "LIST services/web", writeStatus, addFinalizer}, true},
	} {
		bubble.Run(t, tc.name, func(t *testing.T) {
			api, h := withVIP(t)
			h.stop()
			if tc.options.Selector != nil || tc.options.Namespaces == nil {
				api.edit("web", hidden)
			}
			api.takeAll()
			again := restarted(t, api, tc.options)
			again.grant("web", nil, "192.0.2.1")
			if tc.options.Namespaces != nil {
				again.services.Delete(Prefix(prefix).Name(web))
				again.allocations.Delete(Prefix(prefix).Name(web))
			}
			api.set(func() { api.fault = tc.fault })
			again.start()
			settle(10 * time.Minute)
			expect.SameList(t, api.takeAll(), tc.want, "requests")
			expect.Equal(t, !hasFinalizer(api.get("web")), tc.left, "let go")
			expect.SameList(t, again.said(), []string(nil), "problems")
		})
	}
}

// The list has pages. A page can be too late or fail.
func TestPagesOfStrays(t *testing.T) {
	for name, fault := range map[string]func() *http.Response{
		"all come": nil,
		"one is too late": func() *http.Response {
			return failure(http.StatusGone, metav1.StatusReasonExpired, "the provided continue parameter is too old")
		},
		"one is refused": func() *http.Response {
			return failure(http.StatusInternalServerError, metav1.StatusReasonInternalError, "no")
		},
		"one finds the server busy": func() *http.Response {
			return failure(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, "later")
		},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			api := newWritable(t)
			h := newHost(t, api, "a").start()
			names := []string{"a", "b", "c", "d", "e"}
			for _, name := range names {
				h.offer(name)
			}
			settle(time.Minute)
			h.stop()
			for _, name := range names {
				api.edit(name, hidden)
			}
			pages := 0
			api.set(func() {
				api.page = 2
				api.fault = func(request string) *http.Response {
					if request == listAll {
						if pages++; pages == 2 && fault != nil {
							return fault()
						}
					}
					return nil
				}
			})
			again := restarted(t, api, Options{Selector: matching("!hidden")}).start()
			settle(time.Minute)
			for _, name := range names {
				if s := api.get(name); hasFinalizer(s) || len(s.Status.LoadBalancer.Ingress) > 0 {
					t.Errorf("%s is left with %q %q", name, s.Finalizers, ingressOf(s))
				}
			}
			if most := 3 + 2; pages < 3 || pages > most {
				t.Errorf("%d pages", pages)
			}
			expect.Equal(t, len(again.entries), 0, "entries")
		})
	}
}

// A list without an end is requested with growing pauses.
func TestStraysOfAnEndlessList(t *testing.T) {
	for name, items := range map[string][]any{"empty pages": {}, "the same object": {map[string]any{"metadata": map[string]any{"name": "x", "namespace": "shop"}}}} {
		bubble.Run(t, name, func(t *testing.T) {
			api, h := withVIP(t)
			h.stop()
			api.takeAll()
			again := restarted(t, api, Options{Selector: matching("!hidden")})
			n := 0
			api.set(func() {
				api.fault = func(request string) *http.Response {
					if request != listAll {
						return nil
					}
					n++
					return answerOf(http.StatusOK, map[string]any{"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1",
						"metadata": map[string]any{"continue": strconv.Itoa(n)}, "items": items})
				}
			})
			again.start()
			settle(10 * time.Minute)
			if most := mostPages*len(items) + 20; n > most || n < 5 {
				t.Errorf("%d requests, at most %d", n, most)
			}
		})
	}
}
