package agent

import (
	"fmt"
	"sync"
	"time"

	"github.com/ironvip/ironvip/plane/reconcile"
)

// healthGrace is how long the dataplane may be unreachable before the health ports send clients
// to other nodes. The dataplane continues with its last programming, so a short fault is no reason
// to move clients.
const healthGrace = time.Minute

// planeHealth determines whether the dataplane matches the tables.
type planeHealth struct {
	stats func() reconcile.Stats

	mu    sync.Mutex
	since time.Time // start of the present fault, as first seen; zero: no fault
}

func newPlaneHealth(stats func() reconcile.Stats) *planeHealth { return &planeHealth{stats: stats} }

// ok returns false before the first full reconcile, when the reconcile loop hangs, and when the
// dataplane has been unreachable for healthGrace.
func (h *planeHealth) ok() bool {
	s := h.stats()
	h.mu.Lock()
	defer h.mu.Unlock()
	if s.TargetError == "" {
		h.since = time.Time{}
	} else if h.since.IsZero() {
		h.since = time.Now()
	}
	return s.Synced && time.Since(s.LastRound) < healthGrace && (h.since.IsZero() || time.Since(h.since) < healthGrace)
}

// lastProgress returns when the loop of the agent's main work that is furthest behind has last made a
// turn: the reconcile loop, or one of the userspace proxy's loops, which wait for clients and relay TCP.
// They make turns without work, too. The time is zero before the first reconcile.
func (a *agent) lastProgress() time.Time {
	at := a.pipeline.Loop.Stats().LastRound
	if turn := a.planes.LastTurn(); !turn.IsZero() && turn.Before(at) {
		at = turn
	}
	return at
}

// hangsAfter is the time without progress after which the VIPs of the userspace proxy move to other
// hosts. It is twice the longest pause of the reconcile loop, which works on at most 512 frontends at
// a time.
const hangsAfter = 10 * time.Second

// hangs returns an error if the agent runs and its main work makes no progress, as in a deadlock.
func (a *agent) hangs() error {
	at := a.lastProgress()
	if late := time.Since(at); !at.IsZero() && late >= hangsAfter {
		return fmt.Errorf("the dataplane of this agent has made no progress for %s", late.Round(time.Second))
	}
	return nil
}
