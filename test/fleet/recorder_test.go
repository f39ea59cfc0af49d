//go:build servers

package fleet

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ironvip/ironvip/api/client"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/vip/spec"
)

// recorder makes the requests to a fleet and writes down what becomes of them,
// and what all agents show meanwhile.
type recorder struct {
	began time.Time
	value atomic.Int64
	// away is how often Consul was taken away and brought back: odd while no
	// server runs.
	away  atomic.Int64
	loads uint64 // how many clients there have been

	mu sync.Mutex
	h  History
}

// record follows the agents until the end of the test.
func (l *lab) record() *lab {
	r := &recorder{began: time.Now(), h: History{Reuse: l.reuse}}
	ctx, cancel := context.WithCancel(context.Background())
	var watching sync.WaitGroup
	for _, a := range l.agents {
		watching.Go(func() { r.watch(ctx, a) })
	}
	l.t.Cleanup(func() { cancel(); watching.Wait() })
	l.recorder = r
	return l
}

func (r *recorder) now() time.Duration { return time.Since(r.began) }

// history is what is recorded so far.
func (r *recorder) history() *History {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.h
	return &h
}

// between is how long a watcher rests between two looks.
const between = 100 * time.Millisecond

// watch writes down every state of the agent's services that it sees.
func (r *recorder) watch(ctx context.Context, a *agent) {
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
		v.Services[s.Spec.Name] = Seen{Value: weight(s), State: inForce(s), VIPs: s.Status.VIPs}
	}
	return v, list.Revision, nil
}

// weight is the value that a service was registered with: see service.
func weight(s v1.Service) int {
	if len(s.Spec.Backends) != 1 || s.Spec.Backends[0].Weight == nil {
		return -1
	}
	return *s.Spec.Backends[0].Weight
}

// inForce is the state of its backend, of States.
func inForce(s v1.Service) int {
	for _, b := range s.Status.Backends {
		if !b.Removed {
			return slices.Index(States, b.State)
		}
	}
	return 0
}

// service is registration number value of a service. Its number is its backend's
// weight, so that the dataplane has it too.
func service(name string, value int) v1.ServiceSpec {
	return v1.ServiceSpec{Name: name, Ports: []spec.Port{{Port: spec.PortRange{First: 80}}},
		Backends: []spec.Backend{{Address: target.Addr().String(), Port: spec.PortNumber(target.Port()), Weight: &value}}}
}

// put registers a service through an agent, and returns what is recorded.
func (r *recorder) put(ctx context.Context, a *agent, name string, w client.Write) (Op, error) {
	o := Op{Agent: a.run(), Service: name, Kind: Put, Value: int(r.value.Add(1))}
	return r.ask(o, func() ([]netip.Addr, error) {
		s, err := a.api.PutService(ctx, "default", name, service(name, o.Value), w)
		return s.Status.VIPs, err
	})
}

// register registers the backend of a service through an agent: that is refused
// where there is no such service.
func (r *recorder) register(ctx context.Context, a *agent, name string) (Op, error) {
	o := Op{Agent: a.run(), Service: name, Kind: Register, Value: int(r.value.Add(1))}
	return r.ask(o, func() ([]netip.Addr, error) {
		_, err := a.api.PutBackend(ctx, "default", name, target.String(), v1.BackendSpec{Weight: &o.Value}, client.Write{})
		return nil, err
	})
}

// remove deletes a service through an agent.
func (r *recorder) remove(ctx context.Context, a *agent, name string) (Op, error) {
	return r.ask(Op{Agent: a.run(), Service: name, Kind: Delete}, func() ([]netip.Addr, error) {
		_, err := a.api.DeleteService(ctx, "default", name, client.Write{})
		return nil, err
	})
}

// setState says of a service's backend, as an operator does, that it is States[state]:
// that is refused where there is no such backend.
func (r *recorder) setState(ctx context.Context, a *agent, name string, state int) (Op, error) {
	return r.ask(Op{Agent: a.run(), Service: name, Kind: SetState, Value: state}, func() ([]netip.Addr, error) {
		_, err := a.api.SetBackendState(ctx, "default", name, target.String(), States[state], client.Write{})
		return nil, err
	})
}

func (r *recorder) ask(o Op, ask func() ([]netip.Addr, error)) (Op, error) {
	away := r.away.Load()
	o.From = r.now()
	vips, err := ask()
	o.To = r.now()
	o.VIPs = vips
	o.Outcome, o.Answer = outcome(err, away%2 == 1 && away == r.away.Load())
	r.mu.Lock()
	defer r.mu.Unlock()
	r.h.Ops = append(r.h.Ops, o)
	return o, err
}

// outcome says what an answer means. Nothing has happened by a request that an
// agent refused, that reached none, or that failed while no Consul was there all
// the time.
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
	case e.Status >= 400 && e.Status < 500, away && e.Status == http.StatusServiceUnavailable,
		errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ENOENT):
		return Refused, answer
	}
	return Unknown, answer
}

// load is requests at random, two clients of each agent, until stop is called.
type load struct {
	stop context.CancelFunc
	done sync.WaitGroup
}

// Each client has services of its own, and some are everybody's. A client rests
// a while between two requests.
const (
	ownServices    = 8
	sharedServices = 4
	clients        = 2
	pace           = 150 * time.Millisecond
)

// load starts requests to these agents.
func (l *lab) load(agents ...*agent) *load {
	ctx, cancel := context.WithCancel(context.Background())
	out := &load{stop: cancel}
	for _, a := range agents {
		for i := range clients {
			l.loads++
			rnd := rand.New(rand.NewPCG(seed, l.loads))
			out.done.Go(func() { l.request(ctx, a, fmt.Sprintf("%s-%d", a.name, i), rnd) })
		}
	}
	l.t.Cleanup(out.end)
	return out
}

// end ends the requests and waits for the last answers.
func (l *load) end() { l.stop(); l.done.Wait() }

// seed makes the requests of every run alike, as far as their timing allows.
const seed = 15

func (l *lab) request(ctx context.Context, a *agent, own string, rnd *rand.Rand) {
	for ctx.Err() == nil {
		name := fmt.Sprintf("%s-%d", own, rnd.IntN(ownServices))
		if rnd.IntN(2) == 0 {
			name = fmt.Sprintf("shared-%d", rnd.IntN(sharedServices))
		}
		// A request outlives the end of the load, so that its fate is known.
		switch rnd.IntN(10) {
		case 0, 1, 2:
			l.put(context.Background(), a, name, client.Write{})
		case 3, 4:
			l.register(context.Background(), a, name)
		case 5, 6: // every other time it goes back
			l.setState(context.Background(), a, name, max(0, rnd.IntN(4)-1))
		default:
			l.remove(context.Background(), a, name)
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(rnd.Int64N(int64(2 * pace)))):
		}
	}
}
