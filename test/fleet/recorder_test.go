//go:build system

package fleet

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ironvip/ironvip/api/client"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/test/seed"
	"github.com/ironvip/ironvip/vip/spec"
)

// recorder sends the requests to a fleet and records their outcome, and what all agents show
// meanwhile.
type recorder struct {
	began time.Time
	value atomic.Int64
	// away counts the stops and starts of Consul. It is odd while no server runs.
	away    atomic.Int64
	seed    uint64       // of the random requests
	loads   uint64       // number of clients so far
	applies atomic.Int64 // number of atomic applies

	mu sync.Mutex
	h  History
}

// record follows the agents until the end of the test.
func (l *lab) record() *lab {
	r := &recorder{began: time.Now(), seed: seed.Of(l.t), h: History{Reuse: l.shape.reuse}}
	ctx, cancel := context.WithCancel(context.Background())
	var watching sync.WaitGroup
	for _, a := range l.agents {
		watching.Go(func() { r.watch(ctx, a, between*time.Duration(l.rarely())) })
	}
	l.t.Cleanup(func() { cancel(); watching.Wait() })
	l.recorder = r
	return l
}

// A large fleet has about as many services as three agents, and a quarter of their requests: each
// change costs something on every host, and all hosts are on this one machine. size is how many
// times more agents than three there are, rarely by how much longer each pauses.
func (l *lab) size() int { return max(len(l.agents)/3, 1) }

func (l *lab) rarely() int {
	if l.size() == 1 {
		return 1
	}
	return 4 * l.size()
}

func (r *recorder) now() time.Duration { return time.Since(r.began) }

// history returns what is recorded so far.
func (r *recorder) history() *History {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.h
	return &h
}

// between is the pause of a watcher between two reads, in a fleet of three agents.
const between = 100 * time.Millisecond

// watch records every state of the agent's services that it sees.
func (r *recorder) watch(ctx context.Context, a *agent, between time.Duration) {
	var last View
	var revision uint64
	for ctx.Err() == nil {
		// A stalled agent must not stall the watcher for long.
		short, cancel := context.WithTimeout(ctx, 3*time.Second)
		v, newest, err := r.look(short, a, client.Wait{For: time.Second, Revision: revision})
		cancel()
		if err == nil {
			revision = newest
			if v.Agent == last.Agent && reflect.DeepEqual(v.Services, last.Services) {
				v.Services = last.Services
			}
			last = v
			r.mu.Lock()
			r.h.Views = append(r.h.Views, v)
			r.mu.Unlock()
		} else {
			revision = 0
		}
		select {
		case <-ctx.Done():
		case <-time.After(between):
		}
	}
}

// look reads what the agent shows.
func (r *recorder) look(ctx context.Context, a *agent, w client.Wait) (View, uint64, error) {
	v := View{Agent: a.run(), From: r.now(), Services: map[string]Seen{}}
	list, err := a.api.Services(ctx, client.List{Limit: 1000, Wait: w})
	v.To = r.now()
	switch {
	case err != nil:
		return v, 0, err
	case list.Next != "":
		return v, 0, errors.New("there are more than 1,000 services")
	case a.run() != v.Agent:
		return v, 0, errors.New("it was started again meanwhile")
	}
	for _, s := range list.Items {
		v.Services[s.Spec.Name] = Seen{Value: weight(s), State: effectiveState(s), VIPs: s.Status.VIPs}
	}
	return v, list.Revision, nil
}

// weight returns the value that a service was registered with: see service.
func weight(s v1.Service) int {
	if len(s.Spec.Backends) != 1 || s.Spec.Backends[0].Weight == nil {
		return NoBackend
	}
	return *s.Spec.Backends[0].Weight
}

// effectiveState returns the effective state of the service's backend, of States.
func effectiveState(s v1.Service) int {
	for _, b := range s.Status.Backends {
		if !b.Removed {
			return slices.Index(States, b.State)
		}
	}
	return 0
}

// service returns registration number value of a service. The number is its backend's weight, so
// that the dataplane has it too.
func service(name string, value int) v1.ServiceSpec {
	return v1.ServiceSpec{Name: name, Ports: []spec.Port{{Port: spec.PortRange{First: 80}}},
		Backends: []spec.Backend{{Address: target.Addr().String(), Port: spec.PortNumber(target.Port()), Weight: &value}}}
}

// shown returns the condition that a service is as an agent shows it now. The service must exist
// with a backend.
func (r *recorder) shown(ctx context.Context, a *agent, name string) (Condition, error) {
	s, err := a.api.Service(ctx, "default", name, client.Wait{})
	if err == nil && weight(s) == NoBackend {
		err = fmt.Errorf("service %s has no backend", name)
	}
	return Condition{Value: weight(s), Seen: r.now(), ETag: s.ETag}, err
}

func (c Condition) write() client.Write { return client.Write{IfMatch: c.ETag, CreateOnly: c.Absent} }

// put registers a service through an agent, and returns the recorded Op.
func (r *recorder) put(ctx context.Context, a *agent, name string, on Condition) (Op, error) {
	o := Op{Agent: a.run(), Service: name, Kind: Put, Value: int(r.value.Add(1)), If: on}
	return r.ask(o, func() ([]netip.Addr, error) {
		s, err := a.api.PutService(ctx, "default", name, service(name, o.Value), on.write())
		return s.Status.VIPs, err
	})
}

