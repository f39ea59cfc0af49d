//go:build system

package fleet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ironvip/ironvip/api/client"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/test/consultest"
	"github.com/ironvip/ironvip/test/wait"
)

// scenario runs one scenario on the lab, and then checks its whole history. After a failure no more
// scenarios run, because the lab remains broken.
func (l *lab) scenario(t *testing.T, name string, run func()) {
	l.scenarios++
	passed := t.Run(name, func(t *testing.T) {
		l.ran++
		parent := l.t
		l.t = t
		defer func() { l.t = parent }()
		run()
		l.rest()
	})
	if !passed {
		t.FailNow()
	}
}

// operations is the minimum number of requests of each lab, over all of its scenarios.
const operations = 1000

// enough checks that the scenarios have sent enough requests for a meaningful result, unless only
// some of them were selected.
func (l *lab) enough() {
	l.t.Helper()
	if l.ran < l.scenarios {
		return
	}
	h := l.history()
	acknowledged := 0
	for _, o := range h.Ops {
		if o.Outcome == Acknowledged {
			acknowledged++
		}
	}
	least := operations * l.size() / l.rarely()
	if len(h.Ops) < least || acknowledged < least/3 || len(h.Views) < 100 {
		l.t.Errorf("%d requests, %d of them acknowledged, and %d views are too few", len(h.Ops), acknowledged, len(h.Views))
	}
}

// during sends requests to all agents while f runs and until more further ones are sent.
func (l *lab) during(more int, f func()) {
	l.t.Helper()
	load := l.load(l.agents...)
	f()
	l.requests(more)
	load.end()
}

// requests waits until the given number of further requests has been sent, or fewer in a large
// fleet.
func (l *lab) requests(more int) {
	l.t.Helper()
	more = more * l.size() / l.rarely()
	until := len(l.history().Ops) + more
	l.eventually(fmt.Sprintf("%d more requests", more), func(context.Context) error {
		if n := len(l.history().Ops); n < until {
			return fmt.Errorf("%d are still to be made", until-n)
		}
		return nil
	})
}

func TestOneConsul(t *testing.T) {
	t.Parallel()
	// The cooldown is longer than the test: no released address may ever be seen with a second
	// service.
	l := newLab(t, shape{servers: 1, reuse: time.Hour}).record()
	rnd := rand.New(rand.NewPCG(seed, 1))

	l.scenario(t, "all have the same VIPs", l.sameVIPs)
	l.scenario(t, "a token works on every host until it is revoked", l.tokenOnEveryHost)
	l.scenario(t, "one name by several hosts at once", func() { l.oneName(20) })
	l.scenario(t, "agents are killed while they allocate", func() { l.killedAllocating(20, rnd) })
	l.scenario(t, "the elected allocator is killed", func() {
		l.during(50, func() {
			first := l.elected(l.agents...)
			first.proc.Kill()
			l.electedInstead(first)
			l.start(first)
		})
	})
	l.scenario(t, "the elected allocator is stalled for longer than its session", l.stalledLeader)
	l.scenario(t, "a host is cut off", func() {
		l.during(50, func() {
			a := l.agents[rnd.IntN(len(l.agents))]
			l.cut(a)
			l.answers(a, 5)
			l.withoutConsul(a)
			l.requests(100)
			l.answers(a, 5)
			l.heal(a)
		})
	})
	l.scenario(t, "Consul is away", l.consulAway)
	l.scenario(t, "Consul comes and goes", l.consulComesAndGoes)
	l.enough()
}

func TestConsulCluster(t *testing.T) {
	t.Parallel()
	// Released addresses are soon assigned to others.
	l := newLab(t, shape{servers: 3, reuse: 3 * time.Second}).record()
	rnd := rand.New(rand.NewPCG(seed, 2))

	l.scenario(t, "Consul's leader is killed", func() { l.serversKilled(3, (*consultest.Cluster).Leader) })
	l.scenario(t, "another Consul server is killed", func() {
		l.serversKilled(1, func(c *consultest.Cluster) *consultest.Server { return c.Followers()[0] })
	})
	l.scenario(t, "Consul's leader is stalled", func() {
		l.during(100, func() {
			leader := l.cluster.For(l.t).Leader()
			leader.Pause()
			l.requests(100)
			leader.Continue()
		})
	})
	l.scenario(t, "a host is cut off", func() {
		l.during(50, func() {
			a := l.agents[rnd.IntN(len(l.agents))]
			l.cut(a)
			l.requests(100)
			l.heal(a)
		})
	})
	l.scenario(t, "everything at random", func() { l.everything(15, rnd) })
	l.enough()
}

