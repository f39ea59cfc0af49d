package statuswriter

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironvip/ironvip/internal/backoff"
	"github.com/ironvip/ironvip/internal/wake"
)

// The values are those of Kubernetes' own components, except that the Lease is renewed less often.
// Two renewals may fail.
const (
	leaseDuration = 15 * time.Second
	leaseRenew    = 5 * time.Second
	// leaseTrust is how long the holder relies on the Lease after a renewal. Requests sent until
	// then are answered before another host can take over.
	leaseTrust   = leaseDuration - callTimeout
	leaseRetry   = time.Second
	leaseTimeout = 3 * time.Second
	leaseRefused = 30 * time.Second // retry interval while a permission is missing
)

// leaseHeld is reported like a verb when another host holds the Lease.
const leaseHeld = "held"

// election elects one writer among all hosts by a Lease. The holder writes its name into the Lease
// and renews it. Other hosts take it over when they have seen it unchanged for its duration. Each
// host measures that duration on its own clock. The times in the Lease only inform people. The
// Lease's resourceVersion prevents conflicting writes.
//
// A host that starts takes over a Lease with its own name at once, because it was restarted. If
// another host has the same name by mistake, that host detects that the Lease differs from what it
// wrote, and gives way. So does a host that lost the answer to a renewal: it waits like others, and then
// takes its own Lease over.
type election struct {
	calls           *calls
	namespace, name string
	identity        string
	fit             func() bool                  // whether this host can do the work
	tried           func(verb string, err error) // receives the result of each request, and leaseHeld

	// Only run uses these.
	seen   time.Time   // when this state was first seen
	read   bool        // it has been read once
	unfit  time.Time   // since when this host is not fit; zero while it is fit
	change wake.Signal // has an element when mine may have changed

	mu      sync.Mutex            // only run writes what it protects
	known   *coordinationv1.Lease // as last read or written; nil: none
	ours    bool                  // this host wrote known
	renewed time.Time             // time before the request that wrote it
}

// mine reports whether this host is the writer. It is safe for concurrent use.
func (e *election) mine() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.ours && time.Since(e.renewed) < leaseTrust
}

// run takes part in the election until the context ends. It leaves the Lease unchanged at the end;
// see release.
func (e *election) run(ctx context.Context) {
	for ctx.Err() == nil {
		backoff.Sleep(ctx, e.step(ctx))
	}
}

// step performs the next action and returns the time until the next step.
func (e *election) step(ctx context.Context) time.Duration {
	if !e.fit() {
		return e.stepAside(ctx)
	}
	e.unfit = time.Time{}
	if e.holds() {
		if err := e.write(ctx, e.known, e.identity); !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return e.pause(err)
		}
		e.learn(nil)
	}
	lease, err := e.get(ctx)
	if err != nil {
		return e.pause(err)
	}
	if lease == nil {
		err := e.write(ctx, e.empty(), e.identity)
		if apierrors.IsAlreadyExists(err) {
			err = nil
		}
		return e.pause(err)
	}
	e.learn(lease)
	first := !e.read
	e.read = true
	left := e.left()
	if holder := holderOf(lease); holder == "" || first && holder == e.identity {
		left = 0
	}
	switch {
	case left <= 0:
		err := e.write(ctx, lease, e.identity)
		if apierrors.IsConflict(err) {
			err = nil // another host was faster
		}
		return e.pause(err)
	default:
		e.tried(leaseHeld, nil)
		return min(left, spread(leaseRenew))
	}
}

// stepAside leaves the election to hosts that can do the work. A host that may soon be fit again
// keeps the Lease for leaseTrust.
func (e *election) stepAside(ctx context.Context) time.Duration {
	if e.unfit.IsZero() {
		e.unfit = time.Now()
	}
	if e.holds() && time.Since(e.unfit) > leaseTrust {
		e.release(ctx)
	}
	return leaseRetry
}

// release gives up the Lease if this host holds it, so that the next holder need not wait. It must
// not run concurrently with run. Nothing may be written afterwards.
func (e *election) release(ctx context.Context) {
	if !e.holds() {
		return
	}
	lease := e.known
	e.learn(nil)
	_ = e.write(context.WithoutCancel(ctx), lease, "") // if this fails, the Lease expires
}

// pause returns the wait after a request.
func (e *election) pause(err error) time.Duration {
	verdict, wait := judge(err)
	switch verdict {
	case verdictDone:
		return spread(leaseRenew)
	case verdictLacking, verdictEnding:
		return spread(leaseRefused)
	default:
		return max(wait, spread(leaseRetry))
	}
}

// holds reports whether the Lease is unchanged since this host wrote it.
func (e *election) holds() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.ours
}

// left returns how long the Lease must stay unchanged before another host may take it over.
func (e *election) left() time.Duration {
	lasts := leaseDuration
	if seconds := e.known.Spec.LeaseDurationSeconds; seconds != nil && *seconds > 0 {
		lasts = time.Duration(*seconds) * time.Second
	}
	return lasts - time.Since(e.seen)
}

// get reads the Lease. It returns nil if the Lease does not exist.
func (e *election) get(ctx context.Context) (*coordinationv1.Lease, error) {
	lease, err := e.calls.getLease(ctx, e.namespace, e.name)
	e.tried("get", err)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return lease, err
}

// learn updates the state from a Lease that was read; nil: the state is unknown.
func (e *election) learn(lease *coordinationv1.Lease) {
	e.mu.Lock()
	defer e.mu.Unlock()
	defer e.change.Set()
	if lease == nil {
		e.ours = false
		return
	}
	if e.known == nil || lease.ResourceVersion != e.known.ResourceVersion || lease.UID != e.known.UID {
		e.seen = time.Now()
	}
	e.known = lease
}

// write sets the holder of a Lease, "" for none, and renews it.
func (e *election) write(ctx context.Context, lease *coordinationv1.Lease, holder string) error {
	began := time.Now()
	now := metav1.NewMicroTime(began.Truncate(time.Microsecond)) // the API's resolution
	lease = lease.DeepCopy()
	lease.ManagedFields = nil
	spec := &lease.Spec
	lasts := int32(leaseDuration / time.Second)
	if holder == "" {
		lasts = 1 // for clients that don't accept an empty holder as none
	}
	if before := holderOf(lease); before != holder && holder != "" {
		transitions := int32(0)
		if spec.LeaseTransitions != nil {
			transitions = *spec.LeaseTransitions
		}
		if lease.ResourceVersion != "" {
			transitions++
		}
		spec.LeaseTransitions, spec.AcquireTime = &transitions, &now
	}
	spec.HolderIdentity, spec.RenewTime, spec.LeaseDurationSeconds = &holder, &now, &lasts
	verb := "update"
	if lease.ResourceVersion == "" {
		verb = "create"
	}
	stored, err := e.calls.putLease(ctx, lease)
	e.tried(verb, err)
	if err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.known, e.seen, e.read = stored, time.Now(), true
	e.ours, e.renewed = holder != "", began
	e.change.Set()
	return nil
}

func (e *election) empty() *coordinationv1.Lease {
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: e.name}}
}

func holderOf(l *coordinationv1.Lease) string {
	if l.Spec.HolderIdentity == nil {
		return ""
	}
	return *l.Spec.HolderIdentity
}

// spread returns d minus a jitter of up to a fifth, so that hosts do not act at the same time.
func spread(d time.Duration) time.Duration { return d - rand.N(d/5) }
