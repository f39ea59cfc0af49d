package statuswriter

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

var web = vip.ServiceKey{Namespace: "default", Name: "web"}

func TestReasonsOfEvents(t *testing.T) {
	for _, tc := range []struct {
		source, allocator *vip.Problem
		want              string
	}{
		{source: &vip.Problem{Code: vip.CodeDeprecated, Field: "spec.loadBalancerIP"}, want: ReasonDeprecatedField},
		{source: &vip.Problem{Code: vip.CodeUnknownKey, Field: "metadata.annotations[ironvip.io/pol]"}, want: ReasonBadAnnotation},
		{source: &vip.Problem{Code: vip.CodeUnsupported, Field: "spec.ports[0].protocol"}, want: ReasonUnsupported},
		{source: &vip.Problem{Code: vip.CodeInvalid, Field: "spec.loadBalancerSourceRanges[1]"}, want: ReasonInvalid},
		{allocator: &vip.Problem{Code: vip.CodePoolFull}, want: ReasonPoolExhausted},
		{allocator: &vip.Problem{Code: vip.CodeAddressTaken}, want: ReasonConflict},
		{allocator: &vip.Problem{Code: vip.CodePortTaken}, want: ReasonConflict},
		{allocator: &vip.Problem{Code: vip.CodeNoPool}, want: ReasonAllocationFailed},
		{allocator: &vip.Problem{Code: vip.CodeOutsidePool}, want: ReasonAllocationFailed},
		{allocator: &vip.Problem{Code: vip.CodeWaiting}, want: ""},
		{allocator: &vip.Problem{Code: vip.CodeStore}, want: ""},
	} {
		got := ""
		if tc.source != nil {
			got = reasonOfSource(tc.source)
		} else {
			got = reasonOfAllocator(tc.allocator)
		}
		expect.Equal(t, got, tc.want, "%+v %+v", tc.source, tc.allocator)
	}
}

func TestMessagesFitTheAPI(t *testing.T) {
	if got := messageOf(&vip.Problem{Field: "pool", Message: "there is no pool", Hint: "make one"}); got != "pool: there is no pool (hint: make one)" {
		t.Errorf("%q", got)
	}
	for n := maxMessage - 5; n < maxMessage+5; n++ {
		got := messageOf(&vip.Problem{Message: strings.Repeat("x", n%7) + strings.Repeat("ü", n/2)})
		if len(got) > maxMessage || !utf8.ValidString(got) {
			t.Errorf("%d bytes, valid: %v", len(got), utf8.ValidString(got))
		}
	}
}

func TestEventsAreWrittenOncePerChange(t *testing.T) {
	writing(t, func(t *testing.T, api *writable, h *host) {
		api.edit("web", oursWith(corev1.IPv4Protocol))
		full := &vip.Problem{Code: vip.CodePoolFull, Field: "pool", Message: "pool \"public\" is full", Hint: "add a range"}
		warning := "Warning PoolExhausted: pool: pool \"public\" is full (hint: add a range)"
		allocated := `Normal Allocated: assigned 192.0.2.1 from pool "public"`
		for range 30 { // it is tried repeatedly
			h.grant("web", full)
			settle(time.Second)
		}
		expect.SameList(t, api.take(), []string{postEvent}, "requests")
		expect.SameList(t, api.events(), []string{warning + " x1"}, "events")

		h.grant("web", nil, "192.0.2.1")
		settle(time.Second)
		expect.SameList(t, api.events(), []string{allocated + " x1", warning + " x1"}, "events")

		h.grant("web", full)
		settle(time.Second)
		expect.SameList(t, api.events(), []string{allocated + " x1", warning + " x1"}, "events that happen again within an hour")
		api.take()

		h.store.Describe(web, []vip.Problem{{Code: vip.CodeUnknownKey, Field: "metadata.annotations[ironvip.io/pol]", Message: "is no annotation of ours", Hint: "did you mean pool"}})
		settle(time.Second)
		expect.SameList(t, api.take(), []string{postEvent}, "requests")
		expect.SameList(t, api.events(), []string{allocated + " x1",
			"Warning BadAnnotation: metadata.annotations[ironvip.io/pol]: is no annotation of ours (hint: did you mean pool) x1", warning + " x1"}, "events")
	})
}

