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

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/scope"
)

// electionOf returns a running election of a host and a function that ends it like a crash.
func electionOf(t *testing.T, api *writable, identity string) (e *election, crash func()) {
	h := newHost(t, api, identity)
	h.allocations.Initializer()() // ready
	e = h.election
	crash = scope.Go(t, func(ctx context.Context) error { e.run(ctx); return nil })
	synctest.Wait()
	return e, crash
}

func TestOneOfAllIsElected(t *testing.T) {
	inCluster(t, func(t *testing.T, api *writable) {
		a, endA := electionOf(t, api, "a")
		b, endB := electionOf(t, api, "b")
		defer endB()
		for range 60 {
			settle(time.Second)
			if !a.mine() || b.mine() {
				t.Fatalf("a %v, b %v", a.mine(), b.mine())
			}
		}
		lease := api.lease()
		expect.Equal(t, *lease.Spec.HolderIdentity, "a", "holder")
		expect.Equal(t, *lease.Spec.LeaseDurationSeconds, 15, "seconds")
		expect.Equal(t, *lease.Spec.LeaseTransitions, 0, "transitions")

		endA() // without releasing the Lease
		crashed, renewed := time.Now(), api.lease().Spec.RenewTime.Time
		for !b.mine() {
			settle(100 * time.Millisecond)
			if b.mine() && a.mine() {
				t.Fatal("two writers")
			}
			must.AtMost(t, time.Since(crashed), time.Minute, "nobody takes over")
		}
		expect.Between(t, time.Since(renewed), leaseDuration, leaseDuration+leaseRenew+time.Second, "taken over after it was renewed")
		expect.False(t, a.mine(), "the former still takes itself for the writer")
		expect.Equal(t, *api.lease().Spec.LeaseTransitions, 1, "transitions")
	})
}

func TestLeaseGivenBackIsTakenSoon(t *testing.T) {
	inCluster(t, func(t *testing.T, api *writable) {
		a, endA := electionOf(t, api, "a")
		b, endB := electionOf(t, api, "b")
		defer endB()
		settle(20 * time.Second)
		endA()
		a.release(context.Background())
		expect.False(t, a.mine(), "still the writer")
		expect.Equal(t, *api.lease().Spec.HolderIdentity, "", "holder")
		settle(leaseRenew)
		expect.True(t, b.mine(), "not taken by then")
		expect.Equal(t, *api.lease().Spec.LeaseTransitions, 1, "transitions")
	})
}

// The times in the Lease do not matter, because other hosts' clocks may be hours off.
func TestSkewedClocks(t *testing.T) {
	for _, skew := range []time.Duration{-24 * time.Hour, 24 * time.Hour} {
		inCluster(t, func(t *testing.T, api *writable) {
			a, endA := electionOf(t, api, "a")
			endA()
			lease := a.known.DeepCopy()
			renew := func() {
				at := metav1.NewMicroTime(time.Now().Add(skew))
				lease.Spec.RenewTime = &at
				stored := must.Get(a.calls.putLease(context.Background(), lease))(t)
				lease = stored
			}
			b, endB := electionOf(t, api, "b")
			defer endB()
			for range 20 {
				renew()
				settle(leaseRenew)
				must.False(t, b.mine(), "%s: taken from one who renews it", skew)
			}
			settle(leaseDuration + leaseRenew)
			expect.True(t, b.mine(), "%s: not taken from one who doesn't", skew)
		})
	}
}

func TestRestartedHostIsWriterAtOnce(t *testing.T) {
	inCluster(t, func(t *testing.T, api *writable) {
		_, end := electionOf(t, api, "a")
		settle(leaseRenew)
		end()
		again, end := electionOf(t, api, "a")
		defer end()
		settle(time.Second)
		expect.True(t, again.mine(), "it waits for itself")
		expect.Equal(t, *api.lease().Spec.LeaseTransitions, 0, "transitions")
	})
}

