// Package statuswriter writes the VIPs of Services and Gateways to a Kubernetes cluster.
//
// Its inputs are the Services and other objects that a source of the cluster knows (Objects) and the allocations.
// Its output, on the one host that holds the Lease, is the ingress of each Service's status, one
// finalizer, and events, and the status of each Document; it writes nothing else. Problems with writing go to the source.
//
// Source code organization: writer.go has the loop, lease.go the election. For each Service,
// observe.go collects what is known, decide.go decides the next step, steps.go performs it with the
// requests of calls.go, and withdrawal.go waits for the dataplane before a VIP is removed.
// documents.go writes the status of other objects, events.go and strays.go have the other requests, problems.go what is
// reported.
package statuswriter

import (
	"cmp"
	"context"
	"log/slog"
	"math"
	"slices"
	"time"

	"golang.org/x/time/rate"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/ironvip/ironvip/internal/delayqueue"
	"github.com/ironvip/ironvip/internal/kubeclient"
	"github.com/ironvip/ironvip/internal/parallel"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/internal/wake"
	"github.com/ironvip/ironvip/vip"
)

// Options are the dependencies of a Writer. All are required.
type Options struct {
	Source  string   // the source's name
	Objects *Objects // what the source knows; the Writer watches nothing else
	// Selects reports whether the source serves a Service that matches Namespaces and Selector.
	Selects    func(*corev1.Service) bool
	Namespaces []string        // that the source reads; empty: all
	Selector   labels.Selector // of the Services that the source reads
	// Prefix begins the Services' namespaces in Services, Allocations and Withdrawn.
	Prefix Prefix
	// Place returns the place of a Service for messages.
	Place func(vip.ServiceKey) string
	// Report receives the problems with writing when they have changed. It is called from several
	// goroutines, one at a time.
	Report func([]vip.Problem)

	Client *kubeclient.Client
	// Identity is this host's name as a candidate for the Lease.
	Identity string
	// LeaseNamespace and LeaseName identify the Lease that elects the one writing host. Sources of
	// one cluster that don't replace each other need different Leases. The Lease also identifies
	// what they have written.
	LeaseNamespace string
	LeaseName      string
	IPMode         corev1.LoadBalancerIPMode // status.loadBalancer.ingress[].ipMode

	Services    table.Reader[vip.ServiceKey, vip.Service] // of all sources, to find the source of a key
	Allocations table.Reader[vip.ServiceKey, vip.Allocation]
	// Withdrawn waits until this host serves nothing for a Service that the source has removed or
	// is about to remove. It must not return early because the state is not known yet, as at the
	// start.
	Withdrawn func(ctx context.Context, key vip.ServiceKey) error
	Log       *slog.Logger
}

// Writer writes the VIPs of Services to the cluster. Its patches fail if the object has changed in
// the meantime. It writes only differences. Therefore a restart or a change of the writer costs no
// request. The exception is one list of Services that have left the selector or the namespaces, if
// those are set. The Writer acts only while it holds the Lease and the source is in touch. An
// unknown object never counts as deleted.
//
// Requests are sent one at a time, up to ten a second in the long run. A failed write is tried
// again with backoff, based on the newest state. If a permission is missing, it is tried once a
// minute.
type Writer struct {
	o        Options
	calls    *calls
	election *election
	pace     *rate.Limiter
	pause    pause
	troubles *troubles

	entries   map[vip.ServiceKey]*entry        // Services with state to remember
	queue     delayqueue.Queue[vip.ServiceKey] // when to check each Service
	documents documents
	events    []announcement // waiting events, oldest first
	strays    strays
	leads     bool // this host was the writer at the last check

	waiting parallel.Group // for withdrawals
	over    chan withdrawn // withdrawals that have ended
}

// New returns a Writer that sends no request before Run.
func New(o Options) *Writer {
	w := &Writer{o: o, strays: newStrays(&o),
		calls: &calls{client: o.Client, core: o.Client.REST(corev1.SchemeGroupVersion), coordination: o.Client.REST(coordinationv1.SchemeGroupVersion),
			manager: fieldManager(o.LeaseNamespace, o.LeaseName)},
		documents: newDocuments(), pace: rate.NewLimiter(writeRate, writeBurst), entries: map[vip.ServiceKey]*entry{}, over: make(chan withdrawn)}
	w.troubles = newTroubles(&w.o)
	w.election = &election{calls: w.calls, namespace: o.LeaseNamespace, name: o.LeaseName, identity: o.Identity, fit: w.able,
		tried: func(verb string, err error) { w.troubles.elected(o.LeaseNamespace, verb, err) }, change: wake.New()}
	return w
}

