package statuswriter

import (
	"context"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironvip/ironvip/test/bubble"
)

// electionOf returns a running election of a host and a function that ends it like a crash.
func electionOf(t *testing.T, api *writable, identity string) (e *election, crash func()) {
	h := newHost(t, api, identity)
	h.allocations.Initializer()() // ready
	e = h.election
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan struct{})
	go func() {
		defer close(over)
		e.run(ctx)
	}()
	synctest.Wait()
	return e, func() {
		cancel()
		<-over
	}
}

func TestOneOfAllIsElected(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		api := newWritable(t)
		a, endA := electionOf(t, api, "a")
		b, endB := electionOf(t, api, "b")
		defer endB()
		for range 60 {
			settle(time.Second)
			if !a.mine() || b.mine() || b.elected() != "a" && b.elected() != "" {
				t.Fatalf("a %v, b %v, which knows of %q", a.mine(), b.mine(), b.elected())
			}
		}
		lease := api.lease()
		expect(t, "holder", *lease.Spec.HolderIdentity, "a")
		expect(t, "seconds", *lease.Spec.LeaseDurationSeconds, 15)
		expect(t, "transitions", *lease.Spec.LeaseTransitions, 0)

		endA() // without releasing the Lease
		crashed, renewed := time.Now(), api.lease().Spec.RenewTime.Time
		for !b.mine() {
			settle(100 * time.Millisecond)
			if b.mine() && a.mine() {
				t.Fatal("two writers")
			}
			if time.Since(crashed) > time.Minute {
				t.Fatal("nobody takes over")
			}
		}
		if after := time.Since(renewed); after < leaseDuration || after > leaseDuration+leaseRenew+time.Second {
			t.Errorf("taken over %s after it was renewed", after)
		}
		if a.mine() {
			t.Error("the former still takes itself for the writer")
		}
		expect(t, "transitions", *api.lease().Spec.LeaseTransitions, 1)
	})
}

func TestLeaseGivenBackIsTakenSoon(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		api := newWritable(t)
		a, endA := electionOf(t, api, "a")
		b, endB := electionOf(t, api, "b")
		defer endB()
		settle(20 * time.Second)
		endA()
		a.release(context.Background())
		if a.mine() {
			t.Error("still the writer")
		}
		expect(t, "holder", *api.lease().Spec.HolderIdentity, "")
		settle(leaseRenew)
		if !b.mine() {
			t.Error("not taken by then")
		}
		expect(t, "transitions", *api.lease().Spec.LeaseTransitions, 1)
	})
}

// The times in the Lease do not matter, because other hosts' clocks may be hours off.
func TestSkewedClocks(t *testing.T) {
	for _, skew := range []time.Duration{-24 * time.Hour, 24 * time.Hour} {
		bubble.Test(t, func(t *testing.T) {
			api := newWritable(t)
			a, endA := electionOf(t, api, "a")
			endA()
			lease := a.known.DeepCopy()
			renew := func() {
				at := metav1.NewMicroTime(time.Now().Add(skew))
				lease.Spec.RenewTime = &at
				stored, err := a.calls.putLease(context.Background(), lease)
				if err != nil {
					t.Fatal(err)
				}
				lease = stored
			}
			b, endB := electionOf(t, api, "b")
			defer endB()
			for range 20 {
				renew()
				settle(leaseRenew)
				if b.mine() {
					t.Fatalf("%s: taken from one who renews it", skew)
				}
			}
			settle(leaseDuration + leaseRenew)
			if !b.mine() {
				t.Errorf("%s: not taken from one who doesn't", skew)
			}
		})
	}
}

func TestRestartedHostIsWriterAtOnce(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		api := newWritable(t)
		_, end := electionOf(t, api, "a")
		settle(leaseRenew)
		end()
		again, end := electionOf(t, api, "a")
		defer end()
		settle(time.Second)
		if !again.mine() {
			t.Error("it waits for itself")
		}
		expect(t, "transitions", *api.lease().Spec.LeaseTransitions, 0)
	})
}

