package proxy

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ironvip/ironvip/internal/delayqueue"
	"github.com/ironvip/ironvip/internal/wake"
	"github.com/ironvip/ironvip/vip"
)

// How long an ejected backend is skipped, doubled for each failure in a row. It is short, because a
// backend that still refuses costs the one client that tries it only another attempt.
const (
	ejectFirst = 500 * time.Millisecond
	ejectMost  = 5 * time.Second
	// lostMost is the longest backoff of a backend that accepts connections, and resets them or answers nobody: each
	// client that tries it is lost.
	lostMost = 30 * time.Second
)

// resetsToEject is how many connections in a row a backend must reset before its first byte. It is
// more than one, because a client can cause a reset with its own request.
const resetsToEject = 3

// calmTime is how long a backend must work until the next ejection is short again.
const calmTime = time.Minute

// unseenTime bounds how long a backend stays ejected after the end of its backoff if no client
// tries it, for example because the service has no clients.
const unseenTime = time.Minute

// stage is how far a connection to a backend gets.
type stage uint8

const (
	accepted stage = iota
	closed         // by the backend, in order
	answered       // with a byte
)

// outlier is what the connections of clients show of one address of a service. The endpoints of all
// frontends of the service with this address share it.
//
// One failed connect ejects a backend, and so do resetsToEject early resets in a row, or a streak of
// clients that got no answer (see streak). The scheduler then skips it for a backoff. After that, one
// client at a time tries it: if the connection works, the ejection ends, otherwise it goes on with a
// longer backoff. At most half of the usable backends of a frontend are skipped. The connection of a
// backend that works costs a few atomic operations.
//
// A backend that leaves a connect without an answer for some time is skipped at once, but not yet
// ejected: it is doubted until this connect has an outcome. If it is answered after all, the backend
// was only slow, and nothing is reported.
type outlier struct {
	in  *outliers
	key vip.PassiveKey

	avoid  atomic.Int64 // by Target.now; 0: not ejected; before it: skipped; after it: to be tried
	trying atomic.Bool  // a client tries it; avoid is later meanwhile
	good   atomic.Bool  // the last connection worked, so that another one is no news

	connectTime atomic.Int64 // mean of the last few connects; 0: none was answered yet
	lastConnect atomic.Int64 // when a connect was last answered, by Target.now

	connectFailures, earlyResets, unanswered, retries, ejections atomic.Uint64

	// guarded by outliers.mu
	users    []*endpoint // those with this address
	ejected  bool
	doubted  bool
	witness  bool  // a connect without an answer will show more
	proof    stage // what a connection must reach to end the ejection
	resets   int   // in a row
	backoff  int   // how often in a row it was skipped
	worked   int64
	since    vip.Instant // of the present health
	until    vip.Instant
	reason   string
	reported bool        // ejected, as in the last event
	failed   vip.Instant // when a connection last failed
	failure  string
}

// outliers are the addresses of the backends of all services. Its lock is taken only when what is
// known of one of them changes.
type outliers struct {
	now func() int64

	mu      sync.Mutex
	m       map[vip.PassiveKey]*outlier
	failing map[*outlier]struct{}            // those with a failed connection
	ended   delayqueue.Queue[vip.PassiveKey] // ejections, by the time when they end without a client
	changed map[vip.PassiveKey]struct{}      // rows to write
	wake    wake.Signal                      // of the reporter
}

func newOutliers(now func() int64) *outliers {
	return &outliers{now: now, m: make(map[vip.PassiveKey]*outlier), failing: make(map[*outlier]struct{}), changed: make(map[vip.PassiveKey]struct{}), wake: wake.New()}
}

// join gives a new endpoint of f the outlier of its address.
func (o *outliers) join(e *endpoint, f *frontend, service vip.ServiceKey) {
	o.mu.Lock()
	defer o.mu.Unlock()
	key := vip.PassiveKey{Service: service, Protocol: f.key.Protocol, Addr: e.addr}
	x := o.m[key]
	if x == nil {
		x = &outlier{in: o, key: key}
		o.m[key] = x
	}
	x.users = append(x.users, e)
	e.frontend, e.outlier, e.state.Avoid = f, x, &x.avoid
}

// part ends the use of an outlier by a closed endpoint. It costs O(frontends of the service).
func (o *outliers) part(e *endpoint) {
	o.mu.Lock()
	defer o.mu.Unlock()
	x := e.outlier
	x.users = slices.DeleteFunc(x.users, func(u *endpoint) bool { return u == e })
	if len(x.users) > 0 || o.m[x.key] != x {
		return
	}
	delete(o.m, x.key)
	delete(o.failing, x)
	o.ended.Drop(x.key)
	x.ejected, x.doubted = false, false // what its last connections do has no effect any more
	if x.since != 0 {
		o.changed[x.key] = struct{}{}
		o.wake.Set()
	}
}