// apply registers several services with one request: all or none if it is atomic.
func (r *recorder) apply(ctx context.Context, a *agent, names []string, atomic bool) error {
	ops, specs := make([]Op, len(names)), make([]v1.ServiceSpec, len(names))
	apply := 0
	if atomic {
		apply = int(r.applies.Add(1))
	}
	for i, name := range names {
		ops[i] = Op{Agent: a.run(), Service: name, Kind: Put, Value: int(r.value.Add(1)), Atomic: apply}
		specs[i] = service(name, ops[i].Value)
	}
	return r.record(ops, func() error {
		ctx, cancel := context.WithTimeout(ctx, answering)
		defer cancel()
		result, err := a.api.Apply(ctx, specs, false, atomic, client.Write{})
		if err != nil {
			return err
		}
		for i, item := range result.Items {
			ops[i].VIPs, ops[i].Outcome, ops[i].Answer = item.VIPs, Acknowledged, item.Action
			if item.Action == v1.Refused {
				ops[i].Outcome, ops[i].Answer = Refused, fmt.Sprint(item.Problems)
			}
		}
		return nil
	})
}

// register registers the backend of a service through an agent. The request is refused without that
// service.
func (r *recorder) register(ctx context.Context, a *agent, name string, on Condition) (Op, error) {
	o := Op{Agent: a.run(), Service: name, Kind: Register, Value: int(r.value.Add(1)), If: on}
	return r.ask(o, func() ([]netip.Addr, error) {
		_, err := a.api.PutBackend(ctx, "default", name, target.String(), v1.BackendSpec{Weight: &o.Value}, on.write())
		return nil, err
	})
}

// remove removes the backend of a service through an agent. The request is refused if it doesn't
// exist.
func (r *recorder) remove(ctx context.Context, a *agent, name string, on Condition) (Op, error) {
	return r.ask(Op{Agent: a.run(), Service: name, Kind: Remove, Value: NoBackend, If: on}, func() ([]netip.Addr, error) {
		_, err := a.api.DeleteBackend(ctx, "default", name, target.String(), on.write())
		return nil, err
	})
}

// delete deletes a service through an agent.
func (r *recorder) delete(ctx context.Context, a *agent, name string, on Condition) (Op, error) {
	return r.ask(Op{Agent: a.run(), Service: name, Kind: Delete, If: on}, func() ([]netip.Addr, error) {
		_, err := a.api.DeleteService(ctx, "default", name, on.write())
		return nil, err
	})
}

// setState sets the override of a service's backend to States[state]. The request is refused
// without that backend. Without Consul, the change is local, and its outcome on other agents is
// unknown until the merge.
func (r *recorder) setState(ctx context.Context, a *agent, name string, state int) (Op, error) {
	ops := []Op{{Agent: a.run(), Service: name, Kind: SetState, Value: state}}
	err := r.record(ops, func() error {
		b, err := a.api.SetBackendState(ctx, "default", name, target.String(), v1.StateSpec{State: States[state]}, true, client.Write{})
		if err == nil && b.Local {
			ops[0].Outcome, ops[0].Answer = Unknown, "200, local"
		}
		return err
	})
	return ops[0], err
}

// ask sends a request of one Op.
func (r *recorder) ask(o Op, ask func() ([]netip.Addr, error)) (Op, error) {
	ops := []Op{o}
	err := r.record(ops, func() (err error) {
		ops[0].VIPs, err = ask()
		return err
	})
	return ops[0], err
}

// record sends a request and records the outcome of its ops. Ask may set more precise outcomes for
// some of them than the error implies.
func (r *recorder) record(ops []Op, ask func() error) error {
	away := r.away.Load()
	from := r.now()
	err := ask()
	to := r.now()
	all, answer := outcome(err, away%2 == 1 && away == r.away.Load())
	for i := range ops {
		o := &ops[i]
		o.From, o.To = from, to
		if o.Outcome == "" {
			o.Outcome, o.Answer = all, answer
			o.Missing = saysMissing(err)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.h.Ops = append(r.h.Ops, ops...)
	return err
}

// saysMissing reports whether an answer states that the service doesn't exist.
func saysMissing(err error) bool {
	var e *client.Error
	return errors.As(err, &e) && e.Code == v1.CodeNotFound && strings.HasPrefix(e.Detail, "service ") && strings.HasSuffix(e.Detail, "does not exist")
}

// outcome interprets an answer. A request has had no effect if the agent refused it, if it reached
// no agent, if it failed while no Consul server ran all the time, or if the agent says so.
func outcome(err error, away bool) (Outcome, string) {
	var e *client.Error
	switch {
	case err == nil:
		return Acknowledged, "200"
	case !errors.As(err, &e):
		return Unknown, err.Error()
	}
	answer := fmt.Sprintf("%d %s: %s", e.Status, e.Code, e.Detail)
	switch {
	case e.Code == v1.CodeDeletedMeanwhile:
		return Acknowledged, answer
	case e.Status >= 400 && e.Status < 500, e.Status == http.StatusServiceUnavailable && (away || strings.Contains(e.Detail, "nothing changed")),
		errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ENOENT):
		return Refused, answer
	}
	return Unknown, answer
}
