package proxy

import (
	"errors"
	"math"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/ironvip/ironvip/proxy/passive"
	"github.com/ironvip/ironvip/proxy/pick"
)

// maxAttempts bounds the number of backends that one client tries without a wait in the queue.
const maxAttempts = 8

// attempt connects one client: each call of next returns another backend. Several goroutines may try
// backends for a TCP client at the same time; see dialing.
type attempt struct {
	mu      sync.Mutex // guards the fields, except those that don't change
	running int        // backends that are tried at present
	waiting bool       // one goroutine waits in the queue; no backend is tried
	over    bool       // the client is connected, or refused
	slow    []*dialing // those after which another backend was tried

	f      *frontend
	client netip.AddrPort
	to     netip.AddrPort // the address that the client connected to; only with TCP
	hash   uint64
	from   *backends // the set that the indexes in tried refer to
	tried  []int
	claim  *affine
	table  *affinity // of claim

	service  *service
	entered  bool        // counted in service
	mayWait  bool        // in the queue of service
	patience *time.Timer // once it has waited
	arrival  uint64      // its number in the queue; 0: it never waited

	refusals []refusal
	lost     *endpoint // failed or slow; nil once another one is tried
	tries    int       // since it last waited
	deadline int64     // by Target.now, without the time in the queue; 0: nothing was tried
}

// refusal is a backend to which the client could not be connected. Until that time, by Target.now,
// the client doesn't try it again.
type refusal struct {
	by    *endpoint
	until int64
}

// never is a time by Target.now that doesn't come.
const never = math.MaxInt64

// refusalTime is how long a client that waits doesn't try a backend again that wasn't ejected. It
// bounds how long the clients behind it wait for a backend that works again.
const refusalTime = passive.EjectMost

// attempt returns the attempt of a client that admit has counted in s. The caller ends it after the
// client's connection.
func (f *frontend) attempt(client netip.AddrPort, s *service) *attempt {
	return &attempt{f: f, client: client, service: s}
}

// exclude excludes backends that have refused what the client sent, before the first call of next.
func (a *attempt) exclude(refused []*endpoint) {
	for _, e := range refused {
		a.refusals = append(a.refusals, refusal{e, never})
		a.lost = e
	}
}

// refusedUntil returns when the client may try e; 0 if it didn't refuse.
func (a *attempt) refusedUntil(e *endpoint) int64 {
	for _, r := range slices.Backward(a.refusals) {
		if r.by == e {
			return r.until
		}
	}
	return 0
}

// next returns a backend that was not tried yet and isn't full, or nil. Ejected backends are used
// only if no other is left, also none to wait for. The connection counts in State.Open from here on.
func (a *attempt) next() *endpoint {
	b := a.f.backends.Load()
	if b != a.from {
		a.from, a.tried = b, a.tried[:0]
		now := a.f.target.now()
		for _, r := range a.refusals {
			if i := slices.Index(b.usable, r.by); i >= 0 && r.until > now {
				a.tried = append(a.tried, i)
			}
		}
		a.hash = pick.Hash(a.client, b.withPort)
	}
	if len(b.usable) == 0 {
		return nil
	}
	if b.affinity == nil || a.claim != nil {
		i := a.pick(b)
		if i < 0 {
			return nil
		}
		return b.usable[i]
	}
	claim, addr := b.affinity.claim(a.client.Addr(), func(addr netip.AddrPort) bool {
		i, ok := b.usable.index(addr)
		if !ok || slices.Contains(a.tried, i) || b.usable[i].state.Full() || !b.usable[i].passive.Admits(a.f.target.now(), b.relay.ConnectTimeout) {
			return false
		}
		a.tried = append(a.tried, i)
		b.usable[i].state.Open.Add(1)
		return true
	}, func() (netip.AddrPort, bool) {
		i := a.pick(b)
		if i < 0 {
			return netip.AddrPort{}, false
		}
		return b.usable[i].addr, true
	})
	a.claim, a.table = claim, b.affinity
	return b.all.of(addr)
}

// errMustWait means that the client has to wait for a place, and the caller can't.
var errMustWait = errors.New("the client must wait for a place")

// errElsewhere means that another goroutine connects the client, or has done so.
var errElsewhere = errors.New("the client is connected elsewhere")

