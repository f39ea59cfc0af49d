package statuswriter

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

const (
	addFinalizer = "PATCH services/web"
	writeStatus  = "PATCH services/web/status"
	postEvent    = "POST events"
)

// withVIP returns a host that writes, and a Service of ours with its VIP written.
func withVIP(t *testing.T) (*writable, *host) {
	api := newWritable(t)
	h := newHost(t, api, "a").start()
	h.offer("web")
	settle(time.Second)
	api.take()
	return api, h
}

func TestVIPIsWrittenOnce(t *testing.T) {
	writing(t, func(t *testing.T, api *writable, h *host) {
		api.edit("web", func(s *corev1.Service) {
			oursWith(corev1.IPv6Protocol, corev1.IPv4Protocol)(s)
			s.Finalizers = []string{"example.com/other"}
		})
		settle(time.Second)
		expect.SameList(t, api.take(), []string(nil), "before the allocator answers")

		h.grant("web", nil, "192.0.2.1", "2001:db8::1")
		settle(time.Second)
		expect.SameList(t, api.take(), []string{addFinalizer, writeStatus, postEvent}, "requests")
		s := api.get("web")
		expect.SameList(t, s.Finalizers, []string{"example.com/other", Finalizer}, "finalizers")
		expect.SameList(t, ingressOf(s), []string{"2001:db8::1/Proxy", "192.0.2.1/Proxy"}, "ingress")
		expect.SameList(t, api.events(), []string{`Normal Allocated: assigned 2001:db8::1 and 192.0.2.1 from pool "public" x1`}, "events")

		for i := range 20 { // endpoints and labels change
			h.grant("web", nil, "192.0.2.1", "2001:db8::1")
			api.edit("web", func(s *corev1.Service) { s.Labels = map[string]string{"n": fmt.Sprint(i)} })
			settle(time.Second)
		}
		expect.SameList(t, api.take(), []string(nil), "requests when nothing is to be written")

		h.grant("web", nil, "192.0.2.2", "2001:db8::1")
		settle(time.Second)
		expect.SameList(t, api.take(), []string{writeStatus, postEvent}, "requests for another VIP")
	})
}

// The watch delivers our own writes late, after other changes.
func TestSlowWatchCausesNoWrites(t *testing.T) {
	writing(t, func(t *testing.T, api *writable, h *host) {
		api.edit("web", oursWith(corev1.IPv4Protocol))
		synctest.Wait()
		old := h.known(vip.ServiceKey{Namespace: "default", Name: "web"})
		api.set(func() { h.disconnected = true })
		h.grant("web", nil, "192.0.2.1")
		settle(time.Second)
		expect.SameList(t, api.take(), []string{addFinalizer, writeStatus, postEvent}, "requests")
		for range 5 {
			h.put(vip.ServiceKey{Namespace: "default", Name: "web"}, old.DeepCopy())
			settle(time.Second)
		}
		expect.SameList(t, api.take(), []string(nil), "requests upon the older object")
	})
}

func TestNothingIsWrittenAfterARestartOrByTheNextWriter(t *testing.T) {
	inCluster(t, func(t *testing.T, api *writable) {
		var names []string
		for i := range 30 {
			names = append(names, fmt.Sprintf("web%02d", i))
		}
		hosts := map[string]*host{}
		begin := func(identity string) *host {
			h := newHost(t, api, identity)
			for _, name := range names {
				if s := api.get(name); s != nil {
					h.put(vip.ServiceKey{Namespace: "default", Name: name}, s)
				}
				h.grant(name, nil, "192.0.2.1")
			}
			hosts[identity] = h.start()
			return hosts[identity]
		}
		a := begin("a")
		b := begin("b")
		for _, name := range names {
			api.edit(name, oursWith(corev1.IPv4Protocol))
		}
		settle(time.Minute)
		n := len(api.take())
		expect.Equal(t, n, 3*len(names), "%d requests for %d Services", n, len(names))
		a.stop()
		settle(time.Minute)
		must.True(t, b.election.mine(), "b is not the next writer")
		expect.SameList(t, api.take(), []string(nil), "requests of the next writer")
		b.stop()
		b = begin("b")
		settle(time.Minute)
		must.True(t, b.election.mine(), "b is not the writer again")
		expect.SameList(t, api.take(), []string(nil), "requests after a restart")
	})
}

