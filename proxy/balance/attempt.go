package balance

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

// MaxAttempts bounds the number of backends that one client tries without a wait in the queue.
const MaxAttempts = 8

// Attempt finds a backend for one client: each call of Start returns another one. Several goroutines may try
// backends for a client at the same time.
type Attempt struct {
	Client netip.AddrPort // doesn't change after the first call of Start

	mu      sync.Mutex // guards the fields, except those that don't change
	running int        // backends that are tried at present
	waiting bool       // one goroutine waits in the queue; no backend is tried
	over    bool       // the client is connected, or refused

	f     *Frontend
	hash  uint64
	from  *backends // the set that the indexes in tried refer to
	tried []int
	claim *affine
	table *affinity // of claim

	service  *Service
	entered  bool        // counted in service
	source   netip.Addr  // counted in the sources of f; zero: none
	mayWait  bool        // in the queue of service
	patience *time.Timer // once it has waited
	arrival  uint64      // its number in the queue; 0: it never waited

	refusals []refusal
	lost     *Endpoint // failed or slow; nil once another one is tried
	tries    int       // since it last waited
	deadline int64     // by Balancer.Now, without the time in the queue; 0: nothing was tried
}

// refusal is a backend to which the client could not be connected. Until that time, by Balancer.Now,
// the client doesn't try it again.
type refusal struct {
	by    *Endpoint
	until int64
}

// never is a time by Balancer.Now that doesn't come.
const never = math.MaxInt64

// refusalTime is how long a client that waits doesn't try a backend again that wasn't ejected. It
// bounds how long the clients behind it wait for a backend that works again.
const refusalTime = passive.EjectMost

// Attempt returns the attempt of a client that Admit has counted in s, and that may wait in its queue or not. The
// refused have refused what the client sent. The caller ends the attempt after the client's connection.
func (f *Frontend) Attempt(client netip.AddrPort, s *Service, mayWait bool, refused ...*Endpoint) *Attempt {
	f.wakened()
	a := &Attempt{f: f, Client: client, service: s, mayWait: mayWait}
	for _, e := range refused {
		a.refusals = append(a.refusals, refusal{e, never})
		a.lost = e
	}
	return a
}

// refusedUntil returns when the client may try e; 0 if it didn't refuse.
func (a *Attempt) refusedUntil(e *Endpoint) int64 {
	for _, r := range slices.Backward(a.refusals) {
		if r.by == e {
			return r.until
		}
	}
	return 0
}

// next returns a backend that was not tried yet and isn't full, or nil. Ejected backends are used
// only if no other is left, also none to wait for. The connection counts in State.Open from here on.
func (a *Attempt) next() *Endpoint {
	b := a.f.backends.Load()
	if b != a.from {
		a.from, a.tried = b, a.tried[:0]
		now := a.f.balancer.Now()
		for _, r := range a.refusals {
			if i := slices.Index(b.usable, r.by); i >= 0 && r.until > now {
				a.tried = append(a.tried, i)
			}
		}
		a.hash = pick.Hash(a.Client, b.spec.SchedulerPort)
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
	claim, addr := b.affinity.claim(a.Client.Addr(), func(addr netip.AddrPort) bool {
		i, ok := b.usable.index(addr)
		if !ok || slices.Contains(a.tried, i) || b.usable[i].State.Full() || !b.usable[i].Passive.Admits(a.f.balancer.Now(), b.relay.ConnectTimeout) {
			return false
		}
		a.tried = append(a.tried, i)
		b.usable[i].State.Open.Add(1)
		return true
	}, func() (netip.AddrPort, bool) {
		i := a.pick(b)
		if i < 0 {
			return netip.AddrPort{}, false
		}
		return b.usable[i].Addr, true
	})
	a.claim, a.table = claim, b.affinity
	return b.all.of(addr)
}

// ErrMustWait means that the client has to wait for a place, and the caller can't.
var ErrMustWait = errors.New("the client must wait for a place")

// ErrElsewhere means that another goroutine connects the client, or has done so.
var ErrElsewhere = errors.New("the client is connected elsewhere")

// Start returns the next backend to try, where the client has a place until Try or Leave. The client doesn't wait in the
// queue while another backend may still answer. If the caller can't wait, Start returns ErrMustWait instead, and a further
// call may. If no backend is left, the error may be a Reason. Of simultaneous calls, one returns the outcome; the others
// return ErrElsewhere.
func (a *Attempt) Start(canWait bool) (*Endpoint, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	began := a.f.balancer.Now()
	if a.waiting || a.over || a.tries >= MaxAttempts || a.deadline != 0 && began >= a.deadline {
		return nil, a.conclude(Unreachable)
	}
	var e *Endpoint
	var err error
	if a.running > 0 {
		var why Reason
		e, why = a.take()
		err = why.err()
	} else {
		e, err = a.place(canWait)
		if errors.Is(err, ErrMustWait) {
			return nil, err
		}
		if a.deadline == 0 {
			a.deadline = a.f.balancer.Now() + int64(max(a.f.balancer.connectBudget, a.f.backends.Load().relay.ConnectTimeout))
		} else {
			a.deadline += a.f.balancer.Now() - began
		}
	}
	if err != nil {
		return nil, a.conclude(err)
	}
	a.tries++
	a.running++
	return e, nil
}

// conclude returns the error with which the search ends, or ErrElsewhere if it goes on without the
// caller. The caller holds mu.
func (a *Attempt) conclude(err error) error {
	if a.over || a.running > 0 || a.waiting {
		return ErrElsewhere
	}
	a.over = true
	return err
}

// Try calls try, which connects the client to a backend of Start. Without success, also after a panic, it gives e's place
// to others.
func (a *Attempt) Try(e *Endpoint, try func() (bool, error)) (ok bool, err error) {
	defer func() {
		if !ok {
			a.mu.Lock()
			a.running--
			a.remember(e)
			a.mu.Unlock()
			e.Leave()
			a.service.wake()
		}
	}()
	return try()
}

// Timeout returns how long a connect that began then may take.
func (a *Attempt) Timeout(began int64) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return min(a.f.Settings().ConnectTimeout, time.Duration(a.deadline-began))
}