// connect calls try for backends with a place until try succeeds. It returns the endpoint, or an
// error if none is left, which may be a reason. An error of try ends the search: other backends
// would fail, too. Of simultaneous calls, one returns the outcome; the others return errElsewhere.
func (a *attempt) connect(try func(*endpoint) (bool, error)) (*endpoint, error) {
	for {
		e, err := a.start(true)
		if err != nil {
			return nil, err
		}
		if connected, err := a.attemptAt(e, try); connected {
			return e, nil
		} else if err != nil {
			return nil, a.fail(err)
		}
	}
}

// start returns the next backend to try. The client doesn't wait in the queue while another backend
// may still answer. If the caller can't wait, start returns errMustWait instead, and a further call
// may.
func (a *attempt) start(canWait bool) (*endpoint, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	began := a.f.target.now()
	if a.waiting || a.over || a.tries >= maxAttempts || a.deadline != 0 && began >= a.deadline {
		return nil, a.conclude(unreachable)
	}
	var e *endpoint
	var err error
	if a.running > 0 {
		var why reason
		e, why = a.take()
		err = why.err()
	} else {
		e, err = a.place(canWait)
		if errors.Is(err, errMustWait) {
			return nil, err
		}
		if a.deadline == 0 {
			a.deadline = a.f.target.now() + int64(max(a.f.target.opts.ConnectBudget, a.f.backends.Load().relay.ConnectTimeout))
		} else {
			a.deadline += a.f.target.now() - began
		}
	}
	if err != nil {
		return nil, a.conclude(err)
	}
	a.tries++
	a.running++
	return e, nil
}

// conclude returns the error with which the search ends, or errElsewhere if it goes on without the
// caller. The caller holds mu.
func (a *attempt) conclude(err error) error {
	if a.over || a.running > 0 || a.waiting {
		return errElsewhere
	}
	a.over = true
	return err
}

// attemptAt calls try. Without success, also after a panic, it gives e's place to others.
func (a *attempt) attemptAt(e *endpoint, try func(*endpoint) (bool, error)) (connected bool, err error) {
	defer func() {
		if !connected {
			a.lose(e)
		}
	}()
	return try(e)
}

// lose gives the place of a backend that the client was not connected to to others.
func (a *attempt) lose(e *endpoint) {
	a.mu.Lock()
	a.running--
	a.remember(e)
	a.mu.Unlock()
	e.leave()
	a.service.wake()
}

// fail ends the search with an error, or returns errElsewhere if it goes on without the caller.
func (a *attempt) fail(err error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.conclude(err)
}

// remember excludes a backend to which the client could not be connected: if it is ejected, for its
// backoff. The caller holds mu.
func (a *attempt) remember(e *endpoint) {
	until := e.passive.Avoid().Load()
	if until == 0 {
		until = a.f.target.now() + int64(refusalTime)
	}
	a.refusals = append(a.refusals, refusal{e, until})
}

// pick asks the scheduler, which counts the connection, and marks the result as tried.
func (a *attempt) pick(b *backends) int {
	now := a.f.target.now()
	i := b.picker.Pick(a.hash, now, a.tried)
	for i >= 0 && !b.usable[i].passive.Admits(now, b.relay.ConnectTimeout) { // another client tries it
		b.usable[i].state.Open.Add(-1)
		i = b.picker.Pick(a.hash, now, a.tried)
	}
	if i < 0 && !(a.waits() && a.awaits(b, now)) {
		i = b.picker.Pick(a.hash, never, a.tried)
	}
	if i < 0 {
		return i
	}
	a.tried = append(a.tried, i)
	if a.lost != nil {
		a.lost.passive.Retried()
		a.lost = nil
	}
	return i
}

// works records that the backend serves the client. The client's affinity moves to it.
func (a *attempt) works(e *endpoint) {
	if a.claim != nil {
		a.table.move(a.claim, e.addr)
	}
}

// failed records that the backend refused the client or did not answer.
func (a *attempt) failed(e *endpoint, err error) {
	e.passive.Refused(err)
	a.mu.Lock()
	a.lost = e
	a.mu.Unlock()
}

// end releases the client's affinity and its place in the service after its connection.
func (a *attempt) end() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.over = true
	a.exit()
	if a.patience != nil {
		a.patience.Reset(0) // a goroutine that waits ends, too
	}
	if a.claim != nil {
		a.table.release(a.claim)
		a.claim = nil
	}
}
