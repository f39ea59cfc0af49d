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

// WriterOptions are what a Writer depends on. Source, Client, Identity, Services
// and Allocations must be given.
type WriterOptions struct {
	Source *Source            // whose Services they are; what it knows of them is all that the Writer watches
	Client *kubeclient.Client // the Source's will do
	// Identity is this host's name among those that stand for the Lease.
	Identity string
	// LeaseNamespace and LeaseName are the Lease that elects the one host that
	// writes; "" are the defaults. Sources of one cluster that are not each other's
	// stand-ins need each their own: by it they also know what is theirs.
	LeaseNamespace string
	LeaseName      string
	// IPMode is status.loadBalancer.ingress[].ipMode; "" is Proxy.
	IPMode corev1.LoadBalancerIPMode

	Services    table.Reader[vip.ServiceKey, vip.Service] // of all sources: whose a key is
	Allocations table.Reader[vip.ServiceKey, vip.Allocation]
	// Withdrawn waits until this host serves nothing on what a Service had, which
	// the source has taken back or is about to. It must not take what isn't known
	// yet, as at the start, for that. With nil, nobody is waited for.
	Withdrawn func(ctx context.Context, key vip.ServiceKey) error
	Log       *slog.Logger // nil is the default one
}

// Writer tells a cluster the VIPs of its Services. Of each Service it writes the
// ingress of the status and one finalizer, by patches that fail when the object
// has changed meanwhile, and events about it; nothing is written that is there
// already, so a restart or another writer costs no request but, with a selector or
// namespaces, one list of what has left them. It acts only while it
// holds the Lease and the source is in touch: an object that isn't known is never
// taken for one that isn't there.
//
// Requests are sent one at a time, ten a second in the long run. What could not be
// written is tried again with growing pauses, upon the newest state; for want of a
// right, once a minute. What is wrong with writing is among the source's problems.
type Writer struct {
	o       WriterOptions
	store   *objectStore
	source  string // the source's name
	adopts  bool
	selects func(*corev1.Service) bool
	within  func(*corev1.Service) bool // namespaces and selector let it through
	// namespaces are the source's; empty is all.
	namespaces []string

	calls    *calls
	election *election
	pace     *rate.Limiter
	pause    pause
	troubles *troubles

	entries map[vip.ServiceKey]*entry // of Services that there is something to remember of
	queue   queue                     // to be looked at
	events  announcements
	strays  strays
	differs differing
	leads   bool // as of the last look

	running sync.WaitGroup // waits for withdrawals
	mu      sync.Mutex
	woken   map[vip.ServiceKey]struct{}
	wake    chan struct{}
}

// NewWriter returns a Writer that asks nothing before Run. The error names an
// option that can't be right.
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

// newWriter is NewWriter without the requests.
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

// Elected returns the identity of the host that was last seen to hold the Lease,
// "" for none, and whether it is this Writer.
func (w *Writer) Elected() (identity string, mine bool) {
	return w.election.elected(), w.election.mine()
}

// Run writes until the context ends, gives the Lease back, and returns the
// context's error. With a source that adopts cluster IPs it does nothing.
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

// able reports whether enough is known to write anything.
func (w *Writer) able() bool {
	select {
	case <-w.o.Allocations.Ready():
		return w.store.InTouch()
	default:
		return false
	}
}

// work looks at what has changed, until the context ends.
func (w *Writer) work(ctx context.Context) {
	feed := w.o.Allocations.Watch()
	defer feed.Close()
	defer w.stop()
	// A word that comes while nobody may write is looked at later.
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

// rest waits until there is something to look at, or again has passed.
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

// look goes through the queue as far as it may, with one request at most, and
// returns when to go on; waits says that there is something left.
func (w *Writer) look(ctx context.Context) (again time.Duration, waits bool) {
	leads := w.election.mine()
	if leads && !w.leads { // what the former writer has left undone
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

// later has a Service looked at again.
func (w *Writer) later(key vip.ServiceKey, e *entry, after time.Duration) {
	if e.timer != nil {
		e.timer.Stop()
	}
	e.timer = time.AfterFunc(after, func() { w.wakeFor(key) })
}

// wakeFor has a Service looked at. It is safe for concurrent use.
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