func TestTwoHostsOfOneNameAreNotBothWriters(t *testing.T) {
	inCluster(t, func(t *testing.T, api *writable) {
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
	inCluster(t, func(t *testing.T, api *writable) {
		a, end := electionOf(t, api, "a")
		defer end()
		settle(time.Second)
		var lose atomic.Int32
		lose.Store(2)
		api.set(func() {
			api.lost = func(request string) bool { return strings.HasPrefix(request, "PUT") && lose.Add(-1) >= 0 }
		})
		settle(leaseRenew + leaseDuration)
		expect.AtMost(t, lose.Load(), 0, "no answer was lost")
		settle(leaseDuration)
		expect.True(t, a.mine(), "it does not take its own Lease over")
		expect.Equal(t, *api.lease().Spec.LeaseTransitions, 0, "transitions")
	})
}

func TestUnreachableServerEndsATurn(t *testing.T) {
	inCluster(t, func(t *testing.T, api *writable) {
		a, end := electionOf(t, api, "a")
		defer end()
		settle(time.Second)
		api.set(func() {
			api.fault = func(string) *http.Response {
				return failure(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "away")
			}
		})
		settle(leaseTrust)
		expect.False(t, a.mine(), "it takes itself for the writer longer than others wait")
		settle(time.Minute)
		api.set(func() { api.fault = nil })
		settle(2 * leaseRetry)
		expect.True(t, a.mine(), "nobody took it meanwhile, and it is not its own again")
	})
}

func TestUnfitHostGivesTheLeaseBack(t *testing.T) {
	inCluster(t, func(t *testing.T, api *writable) {
		h := newHost(t, api, "a")
		h.store.SetInTouch(false)
		h.start()
		settle(time.Minute)
		must.Empty(t, api.log, "asked while not in touch")
		h.store.SetInTouch(true)
		settle(2 * time.Second)
		must.True(t, h.election.mine(), "not elected")
		h.store.SetInTouch(false)
		settle(leaseTrust + leaseRenew + 2*time.Second)
		expect.Equal(t, *api.lease().Spec.HolderIdentity, "", "holder")
	})
}

func TestLeaseWithoutRights(t *testing.T) {
	inCluster(t, func(t *testing.T, api *writable) {
		api.fault = func(string) *http.Response {
			return failure(http.StatusForbidden, metav1.StatusReasonForbidden, `leases "ironvip" is forbidden: User "x" cannot get resource "leases"`)
		}
		h := newHost(t, api, "a").start()
		settle(10 * time.Minute)
		expect.Between(t, len(api.log), 10, 30, "requests in ten minutes")
		expect.SameList(t, h.said(), []string{"no right to get leases in namespace ironvip"}, "problems")
		api.set(func() { api.fault = nil })
		settle(time.Minute)
		expect.SameList(t, h.said(), []string(nil), "problems")
		expect.True(t, h.Leads(), "not elected")
	})
}

// Without the documented setup nothing is written, and the reason is reported once.
func TestLeaseWithoutANamespace(t *testing.T) {
	inCluster(t, func(t *testing.T, api *writable) {
		api.fault = func(request string) *http.Response {
			if strings.HasPrefix(request, "POST leases") {
				return failure(http.StatusNotFound, metav1.StatusReasonNotFound, `namespaces "ironvip" not found`)
			}
			return nil
		}
		h := newHost(t, api, "a").start()
		settle(time.Minute)
		expect.SameList(t, h.said(), []string{`create the Lease in namespace ironvip: namespaces "ironvip" not found`}, "problems")
		expect.Equal(t, h.reported(), 1, "reports in a minute")
		api.set(func() { api.fault = nil })
		settle(time.Minute)
		expect.SameList(t, h.said(), []string(nil), "problems")
	})
}

// A Lease that can be read and not be written is one problem, until this host or another one can write it.
func TestLeaseThatCannotBeWritten(t *testing.T) {
	inCluster(t, func(t *testing.T, api *writable) {
		other := newHost(t, api, "b").start()
		settle(leaseRenew)
		other.stop()
		refuse := func() {
			api.set(func() {
				api.fault = func(request string) *http.Response {
					if strings.HasPrefix(request, "PUT leases") {
						return failure(http.StatusInternalServerError, metav1.StatusReasonInternalError, "webhook is away")
					}
					return nil
				}
			})
		}
		refuse()
		h := newHost(t, api, "a").start()
		settle(time.Minute)
		expect.SameList(t, h.said(), []string{"update the Lease in namespace ironvip: webhook is away"}, "problems")
		expect.Equal(t, h.reported(), 1, "reports in a minute")

		api.set(func() { api.fault = nil })
		settle(2 * leaseRetry)
		expect.SameList(t, h.said(), []string(nil), "problems when it works again")

		h.stop()
		refuse()
		h = newHost(t, api, "a").start()
		settle(leaseDuration)
		must.Equal(t, len(h.said()), 1, "problems")
		lease := api.lease()
		now, name, lasts := metav1.NewMicroTime(time.Now()), "b", int32(15)
		lease.Spec.HolderIdentity, lease.Spec.RenewTime, lease.Spec.LeaseDurationSeconds = &name, &now, &lasts
		api.set(func() { api.fault = nil })
		must.Get(other.calls.putLease(t.Context(), lease))(t)
		refuse()
		settle(leaseRenew)
		expect.SameList(t, h.said(), []string(nil), "problems while another host holds it")
	})
}