func TestTheNextWriterFinishesTheWork(t *testing.T) {
	inCluster(t, func(t *testing.T, api *writable) {
		a := newHost(t, api, "a").start()
		b := newHost(t, api, "b").start()
		api.edit("web", oursWith(corev1.IPv4Protocol))
		for _, h := range []*host{a, b} {
			h.grant("web", nil, "192.0.2.1")
		}
		a.store.SetInTouch(false) // before it could write
		settle(time.Millisecond)
		a.stop()
		api.take()
		settle(time.Minute)
		expect.SameList(t, ingressOf(api.get("web")), []string{"192.0.2.1/Proxy"}, "ingress")
		api.remove("web")
		settle(time.Second)
		expect.True(t, api.get("web") == nil, "it stays")
	})
}

func TestDeletedServiceStaysUntilItsVIPIsWithdrawn(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		api, h := withVIP(t)
		withdraw := h.serves("web")
		api.remove("web")
		settle(15 * time.Minute)
		expect.SameList(t, api.take(), []string(nil), "requests while it is served")
		withdraw()
		settle(time.Second)
		expect.SameList(t, api.take(), []string{writeStatus, addFinalizer}, "requests")
		expect.True(t, api.get("web") == nil, "it stays")
		settle(15 * time.Minute)
		expect.SameList(t, api.take(), []string(nil), "later requests")
		expect.Equal(t, len(h.entries), 0, "entries")
	})
}

func TestDeletedServiceWithOthersFinalizersAndNoNews(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		api, h := withVIP(t)
		api.edit("web", func(s *corev1.Service) { s.Finalizers = append(s.Finalizers, "example.com/other") })
		settle(time.Second)
		api.remove("web")
		settle(time.Second)
		s := api.get("web")
		expect.SameList(t, s.Finalizers, []string{"example.com/other"}, "finalizers")
		expect.SameList(t, ingressOf(s), []string(nil), "ingress")
		api.take()
		h.grant("web", nil, "192.0.2.1") // a late result
		settle(time.Minute)
		expect.SameList(t, api.take(), []string(nil), "later requests")
	})
}

func TestServiceThatIsOursNoLonger(t *testing.T) {
	other := "example.com/other"
	for _, tc := range []struct {
		name       string
		change     func(*corev1.Service)
		finalizers []string
		ingress    []string
	}{
		{"type", func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeClusterIP }, nil, nil},
		{"class", func(s *corev1.Service) { s.Spec.LoadBalancerClass = &other }, nil, nil},
		{"class, and another has written", func(s *corev1.Service) {
			s.Spec.LoadBalancerClass = &other
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "198.51.100.1"}}
		}, nil, []string{"198.51.100.1/none"}},
		{"selector", func(s *corev1.Service) { s.Labels = map[string]string{"hidden": "yes"} }, nil, nil},
		{"selector, with another's finalizer", func(s *corev1.Service) {
			s.Labels = map[string]string{"hidden": "yes"}
			s.Finalizers = append(s.Finalizers, other)
		}, []string{other}, nil},
	} {
		bubble.Run(t, tc.name, func(t *testing.T) {
			api, h := withVIP(t)
			withdraw := h.serves("web")
			api.edit("web", tc.change)
			settle(time.Minute)
			if s := api.get("web"); !hasFinalizer(s) {
				t.Fatal("given up while it is served")
			}
			withdraw()
			settle(5 * time.Second)
			s := api.get("web")
			expect.SameList(t, s.Finalizers, tc.finalizers, "finalizers")
			expect.SameList(t, ingressOf(s), tc.ingress, "ingress")
			api.take()
			settle(15 * time.Minute)
			expect.SameList(t, api.take(), []string(nil), "later requests")
			expect.Equal(t, len(h.entries), 0, "entries")
		})
	}
}

