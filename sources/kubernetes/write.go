package kubernetes

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/ironvip/ironvip/internal/kubeclient"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/vip"
)

// WriterOptions are the dependencies of a Writer. Source, Client, Identity, Services and
// Allocations are required.
type WriterOptions struct {
	Source *Source            // the source of the Services; the Writer watches only what the Source knows
	Client *kubeclient.Client // may be the Source's client
	// Identity is this host's name as a candidate for the Lease.
	Identity string
	// LeaseNamespace and LeaseName identify the Lease that elects the one writing host; "": the
	// defaults. Sources of one cluster that don't replace each other need different Leases. The
	// Lease also identifies what they have written.
	LeaseNamespace string
	LeaseName      string
	// IPMode is status.loadBalancer.ingress[].ipMode; "": Proxy.
	IPMode corev1.LoadBalancerIPMode

	Services    table.Reader[vip.ServiceKey, vip.Service] // of all sources, to find the source of a key
	Allocations table.Reader[vip.ServiceKey, vip.Allocation]
	// Withdrawn waits until this host serves nothing for a Service that the source has removed or
	// is about to remove. It must not return early because the state is not known yet, as at the
	// start. If it is nil, the Writer does not wait.
	Withdrawn func(ctx context.Context, key vip.ServiceKey) error
	Log       *slog.Logger // nil: slog.Default
}

// Writer writes the VIPs of Services to the cluster. For each Service it writes the ingress of the
// status and one finalizer, and creates events. Its patches fail if the object has changed in the
// meantime. It writes only differences. Therefore a restart or a change of the writer costs no
// request. The exception is one list of Services that have left the selector or the namespaces, if
// those are set. The Writer acts only while it holds the Lease and the source is in touch. An
// unknown object never counts as deleted.
//
// Requests are sent one at a time, up to ten a second in the long run. A failed write is tried
// again with backoff, based on the newest state. If a permission is missing, it is tried once a
// minute. Problems with writing are among the source's problems.
type Writer struct {
	o       WriterOptions
	store   *objectStore
	source  string // the source's name
	adopts  bool
	selects func(*corev1.Service) bool
	within  func(*corev1.Service) bool // the namespaces and the selector match
	// namespaces are the source's; empty: all.
	namespaces []string

	calls    *calls
	election *election
	pace     *rate.Limiter
	pause    pause
	troubles *troubles

	entries map[vip.ServiceKey]*entry // Services with state to remember
	queue   queue                     // keys to check
	events  announcements
	strays  strays
	differs differing
	leads   bool // this host was the writer at the last check

	running sync.WaitGroup // waits for withdrawals
	mu      sync.Mutex
	woken   map[vip.ServiceKey]struct{}
	wake    chan struct{}
}

// NewWriter returns a Writer that sends no request before Run. The error names an invalid option.
func NewWriter(o WriterOptions) (*Writer, error) {
	if o.Source == nil || o.Client == nil || o.Services == nil || o.Allocations == nil {
		return nil, errors.New("kubernetes: a writer needs a source, a client, services and allocations")
	}
	w, err := newWriter(o, &o.Source.o, o.Source.objects(), o.Source.wrong)
	if err != nil {
		return nil, err
	}
	w.calls.core, w.calls.coordination = o.Client.REST(corev1.SchemeGroupVersion), o.Client.REST(coordinationv1.SchemeGroupVersion)
	return w, nil
}

// newWriter is NewWriter without the REST clients.
func newWriter(o WriterOptions, source *Options, store *objectStore, wrong *writerProblems) (*Writer, error) {
	if o.Identity == "" {
		return nil, errors.New("kubernetes: a writer needs an identity")
	}
	selector, err := labels.Parse(source.Selector)
	if err != nil {
		return nil, err
	}
	o.LeaseNamespace, o.LeaseName = cmp.Or(o.LeaseNamespace, DefaultLeaseNamespace), cmp.Or(o.LeaseName, DefaultLeaseName)
	o.IPMode = cmp.Or(o.IPMode, corev1.LoadBalancerIPModeProxy)
	o.Log = cmp.Or(o.Log, slog.Default())
	place := func() string {
		if o.Client == nil {
			return source.Name
		}
		return "kubernetes at " + o.Client.Server()
	}
	w := &Writer{o: o, store: store, source: source.Name, adopts: source.AdoptClusterIPs, selects: source.selects, namespaces: source.Namespaces,
		strays: newStrays(source),
		calls:  &calls{manager: fieldManager(o.LeaseNamespace, o.LeaseName)}, election: newElection(),
		pace: rate.NewLimiter(writeRate, writeBurst), troubles: newTroubles(place, wrong, o.Log),
		entries: map[vip.ServiceKey]*entry{}, woken: map[vip.ServiceKey]struct{}{}, wake: make(chan struct{}, 1)}
	w.within = func(s *corev1.Service) bool {
		return (len(source.Namespaces) == 0 || slices.Contains(source.Namespaces, s.Namespace)) && selector.Matches(labels.Set(s.Labels))
	}
	e := w.election
	e.calls, e.namespace, e.name, e.identity = w.calls, o.LeaseNamespace, o.LeaseName, o.Identity
	e.fit = w.able
	e.tried = func(verb string, err error) {
		w.troubles.told(right{verb, "leases"}, o.LeaseNamespace, err)
		w.troubles.elected(o.LeaseNamespace, verb, err)
	}
	return w, nil
}