// follow takes in the new set of a frontend's backends, and the one before. A backend that is usable again is tried at once:
// its health check passed, or an operator made it ready. If fewer backends are left, ejections end.
func (o *outliers) follow(old, b *backends) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, e := range b.usable {
		if old.usable.of(e.addr) == nil && old.all.of(e.addr) != nil {
			e.outlier.readmit()
		}
	}
	skipped := b.skipped()
	for _, e := range b.usable {
		if 2*skipped <= len(b.usable) {
			return
		}
		if e.outlier.isSkipped() {
			e.outlier.readmit()
			skipped--
		}
	}
}

// skipped returns how many of the usable backends are ejected or doubted. The caller holds outliers.mu.
func (b *backends) skipped() (n int) {
	for _, e := range b.usable {
		if e.outlier.isSkipped() {
			n++
		}
	}
	return n
}

// isSkipped reports whether the backend is ejected or doubted. The caller holds mu.
func (x *outlier) isSkipped() bool { return x.ejected || x.doubted }

// admits reports whether a client may be sent there: it is not ejected, or this client is the one
// that tries it. Others then skip it until the result is known, at most for as long as a connect
// may take.
func (x *outlier) admits(now int64, connectTimeout time.Duration) bool {
	avoid := x.avoid.Load()
	if avoid == 0 {
		return true
	}
	if avoid > now || !x.avoid.CompareAndSwap(avoid, now+int64(connectTimeout+ejectFirst)) {
		return false
	}
	x.trying.Store(true)
	return true
}

// refused takes in a connect that failed.
func (x *outlier) refused(err error) {
	x.connectFailures.Add(1)
	x.in.mu.Lock()
	defer x.in.mu.Unlock()
	x.fail(reasonOfConnect(err), accepted)
}

// reset takes in a connection that the backend reset before its first byte.
func (x *outlier) reset() {
	x.earlyResets.Add(1)
	x.in.mu.Lock()
	defer x.in.mu.Unlock()
	const reason = "reset before the first byte"
	if x.resets++; x.resets >= resetsToEject || x.ejected {
		x.fail(reason, closed)
	} else {
		x.fails(reason)
	}
}

// accepted takes in that the backend has accepted a connect that began then.
func (x *outlier) accepted(began int64) {
	now := x.in.now()
	took, mean := now-began, x.connectTime.Load()
	if mean != 0 {
		took = mean + (took-mean)/8
	}
	x.connectTime.Store(took) // a simultaneous one may be lost
	x.lastConnect.Store(now)
	x.connected()
}

// doubt takes in that a connect which began then has no answer yet. It reports whether the caller is
// to await its outcome, at most for as long as rest, and to call settle after it. Nothing is doubted
// if the backend has answered another connect meanwhile: packets get lost.
func (x *outlier) doubt(began int64, rest time.Duration) (witness bool) {
	if x.lastConnect.Load() > began {
		return false
	}
	x.in.mu.Lock()
	defer x.in.mu.Unlock()
	if x.witness || len(x.users) == 0 {
		return false
	}
	x.witness = true
	if !x.isSkipped() && x.mayEject() {
		x.skip(rest + ejectFirst)
	}
	return true
}

// skip begins a doubt, in which clients skip the backend for that long. The caller holds mu.
func (x *outlier) skip(d time.Duration) {
	x.doubted = true
	x.avoid.Store(x.in.now() + int64(d))
}

// settle takes in that the connect has its outcome, or was given up.
func (x *outlier) settle() {
	x.in.mu.Lock()
	defer x.in.mu.Unlock()
	x.witness = false
	x.trust()
}

// trust ends a doubt. The caller holds mu.
func (x *outlier) trust() {
	if !x.doubted {
		return
	}
	x.doubted = false
	x.avoid.Store(0)
	x.trying.Store(false)
	x.wake()
}

// connected takes in a successful connect. The backend may still reset the connection.
func (x *outlier) connected() {
	if x.avoid.Load() == 0 {
		return
	}
	x.in.mu.Lock()
	defer x.in.mu.Unlock()
	if x.proof == accepted {
		x.readmit()
	}
}

// closed takes in a connection that the backend ended in order, without a byte.
func (x *outlier) closed() {
	if x.avoid.Load() == 0 {
		return
	}
	x.in.mu.Lock()
	defer x.in.mu.Unlock()
	if x.proof <= closed {
		x.readmit()
	}
}