// The names of events depend on their content. The next writer thus detects events that the
// previous writer wrote.
func TestTheNextWriterRepeatsNoEvents(t *testing.T) {
	inCluster(t, func(t *testing.T, api *writable) {
		a := newHost(t, api, "a").start()
		b := newHost(t, api, "b").start()
		api.edit("web", oursWith(corev1.IPv4Protocol))
		for _, h := range []*host{a, b} {
			h.grant("web", &vip.Problem{Code: vip.CodePoolFull, Message: "full"})
		}
		settle(20 * time.Second)
		a.stop()
		settle(20 * time.Second)
		must.True(t, b.election.mine(), "b is not the next writer")
		expect.SameList(t, api.events(), []string{"Warning PoolExhausted: full x1"}, "events")
		expect.SameList(t, api.take(), []string{postEvent, postEvent}, "requests")
		h := b
		for range 20 {
			h.grant("web", &vip.Problem{Code: vip.CodePoolFull, Message: "full"})
			settle(time.Second)
		}
		expect.SameList(t, api.take(), []string(nil), "requests")
		expect.SameList(t, b.said(), []string(nil), "problems")
		h.grant("web", nil, "192.0.2.1")
		settle(time.Second)
		h.grant("web", &vip.Problem{Code: vip.CodePoolFull, Message: "full"})
		settle(time.Second)
		expect.SameList(t, api.events(), []string{`Normal Allocated: assigned 192.0.2.1 from pool "public" x1`, "Warning PoolExhausted: full x1"}, "what happens again")
	})
}

func TestServiceThatChangesAllTheTimeTellsLittle(t *testing.T) {
	writing(t, func(t *testing.T, api *writable, h *host) {
		api.edit("web", oursWith(corev1.IPv4Protocol))
		for i := range 600 {
			h.grant("web", &vip.Problem{Code: vip.CodePoolFull, Message: fmt.Sprintf("full %d", i)})
			settle(time.Second)
		}
		expect.Between(t, len(api.take()), perService, perService+11, "events in ten minutes")
	})
}

func TestEventsWithoutRightsWait(t *testing.T) {
	inCluster(t, func(t *testing.T, api *writable) {
		api.fault = func(request string) *http.Response {
			if strings.Contains(request, "events") {
				return failure(http.StatusForbidden, metav1.StatusReasonForbidden, `events is forbidden: User "x" cannot create resource "events"`)
			}
			return nil
		}
		h := newHost(t, api, "a").start()
		for i := range 20 {
			name := fmt.Sprintf("web%d", i)
			h.offer(name)
		}
		settle(10*time.Minute + 30*time.Second)
		posts := 0
		for _, request := range api.take() {
			if request == postEvent {
				posts++
			}
		}
		expect.Between(t, posts, 9, 12, "tries in ten minutes")
		expect.SameList(t, h.said(), []string{"no right to create events in namespace default"}, "problems")
		for i := range 20 {
			expect.Equal(t, len(ingressOf(api.get(fmt.Sprintf("web%d", i)))), 1, "ingress")
		}
		api.set(func() { api.fault = nil })
		settle(2 * time.Minute)
		expect.Equal(t, len(api.events()), 20, "events")
		expect.SameList(t, h.said(), []string(nil), "problems")
	})
}

func TestEventsInANamespaceThatEnds(t *testing.T) {
	inCluster(t, func(t *testing.T, api *writable) {
		api.fault = func(request string) *http.Response {
			if !strings.Contains(request, "events") {
				return nil
			}
			return answerOf(http.StatusForbidden, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure",
				Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden, Message: "it is being terminated: cannot create",
				Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}}})
		}
		h := newHost(t, api, "a").start()
		h.offer("web")
		settle(10 * time.Minute)
		expect.SameList(t, api.take(), []string{addFinalizer, writeStatus, postEvent}, "requests")
		expect.SameList(t, h.said(), []string(nil), "problems")
	})
}
