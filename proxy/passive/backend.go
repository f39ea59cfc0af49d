package passive

import (
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/ironvip/ironvip/vip"
)

// How long an ejected backend is skipped, doubled for each failure in a row. It is short, because a
// backend that still refuses costs the one client that tries it only another attempt.
const (
	ejectFirst = 500 * time.Millisecond
	EjectMost  = 5 * time.Second // of a backend that refuses connections
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

// Backend is what the connections of clients show of one address of a service. The endpoints of all
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
type Backend struct {
	table *Table
	key   vip.PassiveKey

	avoid  atomic.Int64 // by Table.now; 0: not ejected; before it: skipped; after it: to be tried
	trying atomic.Bool  // a client tries it; avoid is later meanwhile
	good   atomic.Bool  // the last connection worked, so that another one is no news

	connectTime atomic.Int64 // mean of the last few connects; 0: none was answered yet
	lastConnect atomic.Int64 // when a connect was last answered, by Table.now

	connectFailures, earlyResets, unanswered, retries, ejections atomic.Uint64

	// guarded by Table.mu
	members  []*Member // those with this address
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

// isSkipped reports whether the backend is ejected or doubted. The caller holds mu.
func (x *Backend) isSkipped() bool { return x.ejected || x.doubted }

// Avoid is the time until which clients skip the backend, for schedulers; 0: it is not ejected. After that time, one of
// them tries it.
func (x *Backend) Avoid() *atomic.Int64 { return &x.avoid }

// ConnectTime is the mean of the last few connects; 0: none was answered yet.
func (x *Backend) ConnectTime() time.Duration { return time.Duration(x.connectTime.Load()) }

// Admits reports whether a client may be sent there: it is not ejected, or this client is the one
// that tries it. Others then skip it until the result is known, at most for as long as a connect
// may take.
func (x *Backend) Admits(now int64, connectTimeout time.Duration) bool {
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

// Refused takes in a connect that failed.
func (x *Backend) Refused(err error) {
	x.connectFailures.Add(1)
	x.table.mu.Lock()
	defer x.table.mu.Unlock()
	x.fail(reasonOfConnect(err), accepted)
}

// Reset takes in a connection that the backend reset before its first byte.
func (x *Backend) Reset() {
	x.earlyResets.Add(1)
	x.table.mu.Lock()
	defer x.table.mu.Unlock()
	const reason = "reset before the first byte"
	if x.resets++; x.resets >= resetsToEject || x.ejected {
		x.fail(reason, closed)
	} else {
		x.fails(reason)
	}
}

// Accepted takes in that the backend has accepted a connect that began then.
func (x *Backend) Accepted(began int64) {
	now := x.table.now()
	took, mean := now-began, x.connectTime.Load()
	if mean != 0 {
		took = mean + (took-mean)/8
	}
	x.connectTime.Store(took) // a simultaneous one may be lost
	x.lastConnect.Store(now)
	if x.avoid.Load() == 0 {
		return
	}
	x.table.mu.Lock()
	defer x.table.mu.Unlock()
	if x.proof == accepted {
		x.readmit()
	}
}

// Doubt takes in that a connect which began then has no answer yet. It reports whether the caller is
// to await its outcome, at most for as long as rest, and to call settle after it. Nothing is doubted
// if the backend has answered another connect meanwhile: packets get lost.
func (x *Backend) Doubt(began int64, rest time.Duration) (witness bool) {
	if x.lastConnect.Load() > began {
		return false
	}
	x.table.mu.Lock()
	defer x.table.mu.Unlock()
	if x.witness || len(x.members) == 0 {
		return false
	}
	x.witness = true
	if !x.isSkipped() && x.mayEject() {
		x.doubted = true
		x.avoid.Store(x.table.now() + int64(rest+ejectFirst))
	}
	return true
}

// Settle takes in that the connect has its outcome, or was given up.
func (x *Backend) Settle() {
	x.table.mu.Lock()
	defer x.table.mu.Unlock()
	x.witness = false
	x.trust()
}

// trust ends a doubt. The caller holds mu.
func (x *Backend) trust() {
	if !x.doubted {
		return
	}
	x.doubted = false
	x.avoid.Store(0)
	x.trying.Store(false)
	x.wake()
}

// Closed takes in a connection that the backend ended in order, without a byte.
func (x *Backend) Closed() {
	if x.avoid.Load() == 0 {
		return
	}
	x.table.mu.Lock()
	defer x.table.mu.Unlock()
	if x.proof <= closed {
		x.readmit()
	}
}

// Answered takes in the first byte of a connection's backend.
func (x *Backend) Answered() {
	if x.good.Load() {
		return
	}
	x.table.mu.Lock()
	defer x.table.mu.Unlock()
	if len(x.members) == 0 {
		return
	}
	x.readmit()
	x.good.Store(true)
	x.resets = 0
	for _, m := range x.members {
		m.streak = streak{}
	}
	if x.since == 0 {
		x.since = vip.InstantOf(time.Now())
		x.note()
	}
}

// fails takes in a failed connection that ejects nothing yet. It returns false if the backend was
// removed meanwhile. The caller holds mu.
func (x *Backend) fails(reason string) bool {
	if len(x.members) == 0 {
		return false
	}
	x.good.Store(false)
	x.failed, x.failure = vip.InstantOf(time.Now()), reason
	x.noteFailure()
	return true
}

// fail takes in a failed connection, and ejects the backend if it may, until a connection reaches the
// stage. The caller holds mu.
func (x *Backend) fail(reason string, proof stage) {
	if !x.fails(reason) {
		return
	}
	now := x.table.now()
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
	most := EjectMost
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
	x.table.ended.Set(x.key, time.Now().Add(wait+unseenTime))
	x.note()
}

// mayEject reports whether at most half of the usable backends of each frontend are skipped if this
// one is, too. A frontend may have dropped the backend already. The caller holds mu.
func (x *Backend) mayEject() bool {
	usable := false
	for _, m := range x.members {
		if !m.usable {
			continue
		}
		usable = true
		if 2*(m.frontend.skipped()+1) > len(m.frontend.usable) {
			return false
		}
	}
	return usable
}

// Readmit ends an ejection or a doubt of a backend that is usable again, because its health check passed or an operator
// made it ready: it is tried at once.
func (x *Backend) Readmit() {
	x.table.mu.Lock()
	defer x.table.mu.Unlock()
	x.readmit()
}

// readmit ends an ejection or a doubt. The caller holds mu.
func (x *Backend) readmit() {
	if x.trust(); !x.ejected {
		return
	}
	x.ejected, x.proof, x.resets = false, accepted, 0
	x.since, x.until, x.reason = 0, 0, ""
	x.worked = x.table.now()
	x.avoid.Store(0)
	x.trying.Store(false)
	x.table.ended.Drop(x.key)
	x.note()
	x.wake()
}

// wake makes clients in the queue look at the backend again. The caller holds mu.
func (x *Backend) wake() {
	if len(x.members) > 0 {
		x.service().wake()
	}
}

// service returns the service, which all members are of. The caller holds mu.
func (x *Backend) service() *Service { return x.members[0].service }

// Retried takes in that a client of the backend was sent to another one.
func (x *Backend) Retried() {
	x.retries.Add(1)
	x.table.mu.Lock()
	defer x.table.mu.Unlock()
	x.noteFailure()
}

// noteFailure makes the backend part of Failures. The caller holds Table.mu.
func (x *Backend) noteFailure() {
	if len(x.members) > 0 { // else it is gone
		x.table.failing[x.key] = x
	}
}

// note marks the row for the next report.
func (x *Backend) note() {
	x.table.changed[x.key] = struct{}{}
	x.table.wake.Set()
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