// answered takes in the first byte of a connection's backend.
func (x *outlier) answered() {
	if x.good.Load() {
		return
	}
	x.in.mu.Lock()
	defer x.in.mu.Unlock()
	if len(x.users) == 0 {
		return
	}
	x.readmit()
	x.good.Store(true)
	x.resets = 0
	for _, e := range x.users {
		e.streak = streak{}
	}
	if x.since == 0 {
		x.since = vip.InstantOf(time.Now())
		x.note()
	}
}

// fails takes in a failed connection that ejects nothing yet. It returns false if the backend was
// removed meanwhile. The caller holds mu.
func (x *outlier) fails(reason string) bool {
	if len(x.users) == 0 {
		return false
	}
	x.good.Store(false)
	x.noteFailure()
	x.failed, x.failure = vip.InstantOf(time.Now()), reason
	return true
}

// fail takes in a failed connection, and ejects the backend if it may, until a connection reaches the
// stage. The caller holds mu.
func (x *outlier) fail(reason string, proof stage) {
	if !x.fails(reason) {
		return
	}
	now := x.in.now()
	switch {
	case !x.ejected:
		if x.trust(); !x.mayEject() {
			if x.since != 0 { // healthy until now
				x.since = 0
				x.note()
			}
			return
		}
		if x.ejections.Add(1) == 1 || now-x.worked > int64(calmTime) {
			x.backoff = 0
		}
		x.ejected, x.since = true, vip.InstantOf(time.Now())
	case !x.trying.Swap(false) && x.avoid.Load() > now:
		return // it began before the ejection, or found no other backend
	}
	most := ejectMost
	if proof != accepted {
		most = lostMost
	}
	wait := min(ejectFirst<<min(x.backoff, 10), most)
	x.backoff++
	x.proof = proof
	x.avoid.Store(now + int64(wait))
	x.until = vip.InstantOf(time.Now().Add(wait))
	x.reason = reason
	if x.backoff > 1 {
		x.reason = fmt.Sprintf("%s (%d times)", reason, x.backoff)
	}
	x.in.ended.Set(x.key, time.Now().Add(wait+unseenTime))
	x.note()
}

// mayEject reports whether at most half of the usable backends of each frontend are skipped if this
// one is, too. A frontend may have dropped the backend already. The caller holds mu.
func (x *outlier) mayEject() bool {
	usable := false
	for _, e := range x.users {
		b := e.frontend.backends.Load()
		if b.usable.of(e.addr) != e {
			continue
		}
		usable = true
		if 2*(b.skipped()+1) > len(b.usable) {
			return false
		}
	}
	return usable
}

// readmit ends an ejection or a doubt. The caller holds mu.
func (x *outlier) readmit() {
	if x.trust(); !x.ejected {
		return
	}
	x.ejected, x.proof, x.resets = false, accepted, 0
	x.since, x.until, x.reason = 0, 0, ""
	x.worked = x.in.now()
	x.avoid.Store(0)
	x.trying.Store(false)
	x.in.ended.Drop(x.key)
	x.note()
	x.wake()
}

// service returns the service, which all users are of. The caller holds mu.
func (x *outlier) service() *service { return x.users[0].of }

// wake makes clients in the queue look at the backend again. The caller holds mu.
func (x *outlier) wake() {
	if len(x.users) > 0 {
		x.service().wake()
	}
}

// retried takes in that a client of the backend was sent to another one.
func (x *outlier) retried() {
	x.retries.Add(1)
	x.in.mu.Lock()
	defer x.in.mu.Unlock()
	x.noteFailure()
}

// noteFailure makes the backend part of reports. The caller holds mu.
func (x *outlier) noteFailure() {
	if len(x.users) > 0 { // else it is gone
		x.in.failing[x] = struct{}{}
	}
}

// note marks the row for the next report.
func (x *outlier) note() {
	x.in.changed[x.key] = struct{}{}
	x.in.wake.Set()
}

// row returns the row of an address; false if nothing is known of it. The caller holds mu.
func (o *outliers) row(key vip.PassiveKey) (vip.PassiveHealth, bool) {
	x := o.m[key]
	if x == nil || x.since == 0 {
		return vip.PassiveHealth{}, false
	}
	row := vip.PassiveHealth{PassiveKey: key, Health: vip.Healthy, Since: x.since}
	if x.ejected {
		row.Health, row.Until, row.Reason = vip.Ejected, x.until, x.reason
	}
	return row, true
}

// reasonOfConnect describes a failed connect: "connect: connection refused".
func reasonOfConnect(err error) string {
	op, ok := errors.AsType[*net.OpError](err)
	switch {
	case ok && op.Timeout():
		return "connect: timeout"
	case ok:
		return op.Err.Error()
	}
	return err.Error()
}
