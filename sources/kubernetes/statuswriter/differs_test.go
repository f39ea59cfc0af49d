package statuswriter

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

// Two hosts without a common store assign different VIPs. The host that is not the writer reports
// it and writes nothing.
func TestHostsThatDiffer(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		api, a := withVIP(t)
		b := newHost(t, api, "b")
		b.put(web, api.get("web"))
		b.grant("web", nil, "192.0.2.7")
		b.start()
		settle(20 * time.Second)
		expect.SameList(t, b.said(), []string(nil), "problems at first")
		settle(30 * time.Second)
		expect.SameList(t, b.said(), []string{`host "a" wrote 192.0.2.1 into its status, this host assigned 192.0.2.7`}, "problems")
		if p := b.wrong[0]; p.Code != codeDiffers || p.Service != web.String() || p.Hint == "" {
			t.Errorf("%+v", p)
		}

		for i := range 2 {
			name := fmt.Sprintf("more%d", i)
			api.edit(name, oursWith(corev1.IPv6Protocol, corev1.IPv4Protocol))
			a.grant(name, nil, "192.0.2.3", "2001:db8::3")
			b.grant(name, nil, "192.0.2.4", "2001:db8::3")
		}
		settle(time.Minute)
		expect.SameList(t, b.said(), []string{`host "a" wrote 2001:db8::3 and 192.0.2.3 into its status, this host assigned 2001:db8::3 and 192.0.2.4, and so with 2 more Services`}, "problems")
		settle(15 * time.Minute)
		expect.Equal(t, len(api.take()), 2*3, "requests") // the requests of a, for two new Services
		expect.SameList(t, a.said(), []string(nil), "problems of the writer")

		b.grant("more0", nil, "192.0.2.3", "2001:db8::3")
		api.remove("more1")
		b.services.Delete(vip.ServiceKey{Namespace: "default", Name: "more1"})
		settle(time.Minute)
		expect.SameList(t, b.said(), []string{`host "a" wrote 192.0.2.1 into its status, this host assigned 192.0.2.7`}, "problems")
		b.grant("web", nil, "192.0.2.1")
		settle(differsEvery)
		expect.SameList(t, b.said(), []string(nil), "problems when they agree")
	})
}

// A newly elected host writes its VIPs once. Then the other host has the problem.
func TestHostsThatDifferChangeTheirPlaces(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		api, a := withVIP(t)
		b := newHost(t, api, "b")
		b.put(web, api.get("web"))
		b.grant("web", nil, "192.0.2.7")
		b.start()
		settle(time.Minute)
		a.store.SetInTouch(false) // so it releases the Lease
		settle(time.Minute)
		expect.SameList(t, b.said(), []string(nil), "problems of the next writer")
		a.store.SetInTouch(true)
		settle(10 * time.Minute)
		expect.SameList(t, api.take(), []string{writeStatus, postEvent}, "requests")
		expect.SameList(t, a.said(), []string{`host "b" wrote 192.0.2.7 into its status, this host assigned 192.0.2.1`}, "problems of the former")
		a.stop()
	})
}

// While a VIP changes, and while there is no writer, the status is outdated. An outdated status
// does not count as a difference between hosts, whatever the number of Services. Slow: 400 Services
// in fifteen minutes of fake time, with the race detector.
func TestHostsThatAgreeInTime(t *testing.T) {
	inCluster(t, func(t *testing.T, api *writable) {
		a, b := newHost(t, api, "a").start(), newHost(t, api, "b").start()
		const services = 400 // more than the writes within differsEvery
		move := func(to string) {
			for i := range services {
				name := fmt.Sprintf("web%d", i)
				a.grant(name, nil, to)
				b.grant(name, nil, to)
			}
		}
		for i := range services {
			api.edit(fmt.Sprintf("web%d", i), oursWith(corev1.IPv4Protocol))
		}
		move("192.0.2.1")
		watch := func(d time.Duration) {
			t.Helper()
			const step = 5 * time.Second
			for range int(d / step) {
				settle(step)
				must.Empty(t, append(a.said(), b.said()...), "problems")
			}
		}
		watch(5 * time.Minute)
		move("192.0.2.2")
		watch(5 * time.Minute)
		// The writer dies, and VIPs change before another writer is elected.
		a.election.fit = func() bool { return false }
		a.stop()
		move("192.0.2.3")
		watch(5 * time.Minute)
		expect.SameList(t, ingressOf(api.get("web399")), []string{"192.0.2.3/Proxy"}, "ingress")
	})
}