// A Service that becomes ours again before its VIP is withdrawn keeps everything.
func TestServiceThatIsOursAgain(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		api, h := withVIP(t)
		withdraw := h.serves("web")
		api.edit("web", func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeClusterIP })
		settle(time.Second)
		api.edit("web", oursWith(corev1.IPv4Protocol))
		settle(time.Second)
		withdraw()
		settle(time.Minute)
		expect.SameList(t, api.take(), []string(nil), "requests")

		withdraw = h.serves("web")
		api.remove("web")
		settle(time.Minute)
		expect.SameList(t, api.take(), []string(nil), "requests while it is served again")
		withdraw()
		settle(time.Minute)
		expect.True(t, api.get("web") == nil, "it stays")
	})
}

// A Service that the store lacks and that still exists unchanged in the cluster will be in the
// store again soon.
func TestServiceThatTheStoreLacks(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		api, h := withVIP(t)
		object := h.known(web)
		h.put(web, nil)
		settle(time.Minute)
		got := api.take()
		for _, request := range got {
			expect.Equal(t, request, "LIST services/web")
		}
		expect.Between(t, len(got), 2, 10, "requests")
		h.put(web, object)
		settle(15 * time.Minute)
		expect.SameList(t, api.take(), []string(nil), "requests when it is back")
	})
}

// A server that is unavailable for all requests gets one request at a time, whatever the number of
// waiting Services.
func TestBusyServerIsLeftAlone(t *testing.T) {
	writing(t, func(t *testing.T, api *writable, h *host) {
		api.set(func() {
			api.fault = func(request string) *http.Response {
				if !strings.HasPrefix(request, "PATCH") {
					return nil
				}
				answer := failure(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, "later")
				answer.Header.Set("Retry-After", "1")
				return answer
			}
		})
		for i := range 50 {
			name := fmt.Sprintf("web%d", i)
			h.offer(name)
		}
		settle(5 * time.Minute)
		expect.Between(t, len(api.take()), 8, 25, "requests in five minutes")
	})
}

// The writer of the finalizer shows whether a Service was ours while no writer ran, because another
// controller uses the same finalizer.
func TestFinalizersFoundAfterARestart(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		api, h := withVIP(t)
		h.stop()
		api.edit("web", func(s *corev1.Service) {
			s.Spec.Type = corev1.ServiceTypeClusterIP
		})
		api.edit("cloud", func(s *corev1.Service) {
			class := "example.com/cloud"
			s.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, LoadBalancerClass: &class}
			s.Finalizers = []string{Finalizer}
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "198.51.100.1"}}
		})
		api.take()
		again := newHost(t, api, "a")
		for _, name := range []string{"web", "cloud"} {
			again.put(vip.ServiceKey{Namespace: "default", Name: name}, api.get(name))
		}
		again.start()
		settle(time.Minute)
		got := api.take()
		slices.Sort(got)
		expect.SameList(t, got, []string{"LIST services/cloud", "LIST services/web", addFinalizer, writeStatus}, "requests")
		expect.SameList(t, api.get("web").Finalizers, []string(nil), "ours")
		expect.SameList(t, api.get("cloud").Finalizers, []string{Finalizer}, "the other's")
		expect.SameList(t, ingressOf(api.get("cloud")), []string{"198.51.100.1/none"}, "the other's ingress")
		api.edit("cloud", func(s *corev1.Service) { s.Labels = map[string]string{"a": "b"} })
		settle(time.Minute)
		expect.SameList(t, api.take(), []string(nil), "later requests")
	})
}

func TestNothingIsDoneOutOfTouch(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		api, h := withVIP(t)
		key := vip.ServiceKey{Namespace: "default", Name: "web"}
		object := h.known(key)
		h.store.SetInTouch(false)
		h.put(key, nil)
		h.services.Delete(Prefix(prefix).Name(key))
		h.allocations.Delete(Prefix(prefix).Name(key))
		settle(5 * time.Second)
		expect.SameList(t, api.take(), []string(nil), "requests")
		h.put(key, object)
		h.grant("web", nil, "192.0.2.1")
		h.store.SetInTouch(true)
		settle(time.Minute)
		expect.SameList(t, api.take(), []string(nil), "requests")
	})
}