func TestTwoHostsOfOneNameAreNotBothWriters(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		api := newWritable(t)
		a, endA := electionOf(t, api, "same")
		defer endA()
		settle(leaseRenew)
		b, endB := electionOf(t, api, "same")
		defer endB()
		settle(leaseTrust) // for the first host to detect it
		for range 60 {
			settle(time.Second)
			if a.mine() == b.mine() {
				t.Fatalf("both %v", a.mine())
			}
		}
	})
}

func TestLostAnswerToARenewal(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		api := newWritable(t)
		a, end := electionOf(t, api, "a")
		defer end()
		settle(time.Second)
		var lose atomic.Int32
		lose.Store(2)
		api.set(func() {
			api.lost = func(request string) bool { return strings.HasPrefix(request, "PUT") && lose.Add(-1) >= 0 }
		})
		for range 30 {
			settle(time.Second)
			if !a.mine() {
				t.Fatal("it was carried out, and still the host stepped back")
			}
		}
		if lose.Load() >= 0 {
			t.Error("no answer was lost")
		}
	})
}

func TestUnreachableServerEndsATurn(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		api := newWritable(t)
		a, end := electionOf(t, api, "a")
		defer end()
		settle(time.Second)
		api.set(func() {
			api.fault = func(string) *http.Response {
				return failure(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "away")
			}
		})
		settle(leaseTrust)
		if a.mine() {
			t.Error("it takes itself for the writer longer than others wait")
		}
		settle(time.Minute)
		api.set(func() { api.fault = nil })
		settle(2 * leaseRetry)
		if !a.mine() {
			t.Error("nobody took it meanwhile, and it is not its own again")
		}
	})
}

func TestUnfitHostGivesTheLeaseBack(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		api := newWritable(t)
		h := newHost(t, api, "a")
		h.store.SetInTouch(false)
		h.start()
		defer h.stop()
		settle(time.Minute)
		if len(api.log) != 0 {
			t.Fatalf("asked while not in touch: %q", api.log)
		}
		h.store.SetInTouch(true)
		settle(2 * time.Second)
		if _, mine := h.Elected(); !mine {
			t.Fatal("not elected")
		}
		h.store.SetInTouch(false)
		settle(leaseTrust + leaseRenew + 2*time.Second)
		expect(t, "holder", *api.lease().Spec.HolderIdentity, "")
	})
}

func TestLeaseWithoutRights(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		api := newWritable(t)
		api.fault = func(string) *http.Response {
			return failure(http.StatusForbidden, metav1.StatusReasonForbidden, `leases "ironvip" is forbidden: User "x" cannot get resource "leases"`)
		}
		h := newHost(t, api, "a").start()
		defer h.stop()
		settle(10 * time.Minute)
		if n := len(api.log); n < 10 || n > 30 {
			t.Errorf("%d requests in ten minutes", n)
		}
		expect(t, "problems", h.said(), []string{"no right to get leases in namespace ironvip"})
		api.set(func() { api.fault = nil })
		settle(time.Minute)
		expect(t, "problems", h.said(), []string(nil))
		if _, mine := h.Elected(); !mine {
			t.Error("not elected")
		}
	})
}

// Without the documented setup nothing is written, and the reason is reported.
func TestLeaseWithoutANamespace(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		api := newWritable(t)
		api.fault = func(request string) *http.Response {
			if strings.HasPrefix(request, "POST leases") {
				return failure(http.StatusNotFound, metav1.StatusReasonNotFound, `namespaces "ironvip" not found`)
			}
			return nil
		}
		h := newHost(t, api, "a").start()
		defer h.stop()
		settle(time.Minute)
		expect(t, "problems", h.said(), []string{`create the Lease in namespace ironvip: namespaces "ironvip" not found`})
		api.set(func() { api.fault = nil })
		settle(time.Minute)
		expect(t, "problems", h.said(), []string(nil))
	})
}