// A large fleet has the guarantees of a small one.
func TestThirtyAgents(t *testing.T) {
	t.Parallel()
	l := newLab(t, shape{agents: 30, servers: 3, reuse: time.Hour}).record()
	rnd := rand.New(rand.NewPCG(seed, 4))

	l.scenario(t, "all have the same VIPs", l.sameVIPs)
	l.scenario(t, "one name by several hosts at once", func() { l.oneName(4) })
	l.scenario(t, "agents are killed while they allocate", func() { l.killedAllocating(5, rnd) })
	l.scenario(t, "Consul's leader is killed", func() { l.serversKilled(1, (*consultest.Cluster).Leader) })
	l.scenario(t, "Consul comes and goes", l.consulComesAndGoes)
	l.scenario(t, "everything at random", func() { l.everything(10, rnd) })
	l.enough()
}

// sameVIPs makes requests, and then asks services on every host.
func (l *lab) sameVIPs() {
	l.during(150, func() {})
	l.settles()
	for _, a := range l.agents {
		l.answers(a, 20)
	}
}

// killedAllocating kills that many agents, one after the other, while they allocate.
func (l *lab) killedAllocating(kills int, rnd *rand.Rand) {
	l.during(50, func() {
		for i := range kills {
			l.killAllocating(l.agents[rnd.IntN(len(l.agents))], i, rnd)
		}
	})
}

// stalledLeader stalls the elected allocator until another one is elected.
func (l *lab) stalledLeader() {
	l.during(50, func() {
		first := l.elected(l.agents...)
		l.must("stall", first.proc.Pause())
		l.electedInstead(first)
		l.requests(50)
		l.must("revive", first.proc.Resume())
	})
	l.elected(l.agents...)
}

// consulComesAndGoes kills all servers of Consul, three times.
func (l *lab) consulComesAndGoes() {
	l.during(50, func() {
		for range 3 {
			l.takeConsul()
			l.requests(20)
			l.bringConsul()
			l.requests(20)
		}
	})
}

// serversKilled kills one of Consul's servers, several times. Every agent writes through the
// others.
func (l *lab) serversKilled(times int, choose func(*consultest.Cluster) *consultest.Server) {
	l.during(100, func() {
		for range times {
			l.requests(30)
			s := choose(l.cluster.For(l.t))
			s.Kill()
			l.allWrite(l.agents)
			l.requests(30)
			s.Start()
		}
	})
}

// allWrite waits until each of the agents has acknowledged a registration.
func (l *lab) allWrite(agents []*agent) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), maxWait)
	defer cancel()
	var writing sync.WaitGroup
	defer writing.Wait()
	for _, a := range agents {
		writing.Go(func() {
			if err := wait.Poll(ctx, func() error {
				_, err := l.put(ctx, a, "written-by-"+a.name, Condition{})
				return err
			}); err != nil {
				l.t.Errorf("%s: no write is acknowledged within %s: %v", a.name, maxWait, err)
			}
		})
	}
}

// everything kills, stalls and cuts off agents, and kills servers of Consul.
func (l *lab) everything(rounds int, rnd *rand.Rand) {
	l.during(100, func() {
		for range rounds {
			l.requests(10 + rnd.IntN(20))
			a := l.agents[rnd.IntN(len(l.agents))]
			switch rnd.IntN(4) {
			case 0:
				a.proc.Kill()
				l.requests(rnd.IntN(10))
				l.start(a)
			case 1:
				l.must("stall", a.proc.Pause())
				l.requests(rnd.IntN(20))
				l.must("revive", a.proc.Resume())
			case 2:
				l.cut(a)
				l.requests(rnd.IntN(20))
				l.heal(a)
			case 3:
				s := l.servers[rnd.IntN(len(l.servers))]
				s.Kill()
				l.requests(rnd.IntN(20))
				s.Start()
			}
		}
	})
}

// killAllocating registers some services at once through an agent, and kills it meanwhile at a
// random time.
func (l *lab) killAllocating(a *agent, round int, rnd *rand.Rand) {
	l.t.Helper()
	var done sync.WaitGroup
	for i := range 4 {
		done.Go(func() {
			l.put(context.Background(), a, fmt.Sprintf("victim-%d-%d", round, i), Condition{})
		})
	}
	time.Sleep(time.Duration(rnd.Int64N(int64(20 * time.Millisecond)))) // a random time
	a.proc.Kill()
	done.Wait()
	l.requests(rnd.IntN(5))
	l.start(a)
}