func TestNothingIsDoneBeforeTheAllocatorIsReady(t *testing.T) {
	inCluster(t, func(t *testing.T, api *writable) {
		h := newHost(t, api, "a")
		ready := h.allocations.Initializer()
		h.start()
		api.edit("web", func(s *corev1.Service) {
			oursWith(corev1.IPv4Protocol)(s)
			s.Finalizers = []string{Finalizer}
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}
		})
		h.grant("web", &vip.Problem{Code: vip.CodePoolFull, Message: "full"})
		settle(time.Minute)
		expect.SameList(t, api.take(), []string(nil), "requests")
		ready()
		settle(time.Minute)
		expect.SameList(t, api.take(), []string{writeStatus, postEvent}, "requests")
	})
}

// An address that another load balancer has written stays while the Service is refused: it is preferred later.
func TestAddressesOfOthersStay(t *testing.T) {
	inCluster(t, func(t *testing.T, api *writable) {
		h := newHost(t, api, "a")
		h.start()
		api.edit("web", func(s *corev1.Service) {
			oursWith(corev1.IPv4Protocol)(s)
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}
		})
		h.grant("web", &vip.Problem{Code: vip.CodePoolFull, Message: "full"})
		settle(time.Minute)
		expect.SameList(t, api.take(), []string{postEvent}, "requests")
	})
}

func TestVIPsOfOtherSourcesAreNotTold(t *testing.T) {
	writing(t, func(t *testing.T, api *writable, h *host) {
		h.offer("web")
		key := vip.ServiceKey{Namespace: "default", Name: "web"}
		h.services.Set(vip.Service{Key: Prefix(prefix).Name(key), Source: "static"})
		settle(time.Minute)
		expect.SameList(t, api.take(), []string{postEvent}, "requests")
		expect.SameList(t, api.events(), []string{`Warning Conflict: source "static" has a service of this name (hint: rename one of them, or set namespace_prefix of a source) x1`}, "events")
	})
}

func TestVIPKeptWhileTheStoreFails(t *testing.T) {
	for _, code := range []string{vip.CodeStore, vip.CodeWaiting} {
		bubble.Test(t, func(t *testing.T) {
			api, h := withVIP(t)
			h.grant("web", &vip.Problem{Code: code, Message: "not now"})
			settle(time.Minute)
			expect.SameList(t, api.take(), []string(nil), "requests")
		})
	}
}

func TestServerThatKnowsNoModes(t *testing.T) {
	inCluster(t, func(t *testing.T, api *writable) {
		api.noMode = true
		h := newHost(t, api, "a").start()
		h.offer("web")
		settle(15 * time.Minute)
		expect.SameList(t, api.take(), []string{addFinalizer, writeStatus, postEvent}, "requests")
	})
}

func TestWhatIsUndoneIsWrittenLessAndLess(t *testing.T) {
	for name, undo := range map[string]func(api *writable){
		"by another controller": func(api *writable) {
			api.watch = append(api.watch, func(_ vip.ServiceKey, s *corev1.Service) {
				if s != nil && len(s.Status.LoadBalancer.Ingress) > 0 && s.Status.LoadBalancer.Ingress[0].IP == "192.0.2.1" {
					go api.edit("web", func(s *corev1.Service) { s.Status.LoadBalancer.Ingress[0].IP = "198.51.100.1" })
				}
			})
		},
		"by a webhook": func(api *writable) {
			api.mangle = func(object map[string]any) {
				if list, _ := dig(object, "status", "loadBalancer", "ingress").([]any); len(list) > 0 {
					list[0].(map[string]any)["ip"] = "198.51.100.1"
				}
			}
		},
		"finalizer": func(api *writable) {
			api.watch = append(api.watch, func(_ vip.ServiceKey, s *corev1.Service) {
				if s != nil && hasFinalizer(s) {
					go api.edit("web", func(s *corev1.Service) { s.Finalizers = nil })
				}
			})
		},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			api := newWritable(t)
			h := newHost(t, api, "a").start()
			undo(api)
			h.offer("web")
			settle(time.Hour)
			patches := 0
			for _, request := range api.take() {
				if strings.HasPrefix(request, "PATCH services") {
					patches++
				}
			}
			expect.Between(t, patches, 4, 60, "patches in an hour")
			if said := h.said(); len(said) != 1 || !strings.HasPrefix(said[0], "the server refused to change it: ") {
				t.Errorf("problems %q", said)
			}
		})
	}
}