// within reports whether the source reads a Service.
func (w *Writer) within(s *corev1.Service) bool {
	return (len(w.o.Namespaces) == 0 || slices.Contains(w.o.Namespaces, s.Namespace)) && w.o.Selector.Matches(labels.Set(s.Labels))
}

// Leads reports whether this Writer holds the Lease.
func (w *Writer) Leads() bool { return w.election.mine() }

// Run writes until the context ends, releases the Lease, and returns the context's error. It is called
// once.
func (w *Writer) Run(ctx context.Context) error {
	running, inner := parallel.NewGroup(ctx)
	w.waiting = running
	running.Run(inner, w.election.run)
	running.Run(inner, w.work)
	err := running.Wait()
	w.election.release(ctx)
	return cmp.Or(err, ctx.Err())
}

// able reports whether the state needed for writing is known.
func (w *Writer) able() bool {
	return table.IsClosed(w.o.Allocations.Ready()) && w.o.Objects.InTouch()
}

// forever is the time until the next call of a function that waits for a change.
const forever = time.Duration(math.MaxInt64)

// work handles changes until the context ends.
func (w *Writer) work(ctx context.Context) {
	objects, documents, allocations := w.o.Objects.Watch(), w.o.Objects.Documents.Watch(), w.o.Allocations.Watch()
	defer objects.Close()
	defer documents.Close()
	defer allocations.Close()
	// A change that arrives while this host can't write is handled when it can.
	ready := w.o.Allocations.Ready()
	for ctx.Err() == nil {
		changed, moreObjects := objects.TryNext()
		for _, c := range changed {
			w.check(c.Value.Key)
		}
		written, moreDocuments := documents.TryNext()
		for _, c := range written {
			if w.documents.changed(&c.Value, c.Deleted); c.Deleted {
				w.troubles.accept(c.Value.Key)
			}
		}
		allocated, moreAllocations := allocations.TryNext()
		for _, c := range allocated {
			if key, is := w.o.Prefix.Service(c.Value.Asked.Key); is {
				w.check(key)
				w.documents.allocated(key)
			}
		}
		if len(changed)+len(written)+len(allocated) > 0 {
			continue
		}
		again := w.look(ctx)
		if again <= 0 {
			continue
		}
		timer := time.NewTimer(again)
		select {
		case <-ctx.Done():
		case <-moreObjects:
		case <-moreDocuments:
		case <-moreAllocations:
		case <-w.o.Objects.touched:
		case <-w.election.change:
		case <-ready:
			ready = nil
		case end := <-w.over:
			w.ended(end)
		case <-timer.C:
		}
		timer.Stop()
	}
}

// look handles what is due as far as possible, with at most one request. It returns the time until
// the next call.
func (w *Writer) look(ctx context.Context) (again time.Duration) {
	leads := w.election.mine()
	if leads && !w.leads { // the previous writer may have left work unfinished
		for key := range w.entries {
			w.check(key)
		}
	}
	w.leads = leads
	if !leads {
		for key := range w.queue.Due(time.Now()) {
			w.observe(key)
			w.queue.Drop(key)
		}
		w.events = nil
		return w.untilDue()
	}
	if !w.able() {
		return forever
	}
	for key := range w.queue.Due(time.Now()) {
		if sent, wait := w.lookAt(ctx, key); sent || wait > 0 {
			return wait
		}
	}
	for key := range w.documents.queue.Due(time.Now()) {
		if sent, wait := w.write(ctx, key); sent || wait > 0 {
			return wait
		}
	}
	if again = w.seek(ctx); again > 0 {
		again = min(again, w.announce(ctx), w.untilDue())
	}
	return again
}

// check adds a Service to the queue, to be checked now.
func (w *Writer) check(key vip.ServiceKey) { w.queue.Hasten(key, time.Now()) }

// later delays the check of a Service. A change of the Service ends the delay.
func (w *Writer) later(key vip.ServiceKey, after time.Duration) {
	w.queue.Set(key, time.Now().Add(after))
}

// untilDue returns the time until the next check of a Service.
func (w *Writer) untilDue() time.Duration {
	out := forever
	if _, at, waits := w.queue.First(); waits {
		out = time.Until(at)
	}
	if _, at, waits := w.documents.queue.First(); waits && w.leads {
		out = min(out, time.Until(at))
	}
	return out
}
