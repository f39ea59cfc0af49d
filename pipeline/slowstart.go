package pipeline

import (
	"slices"
	"time"

	"github.com/ironvip/ironvip/internal/delayqueue"
	"github.com/ironvip/ironvip/pipeline/compile"
	"github.com/ironvip/ironvip/vip"
)

// slowStarts raises the weights of endpoints that begin to take new connections, in steps. The step
// of an endpoint is in its row of the table of frontends, so dataplanes see only weights. All
// starting endpoints of a service take their steps together, so that each step compiles the service
// once. It uses the steady clock: setting the host's clock has no effect.
type slowStarts struct {
	began bool                             // everything that the agent restored or knew at its start is compiled
	next  delayqueue.Queue[vip.ServiceKey] // services with starting endpoints, by their next step
	due   map[vip.ServiceKey]struct{}      // those whose step is due, until they are compiled
	timer *time.Timer
}

func newSlowStarts() slowStarts {
	s := slowStarts{due: make(map[vip.ServiceKey]struct{}), timer: time.NewTimer(time.Hour)}
	s.timer.Stop()
	return s
}

// advance passes the services whose step is due to compile, and sets the timer for the next step.
func (s *slowStarts) advance(compile func(vip.ServiceKey)) {
	now := time.Now()
	for k := range s.next.Due(now) {
		s.next.Drop(k)
		s.due[k] = struct{}{}
		compile(k)
	}
	if _, at, ok := s.next.First(); ok {
		s.timer.Reset(at.Sub(now))
	} else {
		s.timer.Stop()
	}
}

// service begins the compilation of a service. The result gives the weights of its frontends.
func (s *slowStarts) service(service *vip.Service) slowStart {
	_, due := s.due[service.Key]
	delete(s.due, service.Key)
	return slowStart{on: s.began && service.SlowStart > 0, due: due}
}

// compiled ends the compilation of a service. The time of the first step begins with the first
// endpoint that starts; those that start later take their first step early.
func (s *slowStarts) compiled(service *vip.Service, now *slowStart) {
	switch {
	case !now.starting:
		s.next.Drop(service.Key)
	case !s.next.Has(service.Key):
		s.next.Set(service.Key, time.Now().Add(service.SlowStart.Duration()/(vip.SlowStartSteps-1)))
	}
}

// remove forgets a service.
func (s *slowStarts) remove(k vip.ServiceKey) {
	s.next.Drop(k)
	delete(s.due, k)
}

// slowStart is the slow start of one service while it is compiled.
type slowStart struct {
	on       bool
	due      bool // a step is due
	starting bool // an endpoint has not its whole weight
}

// weigh returns the endpoints of a service port's frontend with the weights of their slow start. Before are those
// of its row until now. An endpoint that takes new connections and took none until now starts with
// the first step. It is pure apart from starting. It costs O(endpoints), without allocation if none
// starts.
func (s *slowStart) weigh(v *compile.View, port string, all, before []vip.Endpoint) []vip.Endpoint {
	if !s.on {
		return all
	}
	shared := true
	for i, j := 0, 0; i < len(all); i++ {
		for j < len(before) && vip.CompareEndpoints(before[j], all[i]) < 0 {
			j++
		}
		step := uint8(1)
		if j < len(before) && before[j].Addr == all[i].Addr && before[j].Weight > 0 {
			if step = before[j].Step; step > 0 && s.due {
				step = (step + 1) % vip.SlowStartSteps
			}
		}
		if step == 0 || all[i].Weight == 0 {
			continue
		}
		if shared {
			all, shared = slices.Clone(all), false // frontends share it
		}
		all[i].Step = step
		if len(v.Service.Groups) == 0 {
			all[i].Weight = max(1, uint16(uint32(all[i].Weight)*uint32(step)/vip.SlowStartSteps))
		}
		s.starting = true
	}
	if !shared {
		v.Share(port, all)
	}
	return all
}
