package rest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironvip/ironvip/fleet"
	"github.com/ironvip/ironvip/fleet/registry"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/fleettest"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

// outcome is the result that a writer received.
type outcome int

const (
	acknowledged outcome = iota
	refused              // nothing has changed
	unknown              // may have changed
)

// op is a write in the history. Began and ended order the writes of all hosts: one that ended
// before another began came before it.
type op struct {
	service string
	content string // the registration, "" for a removal
	began   int64
	ended   int64
	outcome outcome
}

func (o op) String() string {
	return fmt.Sprintf("[%d %d] %q, %v", o.began, o.ended, o.content, []string{"acknowledged", "refused", "unknown"}[o.outcome])
}

// history records requests and results for a checker.
type history struct {
	mu  sync.Mutex
	now int64
	ops map[string][]op // by object
}

func (h *history) begin() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.now++
	return h.now
}

func (h *history) end(about, content string, began int64, err error) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.now++
	o := op{service: about, content: content, began: began, ended: h.now}
	var store *registry.StoreError
	switch {
	case err == nil:
	case errors.As(err, &store) && store.Unknown:
		o.outcome = unknown
	default:
		o.outcome = refused
	}
	h.ops[about] = append(h.ops[about], o)
	return err
}

// explain reports why no order of the operations on one object results in its content, or "" if one
// does. Every acknowledged operation happened between its begin and its end. An operation with an
// unknown result can happen at any time, or never.
func (h *history) explain(about, has string) string {
	ops := h.ops[about]
	last := func(candidate op) bool {
		for _, o := range ops {
			if o.outcome == acknowledged && candidate.outcome == acknowledged && o.began > candidate.ended {
				return false
			}
		}
		return true
	}
	anything := false
	for _, o := range ops {
		if o.outcome != refused && o.content == has && last(o) {
			return ""
		}
		anything = anything || o.outcome == acknowledged
	}
	if has == "" && !anything {
		return "" // it never existed
	}
	return fmt.Sprintf("%s has %q at the end, but its history is %v", about, has, ops)
}

// storm performs random writes through the hosts of a fleet.
type storm struct {
	t       *testing.T
	hosts   []*host
	history *history
	mu      sync.Mutex
	n       int
}

func (s *storm) number() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n++
	return s.n
}

const (
	stormNames    = 5 // services that hosts register and remove concurrently
	stormServices = 3 // services that stay and receive backends
)

func shared(i int) spec.Service {
	return spec.Service{Name: fmt.Sprintf("stays-%d", i), Ports: []spec.Port{{Port: spec.PortRange{First: 80}}}, Backends: []spec.Backend{}}
}

func keyOf(name string) vip.ServiceKey { return vip.ServiceKey{Namespace: "default", Name: name} }

// write performs one random write through a host and records its result.
func (s *storm) write(ctx context.Context, r *rand.Rand, h *host) {
	began := s.history.begin()
	switch k := r.IntN(10); {
	case k < 3:
		name := fmt.Sprintf("name-%d", r.IntN(stormNames))
		content := fmt.Sprintf("%s-%d", h.name, s.number())
		_, err := h.src.PutService(ctx, Put{Spec: spec.Service{Name: name, Labels: map[string]string{"content": content},
			Ports: []spec.Port{{Port: spec.PortRange{First: 80}}}}})
		s.history.end(name, content, began, err)
	case k < 4:
		name := fmt.Sprintf("name-%d", r.IntN(stormNames))
		_, err := h.src.DeleteService(ctx, keyOf(name), nil)
		s.history.end(name, "", began, err)
	case k < 8:
		key := keyOf(shared(r.IntN(stormServices)).Name)
		n := s.number()
		address := fmt.Sprintf("10.0.%d.%d", n/250, n%250+1)
		about := key.Name + "/" + address
		ttl := []time.Duration{0, 24 * time.Hour}[r.IntN(2)]
		_, _, err := h.src.PutBackend(ctx, key, spec.Backend{Address: address}, ttl, nil)
		if s.history.end(about, "there", began, err) != nil || r.IntN(3) > 0 {
			return
		}
		began = s.history.begin()
		_, err = h.src.DeleteBackend(ctx, vip.BackendKey{Service: key, Address: bkey(address).Address}, nil)
		s.history.end(about, "", began, err)
	case k < 9:
		row, _, _ := h.services.Get(keyOf(shared(r.IntN(stormServices)).Name))
		if len(row.Backends) > 0 {
			b := row.Backends[r.IntN(len(row.Backends))]
			_ = h.src.Heartbeat(ctx, b.Key(row.Key)) // can make this host its owner
		}
	default:
		key := keyOf(shared(r.IntN(stormServices)).Name)
		if row, _, ok := h.services.Get(key); ok && len(row.Backends) > 0 {
			b := row.Backends[r.IntN(len(row.Backends))].Key(key)
			to := []vip.State{vip.Drain, vip.Maint, vip.Ready}[r.IntN(3)]
			content := to.String()
			if to == vip.Ready {
				content = ""
			}
			_, err := h.overrides.Set(ctx, operator(b, to))
			s.history.end(fmt.Sprintf("state of %v", b), content, began, err)
		}
	}
}