// oneName registers names through all hosts at the same time: one of them wins, and the others get
// an error.
func (l *lab) oneName(names int) {
	decided := names
	for i := range names {
		name := fmt.Sprintf("contested-%d", i)
		var together, done sync.WaitGroup
		together.Add(1)
		errs := make([]error, len(l.agents))
		ops := make([]Op, len(l.agents))
		for j, a := range l.agents {
			done.Go(func() {
				together.Wait()
				ops[j], errs[j] = l.put(context.Background(), a, name, Condition{Absent: true})
			})
		}
		together.Done()
		done.Wait()
		winners := 0
		for _, err := range errs {
			var e *client.Error
			switch {
			case err == nil:
				winners++
			case !errors.As(err, &e) || e.Status != http.StatusPreconditionFailed && e.Status != http.StatusConflict && !late(err):
				l.t.Errorf("%s: a loser gets %v, want 409 or 412", name, err)
			}
		}
		if winners == 0 && slices.ContainsFunc(errs, late) {
			decided-- // the check of the whole history covers its outcome
		} else if winners != 1 {
			l.t.Errorf("%s: %d winners: %v", name, winners, ops)
		}
	}
	if decided < names/2 {
		l.t.Errorf("of %d names %d were decided in time", names, decided)
	}
}

// late reports whether an answer is missing, or states that the store's answer is. This happens
// occasionally on a machine that stands still for seconds.
func late(err error) bool {
	var e *client.Error
	return unanswered(err) || errors.As(err, &e) && e.Code == v1.CodeStoreUnavailable
}

// unanswered reports whether a running agent gave no answer in time, or stopped waiting for the
// request.
func unanswered(err error) bool {
	var e *client.Error
	return errors.As(err, &e) && e.Status == 0
}

// withoutConsul checks that an agent without Consul refuses registrations with the expected error,
// and accepts an override. It returns the service with the backend that it has overridden, and the
// new state; "" if no service has a backend.
func (l *lab) withoutConsul(a *agent) (service string, state int) {
	l.t.Helper()
	ask := func(write func() error) error {
		err := write()
		for tries := 1; tries < 3 && unanswered(err); tries++ {
			err = write() // the machine may have stalled; an agent that is too slow is so each time
		}
		return err
	}
	err := ask(func() error {
		_, err := l.put(context.Background(), a, "refused-"+a.name, Condition{})
		return err
	})
	var e *client.Error
	if !errors.As(err, &e) || e.Status != http.StatusServiceUnavailable || e.Code != v1.CodeStoreUnavailable || e.Hint == "" {
		l.t.Errorf("%s without Consul: a registration is answered by %+v, want 503 %s with a hint", a.name, err, v1.CodeStoreUnavailable)
	}
	v, _, err := l.look(context.Background(), a, client.Wait{})
	l.must(a.name+": its services", err)
	for _, name := range slices.Sorted(maps.Keys(v.Services)) {
		s := v.Services[name]
		if s.Value == NoBackend { // its state is unknown
			continue
		}
		state := (s.State + 1) % len(States)
		var o Op
		err := ask(func() (err error) { o, err = l.setState(context.Background(), a, name, state); return err })
		switch {
		case saysNotFound(err): // a client has removed the backend in the meantime
			continue
		case err != nil || o.Answer != "200, local":
			l.t.Errorf("%s without Consul: an override is answered by %q, %v, want one that is local", a.name, o.Answer, err)
		}
		return name, state
	}
	return "", 0
}

// saysNotFound reports whether an answer states that the service or backend doesn't exist.
func saysNotFound(err error) bool {
	var e *client.Error
	return errors.As(err, &e) && e.Code == v1.CodeNotFound
}

// takeConsul kills all servers of Consul.
func (l *lab) takeConsul() {
	for _, s := range l.servers {
		s.Kill()
	}
	l.away.Add(1)
}

// bringConsul starts them again.
func (l *lab) bringConsul() {
	l.away.Add(1)
	for _, s := range l.servers {
		s.Start()
	}
}

// consulAway stops Consul: reads and traffic continue, registrations are refused, overrides take
// effect on their agent, and an agent that starts serves its last known state.
func (l *lab) consulAway() {
	l.during(20, func() {})
	l.settles()
	before, err := l.end()
	l.must("the end", err)
	victim := 1
	l.remembers(l.agents[victim])
	l.takeConsul()
	overrides := func(i int) {
		if name, state := l.withoutConsul(l.agents[i]); name != "" {
			s := before.Agents[i].Services[name]
			s.State = state
			before.Agents[i].Services[name] = s
		}
	}
	for i, a := range l.agents {
		overrides(i)
		l.answers(a, 5)
	}
	l.agents[victim].proc.Kill()
	l.start(l.agents[victim])
	l.answers(l.agents[victim], 5)
	overrides(victim)
	for i, a := range l.agents {
		v, _, err := l.look(context.Background(), a, client.Wait{})
		l.must(a.name+": its services", err)
		for name, s := range before.Agents[i].Services {
			if got := v.Services[name]; got.Value != s.Value || got.State != s.State || !slices.Equal(got.VIPs, s.VIPs) {
				l.t.Errorf("%s without Consul: service %s is %+v, was %+v", a.name, name, got, s)
			}
		}
	}
	l.bringConsul()
	l.during(20, func() {})
}