// Late takes in that a backend is slow to answer, so that another one is tried. It returns false if the client is connected
// meanwhile.
func (a *Attempt) Late(e *Endpoint) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.over {
		return false
	}
	a.lost = e
	a.remember(e)
	return true
}

// Win calls connect, unless the client is connected already. If connect returns true, the backend serves the client, and
// the client's affinity moves to it. Win returns what connect does. No other backend wins meanwhile.
func (a *Attempt) Win(e *Endpoint, connect func() (bool, error)) (won bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.over {
		return false, nil
	}
	if won, err = connect(); won {
		a.over = true
		a.stay(e)
	}
	return won, err
}

// Stay takes in that a backend has answered a client that it serves without Win. The client's affinity moves to it.
func (a *Attempt) Stay(e *Endpoint) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.stay(e)
}

func (a *Attempt) stay(e *Endpoint) {
	if a.claim != nil {
		a.table.move(a.claim, e.Addr)
	}
}

// Fail ends the search with an error, or returns ErrElsewhere if it goes on without the caller.
func (a *Attempt) Fail(err error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.conclude(err)
}

// remember excludes a backend to which the client could not be connected: if it is ejected, for its
// backoff. The caller holds mu.
func (a *Attempt) remember(e *Endpoint) {
	until := e.Passive.Avoid().Load()
	if until == 0 {
		until = a.f.balancer.Now() + int64(refusalTime)
	}
	a.refusals = append(a.refusals, refusal{e, until})
}

// pick asks the scheduler, which counts the connection, and marks the result as tried.
func (a *Attempt) pick(b *backends) int {
	now := a.f.balancer.Now()
	i := b.picker.Pick(a.hash, now, a.tried)
	for i >= 0 && !b.usable[i].Passive.Admits(now, b.relay.ConnectTimeout) { // another client tries it
		b.usable[i].State.Open.Add(-1)
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
		a.lost.Passive.Retried()
		a.lost = nil
	}
	return i
}

// Failed records that the backend refused the client or did not answer.
func (a *Attempt) Failed(e *Endpoint, err error) {
	e.Passive.Refused(err)
	a.mu.Lock()
	a.lost = e
	a.mu.Unlock()
}

// End releases the client's affinity and its place in the service after its connection.
func (a *Attempt) End() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.over = true
	a.exit()
	a.leaveSource()
	if a.patience != nil {
		a.patience.Reset(0) // a goroutine that waits ends, too
	}
	if a.claim != nil {
		a.table.release(a.claim)
		a.claim = nil
	}
}