// facts returns the visible state of a host by object.
func facts(h *host) map[string]string {
	out := map[string]string{}
	for key, row := range h.services.All() {
		if strings.HasPrefix(key.Name, "name-") {
			out[key.Name] = row.Labels["content"]
			continue
		}
		for _, b := range row.Backends {
			out[key.Name+"/"+b.ID()] = "there"
		}
		for id, life := range h.src.HeartbeatStatuses(key) {
			out["owner of "+key.Name+"/"+id] = life.Owner
		}
	}
	for key, state := range h.states.All() {
		out[fmt.Sprintf("state of %v", key.BackendKey)] = state.State.String()
	}
	return out
}

func TestStorm(t *testing.T) {
	bubble.Test(t, func(t *testing.T) { runStorm(t, 0, 12) })
}

// runStorm performs random writes through three hosts while the store, in memory, fails them,
// sessions end and answers are lost. It runs in a bubble. In the end all hosts show the same state.
// Acknowledged writes are in it, refused writes are not. The hosts agree on the results of
// unconfirmed writes.
func runStorm(t *testing.T, seed uint64, writes int) {
	m := fleettest.NewMemory()
	hosts := fleetOf(t, m, "a", "b", "c")
	defer everyone(hosts, func(h *host) { h.end(); h.Host.End() })
	s := newStorm(t, hosts)
	s.run(seed, writes, func(r *rand.Rand) { memoryFault(r, m, hosts[r.IntN(len(hosts))]) })
	time.Sleep(10 * time.Minute)
	synctest.Wait()
	late := join(t, m, "d")
	defer func() { late.end(); late.Host.End() }()
	s.check(append(hosts, late))
}

// memoryFault causes one temporary fault of a store.
func memoryFault(r *rand.Rand, m *fleettest.Memory, h *host) {
	pause := time.Duration(r.IntN(3000)) * time.Millisecond
	switch r.IntN(7) {
	case 0:
		h.Client.SetDown(true)
		time.Sleep(pause)
		h.Client.SetDown(false)
	case 1:
		m.SetDown(true)
		time.Sleep(pause / 2)
		m.SetDown(false)
	case 2:
		h.Client.LoseAnswers(1 + r.IntN(5))
		time.Sleep(pause / 100)
		h.Client.SetDown(true) // so that nobody can query the result
		time.Sleep(pause + 20*time.Second*time.Duration(r.IntN(2)))
		h.Client.SetDown(false)
		h.Client.LoseAnswers(0)
	case 3:
		h.Client.SetSlow(pause / 20)
		time.Sleep(pause)
		h.Client.SetSlow(0)
	case 4:
		m.ExpireSessions()
	case 6: // a delayed transaction
		arrive := h.Client.Detain()
		time.Sleep(pause)
		arrive()
	case 5: // some calls fail
		var mu sync.Mutex
		flaky := rand.New(rand.NewPCG(r.Uint64(), 1))
		h.Client.Before(func(fleettest.Call) error {
			mu.Lock()
			defer mu.Unlock()
			if flaky.IntN(3) == 0 {
				return fleet.ErrUnavailable
			}
			return nil
		})
		time.Sleep(pause)
		h.Client.Before(nil)
	}
}

// newStorm registers the services that stay.
func newStorm(t *testing.T, hosts []*host) *storm {
	for i := range stormServices {
		hosts[i%len(hosts)].put(shared(i))
	}
	everyone(hosts, func(h *host) {
		h.until("all services are there", func() bool { return h.services.Len() == stormServices })
	})
	return &storm{t: t, hosts: hosts, history: &history{ops: map[string][]op{}}}
}