func TestChangedMeanwhile(t *testing.T) {
	writing(t, func(t *testing.T, api *writable, h *host) {
		api.edit("web", oursWith(corev1.IPv4Protocol))
		synctest.Wait()
		api.set(func() { h.disconnected = true })
		api.edit("web", func(s *corev1.Service) { s.Finalizers = []string{"example.com/other"} })
		h.grant("web", nil, "192.0.2.1")
		settle(5 * time.Second)
		got := api.take()
		if len(got) == 0 || len(got) > 8 {
			t.Errorf("requests upon an outdated object: %q", got)
		}
		expect.SameList(t, api.get("web").Finalizers, []string{"example.com/other"}, "finalizers")
		api.set(func() { h.disconnected = false })
		api.edit("web", func(s *corev1.Service) {})
		settle(50 * time.Millisecond) // without a pause
		expect.SameList(t, api.take(), []string{addFinalizer, writeStatus, postEvent}, "requests")
		expect.SameList(t, api.get("web").Finalizers, []string{"example.com/other", Finalizer}, "finalizers")
		expect.SameList(t, h.said(), []string(nil), "problems")
	})
}

func TestDeletedMeanwhile(t *testing.T) {
	writing(t, func(t *testing.T, api *writable, h *host) {
		api.edit("web", oursWith(corev1.IPv4Protocol))
		synctest.Wait()
		api.set(func() { h.disconnected = true })
		api.remove("web")
		h.grant("web", nil, "192.0.2.1")
		settle(time.Second)
		key := vip.ServiceKey{Namespace: "default", Name: "web"}
		h.put(key, nil)
		api.take()
		settle(15 * time.Minute)
		expect.SameList(t, api.take(), []string(nil), "requests")
		expect.SameList(t, h.said(), []string(nil), "problems")
		expect.Equal(t, len(h.entries), 0, "entries")
	})
}

func TestFaultsOfTheServer(t *testing.T) {
	wait := func(a *http.Response, seconds string) *http.Response {
		a.Header.Set("Retry-After", seconds)
		return a
	}
	for _, tc := range []struct {
		name     string
		answer   func() *http.Response
		min, max int // limits of requests in 5 minutes
		problem  string
	}{
		{"busy", func() *http.Response {
			return wait(failure(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, "later"), "7")
		}, 5, 43, ""},
		{"away", func() *http.Response {
			return failure(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "etcd")
		}, 5, 30, ""},
		{"timeout", func() *http.Response {
			return failure(http.StatusGatewayTimeout, metav1.StatusReasonTimeout, "slow")
		}, 5, 30, ""},
		{"broken", func() *http.Response {
			return failure(http.StatusInternalServerError, metav1.StatusReasonInternalError, "a webhook")
		}, 3, 20, "the server refused to change it: a webhook"},
		{"invalid", func() *http.Response {
			return failure(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "no such thing")
		}, 3, 20, "the server refused to change it: no such thing"},
		{"admission", func() *http.Response {
			return failure(http.StatusForbidden, metav1.StatusReasonForbidden, "policy denies it")
		}, 3, 20, "the server refused to change it: policy denies it"},
		{"no rights", func() *http.Response {
			return failure(http.StatusForbidden, metav1.StatusReasonForbidden, `services "web" is forbidden: User "x" cannot patch resource "services"`)
		}, 4, 7, "no right to patch services in namespace default"},
	} {
		bubble.Run(t, tc.name, func(t *testing.T) {
			api := newWritable(t)
			h := newHost(t, api, "a").start()
			api.set(func() {
				api.fault = func(request string) *http.Response {
					if strings.HasPrefix(request, "PATCH") {
						return tc.answer()
					}
					return nil
				}
			})
			for _, name := range []string{"web", "web2"} {
				h.offer(name)
			}
			for range 300 { // endpoints change
				h.grant("web", nil, "192.0.2.1")
				settle(time.Second)
			}
			expect.Between(t, len(api.take()), tc.min, 2*tc.max, "requests in five minutes")
			if said := h.said(); tc.problem == "" && len(said) > 0 || tc.problem != "" && (len(said) == 0 || said[0] != tc.problem) {
				t.Errorf("problems %q, want %q", said, tc.problem)
			}
			api.set(func() { api.fault = nil })
			settle(11 * time.Minute)
			expect.SameList(t, ingressOf(api.get("web")), []string{"192.0.2.1/Proxy"}, "ingress")
			expect.SameList(t, h.said(), []string(nil), "problems")
		})
	}
}

