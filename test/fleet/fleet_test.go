//go:build system

package fleet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ironvip/ironvip/api/client"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/wait"
)

// onEachStore runs a test with Consul and with etcd.
func onEachStore(t *testing.T, test func(t *testing.T, etcd bool)) {
	t.Parallel()
	t.Run("consul", func(t *testing.T) { t.Parallel(); test(t, false) })
	t.Run("etcd", func(t *testing.T) { t.Parallel(); test(t, true) })
}

// Three agents keep the guarantees of a fleet, with each kind of request through each host, and when the elected
// allocator is killed. Random requests and more faults are in TestOneServer.
// Slow: three agents and a server start, and the guarantees are checked after each scenario.
func TestFleet(t *testing.T) { onEachStore(t, keepsGuarantees) }

func keepsGuarantees(t *testing.T, etcd bool) {
	// The cooldown is longer than the test: no released address may ever be seen with a second
	// service.
	l := newLab(t, shape{servers: 1, etcd: etcd, reuse: time.Hour}).record()
	l.scenario(t, "each request through each host", func() {
		l.eachRequest("first")
		l.settles()
		for _, a := range l.agents {
			l.answers(a, 3)
		}
	})
	l.scenario(t, "a token works on every host until it is revoked", l.tokenOnEveryHost)
	l.scenario(t, "one name by several hosts at once", func() { l.oneName(5) })
	l.scenario(t, "the elected allocator is killed", func() {
		first := l.elected(l.agents...)
		first.proc.Kill()
		l.endSession(first)
		l.electedInstead(first)
		l.allWrite(l.others(first))
		l.start(first)
		l.eachRequest("second")
	})
}

// The store is killed and started again.
// Slow: an agent refuses a registration 2 s after the store was last there, and connects again with a backoff.
func TestFleetWithoutStore(t *testing.T) { onEachStore(t, outlivesTheStore) }

func outlivesTheStore(t *testing.T, etcd bool) {
	l := newLab(t, shape{servers: 1, etcd: etcd, reuse: time.Hour}).record()
	l.scenario(t, "the store is away", func() {
		l.allWrite(l.agents)
		l.settles()
		l.storeAway()
		l.allWrite(l.agents)
	})
}

// eachRequest makes each kind of request through each host. The next host changes what the one before has made.
func (l *lab) eachRequest(round string) {
	l.t.Helper()
	ctx := l.t.Context()
	for i, a := range l.agents {
		next := l.agents[(i+1)%len(l.agents)]
		name := func(what string) string { return fmt.Sprintf("%s-%s-%s", what, a.name, round) }
		var all []string
		for _, what := range []string{"stays", "changes", "drains", "empty", "goes"} {
			all = append(all, name(what))
			_, err := l.put(ctx, a, name(what), Condition{Absent: true})
			l.must("create "+name(what), err)
		}
		more := []string{name("many1"), name("many2"), name("many3")}
		l.must("apply", l.apply(ctx, a, more, true))
		on := map[string]Condition{}
		for _, name := range append(all, more...) {
			l.eventually(next.name+" shows "+name, func(ctx context.Context) (err error) {
				on[name], err = l.shown(ctx, next, name)
				return err
			})
		}
		for what, request := range map[string]func(name string) (Op, error){
			"changes": func(name string) (Op, error) { return l.register(ctx, next, name, on[name]) },
			"drains":  func(name string) (Op, error) { return l.setState(ctx, next, name, 1) },
			"empty":   func(name string) (Op, error) { return l.remove(ctx, next, name, on[name]) },
			"goes":    func(name string) (Op, error) { return l.delete(ctx, next, name, on[name]) },
		} {
			o, err := request(name(what))
			l.must(o.String(), err)
		}
		if _, err := l.put(ctx, a, name("changes"), on[name("changes")]); err == nil {
			l.t.Errorf("%s changes a service that is something else", a.name)
		}
	}
}

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
		l.settles()
	})
	if !passed {
		t.FailNow()
	}
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
			_ = wait.OrError(l.t, maxWait, a.name+": a write is acknowledged", func() error {
				_, err := l.put(ctx, a, "written-by-"+a.name, Condition{})
				return err
			})
		})
	}
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
	expect.AtLeast(l.t, decided, names/2, "of %d names %d were decided in time", names, decided)
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

// withoutStore checks that an agent without the store refuses registrations with the expected error,
// and accepts an override. It returns the service with the backend that it has overridden, and the
// new state; "" if no service has a backend.
func (l *lab) withoutStore(a *agent) (service string, state int) {
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
		l.t.Errorf("%s without the store: a registration is answered by %+v, want 503 %s with a hint", a.name, err, v1.CodeStoreUnavailable)
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
			l.t.Errorf("%s without the store: an override is answered by %q, %v, want one that is local", a.name, o.Answer, err)
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

// takeStore kills all servers of the store.
func (l *lab) takeStore() {
	for _, s := range l.store.servers {
		s.Kill()
	}
	l.away.Add(1)
}

// bringStore starts them again.
func (l *lab) bringStore() {
	l.away.Add(1)
	for _, s := range l.store.servers {
		s.Start()
	}
}

// storeAway stops the store while the fleet is at rest, and starts it again: reads and traffic continue, registrations
// are refused, overrides take effect on their agent, and an agent that starts serves its last known state.
func (l *lab) storeAway() {
	before, err := l.end()
	l.must("the end", err)
	victim := 1
	l.remembers(l.agents[victim])
	l.takeStore()
	overrides := func(i int) {
		if name, state := l.withoutStore(l.agents[i]); name != "" {
			s := before.Agents[i].Services[name]
			s.State = state
			before.Agents[i].Services[name] = s
		}
	}
	for _, a := range l.agents {
		l.answers(a, 5)
	}
	l.agents[victim].proc.Kill()
	l.launch(l.agents[victim])
	overrides(0)
	l.awaitReady(l.agents[victim])
	l.answers(l.agents[victim], 5)
	overrides(victim)
	for i, a := range l.agents {
		v, _, err := l.look(context.Background(), a, client.Wait{})
		l.must(a.name+": its services", err)
		for name, s := range before.Agents[i].Services {
			if got := v.Services[name]; got.Value != s.Value || got.State != s.State || !slices.Equal(got.VIPs, s.VIPs) {
				l.t.Errorf("%s without the store: service %s is %+v, was %+v", a.name, name, got, s)
			}
		}
	}
	l.bringStore()
}
