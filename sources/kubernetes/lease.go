package kubernetes

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironvip/ironvip/internal/backoff"
)

// The numbers are those of Kubernetes' own components, but for how often the
// Lease is renewed, which is less: two renewals may fail.
const (
	leaseDuration = 15 * time.Second
	leaseRenew    = 5 * time.Second
	// leaseTrust is how long the holder takes itself for that. What it has sent by
	// then is answered before another can take over.
	leaseTrust   = leaseDuration - callTimeout
	leaseRetry   = time.Second
	leaseTimeout = 3 * time.Second
	leaseRefused = 30 * time.Second // between tries that a right is missing for
)

// election makes one host of all the writer, by a Lease: who writes his name
// into it renews it, and others take it over when they have seen it unchanged
// for as long as it says. Only how long is measured, on each host's own clock;
// the times in the Lease are for people. Two hosts that write at a time are kept
// apart by its resourceVersion.
//
// A host that starts takes up a Lease in its own name at once: it was restarted.
// Should another host have that name by mistake, that one finds that the Lease is
// no longer as it wrote it, and follows.
type election struct {
	calls           *calls
	namespace, name string
	identity        string
	fit             func() bool                  // whether this host could do the work
	tried           func(verb string, err error) // told how each request went

	// Only run uses these.
	known  *coordinationv1.Lease // as last read or written; nil for none
	seen   time.Time             // when it was first seen so
	read   bool                  // it has been read once
	sent   []renewal             // those that were sent since the last answer
	unfit  time.Time             // since when this host isn't fit; zero while it is
	change chan struct{}         // has a word in it when mine may have changed

	mu      sync.Mutex
	ours    bool      // known is what this host wrote
	renewed time.Time // before the request that wrote it
	holder  string
}

// renewal is one that was sent.
type renewal struct {
	says  metav1.MicroTime // in the Lease
	began time.Time        // by this host's clock
}

func newElection() *election { return &election{change: make(chan struct{}, 1)} }

// mine reports whether this host is the writer. It is safe for concurrent use.
func (e *election) mine() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.ours && time.Since(e.renewed) < leaseTrust
}

// elected returns the name of the last known writer, "" for none.
func (e *election) elected() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.holder
}

// run takes part until the context ends. It leaves the Lease as it is then; see
// release.
func (e *election) run(ctx context.Context) {
	for ctx.Err() == nil {
		backoff.Sleep(ctx, e.step(ctx))
	}
}

// step does what there is to do, and returns when to come back.
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
	case e.holds():
		return leaseRetry // an answer that got lost; renew
	case left <= 0:
		err := e.write(ctx, lease, e.identity)
		if apierrors.IsConflict(err) {
			err = nil // another was first
		}
		return e.pause(err)
	default:
		return min(left, spread(leaseRenew))
	}
}

// stepAside leaves the election to hosts that can do the work. A host that may be
// back soon keeps what it has.
func (e *election) stepAside(ctx context.Context) time.Duration {
	if e.unfit.IsZero() {
		e.unfit = time.Now()
	}
	if e.holds() && time.Since(e.unfit) > leaseTrust {
		e.release(ctx)
	}
	return leaseRetry
}

// release gives the Lease back, if it is this host's, so that the next need not
// wait. It must not run at the same time as run, and nothing may be written
// afterwards.
func (e *election) release(ctx context.Context) {
	if !e.holds() {
		return
	}
	lease := e.known
	e.learn(nil)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaseTimeout)
	defer cancel()
	_ = e.write(ctx, lease, "") // else it runs out
}

// pause returns how long to rest after a request.
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

// holds reports whether the Lease is as this host last wrote it.
func (e *election) holds() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.ours
}

// left returns how long the Lease has to stay unchanged before it is free.
func (e *election) left() time.Duration {
	lasts := leaseDuration
	if seconds := e.known.Spec.LeaseDurationSeconds; seconds != nil && *seconds > 0 {
		lasts = time.Duration(*seconds) * time.Second
	}
	return lasts - time.Since(e.seen)
}

// get reads the Lease, nil for none.
func (e *election) get(ctx context.Context) (*coordinationv1.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, leaseTimeout)
	defer cancel()
	lease, err := e.calls.getLease(ctx, e.namespace, e.name)
	if apierrors.IsNotFound(err) {
		e.tried("get", nil)
		return nil, nil
	}
	e.tried("get", err)
	if err != nil {
		return nil, err
	}
	return lease, nil
}

// learn takes in what was read, nil for nothing that is sure.
func (e *election) learn(lease *coordinationv1.Lease) {
	e.mu.Lock()
	defer e.mu.Unlock()
	defer e.note()
	if lease == nil {
		e.ours = false
		return
	}
	if e.known == nil || lease.ResourceVersion != e.known.ResourceVersion || lease.UID != e.known.UID {
		e.seen = time.Now()
		// A request whose answer was lost may have been carried out.
		if at := lease.Spec.RenewTime; at != nil && holderOf(lease) == e.identity {
			if i := slices.IndexFunc(e.sent, func(r renewal) bool { return r.says.Equal(at) }); i >= 0 {
				e.ours, e.renewed = true, e.sent[i].began
			}
		}
	}
	e.known, e.holder = lease, holderOf(lease)
}

// write puts a holder into a Lease, "" for none, and renews it.
func (e *election) write(ctx context.Context, lease *coordinationv1.Lease, holder string) error {
	began := time.Now()
	now := metav1.NewMicroTime(began.Truncate(time.Microsecond)) // as the API keeps it
	lease = lease.DeepCopy()
	lease.ManagedFields = nil
	spec := &lease.Spec
	lasts := int32(leaseDuration / time.Second)
	if holder == "" {
		lasts = 1 // for clients that don't know that no holder is none
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
	e.sent = append(e.sent[max(0, len(e.sent)-maxSent):], renewal{now, began})
	ctx, cancel := context.WithTimeout(ctx, leaseTimeout)
	defer cancel()
	stored, err := e.calls.putLease(ctx, lease)
	e.tried(verb, err)
	if err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sent = nil
	e.known, e.seen, e.read = stored, time.Now(), true
	e.ours, e.renewed, e.holder = holder != "", began, holder
	e.note()
	return nil
}

// maxSent is how many unanswered requests are kept in mind.
const maxSent = 16

func (e *election) empty() *coordinationv1.Lease {
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: e.name}}
}

func (e *election) note() {
	select {
	case e.change <- struct{}{}:
	default:
	}
}

func holderOf(l *coordinationv1.Lease) string {
	if l.Spec.HolderIdentity == nil {
		return ""
	}
	return *l.Spec.HolderIdentity
}

// spread returns d or up to a fifth less, so that hosts don't stay in step.
func spread(d time.Duration) time.Duration { return d - rand.N(d/5) }