// Missing permissions in one namespace, or for one action, do not affect others.
func TestRightToWriteTheStatusAloneIsMissing(t *testing.T) {
	writing(t, func(t *testing.T, api *writable, h *host) {
		api.set(func() {
			api.fault = func(request string) *http.Response {
				if strings.HasSuffix(request, "/status") {
					return failure(http.StatusForbidden, metav1.StatusReasonForbidden, `User "x" cannot patch resource "services/status"`)
				}
				return nil
			}
		})
		for i := range 50 {
			name := fmt.Sprintf("web%d", i)
			h.offer(name)
		}
		settle(30 * time.Second)
		statuses, finalizers := 0, 0
		for _, request := range api.take() {
			if strings.HasSuffix(request, "/status") {
				statuses++
			} else if strings.HasPrefix(request, "PATCH") {
				finalizers++
			}
		}
		expect.SameList(t, []int{statuses, finalizers}, []int{1, 50}, "requests")
		expect.SameList(t, h.said(), []string{"no right to patch services/status in namespace default"}, "problems")
	})
}

func TestPaceOfWrites(t *testing.T) {
	writing(t, func(t *testing.T, api *writable, h *host) {
		const services = 200
		for i := range services {
			name := fmt.Sprintf("web%d", i)
			h.offer(name)
		}
		settle(10 * time.Second)
		expect.Between(t, len(api.take()), 100, writeBurst+10*writeRate+1, "requests in ten seconds")
		settle(services * 3 / writeRate * time.Second)
		for i := range services {
			must.Len(t, ingressOf(api.get(fmt.Sprintf("web%d", i))), 1, "service %d", i)
		}
	})
}

func TestWithdrawalThatFailsIsAskedForAgain(t *testing.T) {
	inCluster(t, func(t *testing.T, api *writable) {
		h := newHost(t, api, "a")
		var asked atomic.Int32
		h.o.Withdrawn = func(context.Context, vip.ServiceKey) error {
			if asked.Add(1) < 4 {
				return errors.New("not known")
			}
			return nil
		}
		h.start()
		h.offer("web")
		settle(time.Second)
		api.remove("web")
		settle(time.Second)
		must.True(t, api.get("web") != nil, "gone before it was withdrawn")
		settle(time.Minute)
		expect.Equal(t, asked.Load(), 4, "asked")
		expect.True(t, api.get("web") == nil, "it stays")
	})
}

func TestFieldManagers(t *testing.T) {
	got := fieldManager(strings.Repeat("a", 63), strings.Repeat("b", 253))
	expect.AtMost(t, len(got), 128, "a field manager of %d characters", len(got))
	expect.True(t, fieldManager("a", "b") != fieldManager("a", "c"), "two Leases have one field manager")
}