// run writes through each host from three goroutines. Faults come and go one after the other.
func (s *storm) run(seed uint64, writes int, fault func(*rand.Rand)) {
	var wg sync.WaitGroup
	for n, h := range s.hosts {
		for w := range 3 {
			r := rand.New(rand.NewPCG(seed, uint64(10*n+w)))
			wg.Go(func() {
				for range writes {
					s.write(s.t.Context(), r, h)
					time.Sleep(time.Duration(r.IntN(300)) * time.Millisecond)
				}
			})
		}
	}
	over := make(chan struct{})
	var faults sync.WaitGroup
	faults.Go(func() {
		r := rand.New(rand.NewPCG(seed, 99))
		for {
			select {
			case <-over:
				return
			case <-time.After(time.Duration(r.IntN(400)) * time.Millisecond):
				fault(r)
			}
		}
	})
	wg.Wait()
	close(over)
	faults.Wait()
}

// check compares the final state of the hosts with the history.
func (s *storm) check(hosts []*host) {
	final := facts(hosts[0])
	for _, h := range hosts[1:] {
		for _, d := range differences(facts(h), final) {
			s.t.Errorf("on %s and %s: %s", h.name, hosts[0].name, d)
		}
	}
	counts := map[outcome]int{}
	for about, ops := range s.history.ops {
		expect.Equal(s.t, s.history.explain(about, final[about]), "")
		for _, o := range ops {
			counts[o.outcome]++
		}
	}
	for about := range final {
		if _, known := s.history.ops[about]; !known && !strings.HasPrefix(about, "owner of ") {
			s.t.Errorf("nobody wrote %s", about)
		}
	}
	if counts[acknowledged] == 0 || counts[refused] == 0 {
		s.t.Errorf("the storm was none: %v", counts)
	}
	s.t.Logf("%d acknowledged, %d refused, %d unknown; %d facts", counts[acknowledged], counts[refused], counts[unknown], len(final))
}

func differences(a, b map[string]string) (out []string) {
	for about, has := range a {
		if other, there := b[about]; !there || other != has {
			out = append(out, fmt.Sprintf("%s is %q, %q (there: %v)", about, has, other, there))
		}
	}
	for about, has := range b {
		if _, there := a[about]; !there {
			out = append(out, fmt.Sprintf("%s is not there, %q", about, has))
		}
	}
	return out
}

// The checker detects errors.
func TestHistoryChecker(t *testing.T) {
	put := func(content string, began, ended int64, o outcome) op {
		return op{content: content, began: began, ended: ended, outcome: o}
	}
	for _, c := range []struct {
		what string
		ops  []op
		has  string
		ok   bool
	}{
		{"nothing ever", nil, "", true},
		{"acknowledged and there", []op{put("x", 1, 2, acknowledged)}, "x", true},
		{"acknowledged and lost", []op{put("x", 1, 2, acknowledged)}, "", false},
		{"refused and there", []op{put("x", 1, 2, refused)}, "x", false},
		{"refused and not there", []op{put("x", 1, 2, refused)}, "", true},
		{"unknown and there", []op{put("x", 1, 2, unknown)}, "x", true},
		{"unknown and not there", []op{put("x", 1, 2, unknown)}, "", true},
		{"at the same time", []op{put("x", 1, 3, acknowledged), put("y", 2, 4, acknowledged)}, "x", true},
		{"the older one of two", []op{put("x", 1, 2, acknowledged), put("y", 3, 4, acknowledged)}, "x", false},
		{"a removal", []op{put("x", 1, 2, acknowledged), put("", 3, 4, acknowledged)}, "", true},
		{"a removal that was lost", []op{put("x", 1, 2, acknowledged), put("", 3, 4, acknowledged)}, "x", false},
		{"an unknown removal", []op{put("x", 1, 2, acknowledged), put("", 3, 4, unknown)}, "", true},
		{"an unknown one that comes late", []op{put("x", 1, 2, unknown), put("y", 3, 4, acknowledged)}, "x", true},
	} {
		h := &history{ops: map[string][]op{"it": c.ops}}
		why := h.explain("it", c.has)
		expect.Equal(t, why == "", c.ok, "%s: %q", c.what, why)
	}
}