// Elected returns the identity of the last known holder of the Lease, "" for none, and whether it
// is this Writer.
func (w *Writer) Elected() (identity string, mine bool) {
	return w.election.elected(), w.election.mine()
}

// Run writes until the context ends, releases the Lease, and returns the context's error. If the
// source adopts cluster IPs, Run does nothing.
func (w *Writer) Run(ctx context.Context) error {
	if w.adopts {
		<-ctx.Done()
		return ctx.Err()
	}
	elect, stop := context.WithCancel(ctx)
	var electing sync.WaitGroup
	electing.Go(func() { w.election.run(elect) })
	w.work(ctx)
	stop()
	electing.Wait()
	w.running.Wait()
	w.election.release(ctx)
	return ctx.Err()
}

// able reports whether the state needed for writing is known.
func (w *Writer) able() bool {
	select {
	case <-w.o.Allocations.Ready():
		return w.store.InTouch()
	default:
		return false
	}
}

// work handles changes until the context ends.
func (w *Writer) work(ctx context.Context) {
	feed := w.o.Allocations.Watch()
	defer feed.Close()
	defer w.stop()
	// A change that arrives while this host can't write is handled when it can.
	ready := w.o.Allocations.Ready()
	for ctx.Err() == nil {
		for _, key := range w.store.TakeChanged() {
			w.queue.add(key)
		}
		for _, key := range w.takeWoken() {
			w.queue.add(key)
		}
		batch, more := feed.TryNext()
		for i := range batch {
			w.queue.add(batch[i].Value.Asked.Key)
		}
		if len(batch) > 0 {
			continue
		}
		again, waits := w.look(ctx)
		if waits && again <= 0 {
			continue
		}
		w.rest(ctx, ready, more, again, waits)
		select {
		case <-ready:
			ready = nil
		default:
		}
	}
}

// rest waits for a change or until again has passed.
func (w *Writer) rest(ctx context.Context, ready, more <-chan struct{}, again time.Duration, waits bool) {
	var due <-chan time.Time
	if waits {
		timer := time.NewTimer(again)
		defer timer.Stop()
		due = timer.C
	}
	select {
	case <-ctx.Done():
	case <-w.store.Changed():
	case <-w.election.change:
	case <-w.wake:
	case <-ready:
	case <-more:
	case <-due:
	}
}

// look handles the queue as far as possible, with at most one request. It returns the time until
// the next call. Waits means that work is left.
func (w *Writer) look(ctx context.Context) (again time.Duration, waits bool) {
	leads := w.election.mine()
	if leads && !w.leads { // the previous writer may have left work unfinished
		for key := range w.entries {
			w.queue.add(key)
		}
	}
	w.leads = leads
	if !leads {
		for key, more := w.queue.next(); more; key, more = w.queue.next() {
			s := w.observe(key)
			w.compare(key, &s)
			w.queue.drop()
		}
		w.events.clear()
		return w.tellDiffering()
	}
	w.agree()
	if !w.able() {
		return 0, false
	}
	for key, more := w.queue.next(); more; key, more = w.queue.next() {
		sent, wait := w.lookAt(ctx, key)
		switch {
		case sent:
			return 0, true
		case wait > 0:
			return wait, true
		}
	}
	again, waits = w.seek(ctx)
	if waits && again <= 0 {
		return again, waits
	}
	if next, more := w.announce(ctx); !waits || more && next < again {
		return next, more
	}
	return again, waits
}

// stop ends all waits and timers.
func (w *Writer) stop() {
	for _, e := range w.entries {
		e.settle()
	}
}

// later adds a Service to the queue after some time.
func (w *Writer) later(key vip.ServiceKey, e *entry, after time.Duration) {
	if e.timer != nil {
		e.timer.Stop()
	}
	e.timer = time.AfterFunc(after, func() { w.wakeFor(key) })
}

// wakeFor adds a Service to the queue. It is safe for concurrent use.
func (w *Writer) wakeFor(key vip.ServiceKey) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.woken[key] = struct{}{}
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *Writer) takeWoken() []vip.ServiceKey {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := make([]vip.ServiceKey, 0, len(w.woken))
	for key := range w.woken {
		out = append(out, key)
	}
	clear(w.woken)
	return out
}
