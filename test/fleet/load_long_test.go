//go:build system && long

package fleet

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"
)

// load is random requests of some clients of each agent, until end is called.
type load struct {
	stop context.CancelFunc
	done sync.WaitGroup
}

// Each client has its own services, and some are shared by all. A client pauses between two
// requests. The own services and the pauses are those in a fleet of three agents.
const (
	ownServices    = 6
	sharedServices = 4
	clients        = 2
	pace           = 150 * time.Millisecond
)

// times returns the factor for the number of clients, which is 1 by default. A larger one helps to
// find rare faults.
func (l *lab) times() int {
	text := os.Getenv("IRONVIP_FLEET_LOAD")
	if text == "" {
		return 1
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		l.t.Fatalf("IRONVIP_FLEET_LOAD=%s is not how many times the load", text)
	}
	return n
}

// load starts requests to these agents.
func (l *lab) load(agents ...*agent) *load {
	ctx, cancel := context.WithCancel(context.Background())
	out := &load{stop: cancel}
	for _, a := range agents {
		for i := range clients * l.times() {
			l.loads++
			rnd := rand.New(rand.NewPCG(l.seed, l.loads))
			out.done.Go(func() { l.client(ctx, a, fmt.Sprintf("%s-%d", a.name, i%clients), rnd) })
		}
	}
	l.t.Cleanup(out.end)
	return out
}

// end ends the requests and waits for the last answers.
func (l *load) end() { l.stop(); l.done.Wait() }

// client makes requests until the context ends.
func (l *lab) client(ctx context.Context, a *agent, own string, rnd *rand.Rand) {
	for ctx.Err() == nil {
		// The request has its own context, so that its outcome is known after the end of the load.
		l.request(context.Background(), a, own, rnd)
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(rnd.Int64N(int64(2*pace) * int64(l.rarely())))):
		}
	}
}

// request makes one request at random.
func (l *lab) request(ctx context.Context, a *agent, own string, rnd *rand.Rand) {
	shared := func() string { return fmt.Sprintf("shared-%d", rnd.IntN(sharedServices)) }
	name := shared()
	if rnd.IntN(3) == 0 {
		name = fmt.Sprintf("%s-%d", own, rnd.IntN(max(ownServices/l.size(), 1)))
	}
	on := Condition{}
	if rnd.IntN(3) == 0 {
		var err error
		if on, err = l.shown(ctx, a, name); err != nil {
			on = Condition{Absent: true}
		}
	}
	switch n := rnd.IntN(20); {
	case n < 5 || on.Absent:
		l.put(ctx, a, name, on)
	case n < 8:
		l.register(ctx, a, name, on)
	case n < 10:
		l.remove(ctx, a, name, on)
	case n < 13:
		l.delete(ctx, a, name, on)
	case n < 17: // half of them reset it
		l.setState(ctx, a, name, max(0, rnd.IntN(4)-1))
	default:
		names := []string{name}
		for other := shared(); len(names) < 3; other = shared() {
			if !slices.Contains(names, other) {
				names = append(names, other)
			}
		}
		l.apply(ctx, a, names, rnd.IntN(3) > 0)
	}
}
