// Package balance decides which backend a client of the userspace proxy gets, whether the client waits for one, and
// whether it is refused.
//
// Its input is frontends, through Frontend.Choose, and the clients that callers announce: Frontend.Admit takes the
// descriptors of a client, or refuses it. An Attempt finds backends for it, one after the other: by the scheduler (package
// pick), by affinity, or in the queue of the service. Callers say how each try ended, and keep the connection as a Link of
// the Endpoint. Limits, refusals, traffic and passive health are counted here, because they belong to services,
// which have more than one frontend. The package opens no socket, and nothing remains after its process ends.
package balance

import (
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ironvip/ironvip/proxy/passive"
	"github.com/ironvip/ironvip/vip"
)

// Balancer is what all frontends share. Its methods may be called concurrently.
type Balancer struct {
	own           func(netip.Addr) bool
	connectBudget time.Duration
	log           *slog.Logger
	epoch         time.Time

	Passive  *passive.Table
	Capacity Capacity
	refused  refusals
	errorLog Throttle

	busy sync.Map // of *Frontend: those that have had a connection

	mu       sync.Mutex
	services map[vip.ServiceKey]*Service
	reported map[*Service]struct{} // those that have, or had, limits, or have refused clients
}

// Options are the settings of a Balancer.
type Options struct {
	Own           func(addr netip.Addr) bool // reports whether addr is one of the host's own: source ranges always allow these
	ConnectBudget time.Duration              // bounds all attempts for one client, if it is above the service's connect timeout
	Files         int                        // descriptors for listeners, connections and sessions
	Log           *slog.Logger
}

// New returns a Balancer without frontends.
func New(o Options) *Balancer {
	b := &Balancer{own: o.Own, connectBudget: o.ConnectBudget, log: o.Log, epoch: time.Now(), services: make(map[vip.ServiceKey]*Service), reported: make(map[*Service]struct{})}
	b.Passive = passive.New(b.Now)
	b.Capacity.files = int64(o.Files)
	return b
}

// Now returns the time of a monotonic clock in nanoseconds.
func (b *Balancer) Now() int64 { return int64(time.Since(b.epoch)) }

// join returns the service of a new frontend, which has these settings if it is new.
func (b *Balancer) join(key vip.ServiceKey, r *vip.ProxySettings) *Service {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.services[key]
	if s == nil {
		s = &Service{key: key}
		s.relay.Store(r)
		s.passive = passive.NewService(s.wake)
		b.services[key] = s
		b.Capacity.tenants.Store(int64(len(b.services)))
	}
	s.users++
	return s
}

// part ends a frontend's use of s.
func (b *Balancer) part(s *Service) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s.users--; s.users == 0 {
		delete(b.services, s.key)
		delete(b.reported, s)
		b.Capacity.tenants.Store(int64(len(b.services)))
	}
}

// report adds a service to those of which a Report has something.
func (b *Balancer) report(s *Service) {
	if s.noted.Load() {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if s.noted.Store(true); b.services[s.key] == s { // else it is gone
		b.reported[s] = struct{}{}
	}
}

// Busy calls each with every frontend that has had a connection, and is not closed.
func (b *Balancer) Busy(each func(*Frontend)) {
	b.busy.Range(func(f, _ any) bool { each(f.(*Frontend)); return true })
}

// Refuse counts a client of s that is refused, and logs it at most once a minute. The service is nil if nobody knows it.
func (b *Balancer) Refuse(s *Service, why Reason) {
	now := b.Now()
	b.refused.add(why, now)
	if s == nil {
		return
	}
	refused := s.refused.Load()
	for refused == nil {
		s.refused.CompareAndSwap(nil, new(refusals))
		refused = s.refused.Load()
	}
	refused.add(why, now)
	b.report(s)
	if why.limits() && s.log.Pass(now, time.Minute) {
		b.log.Warn("clients refused", "service", s.key.String(), "reason", why.String(), "because", reasonTexts[why].meaning, "refused", refused.count(why))
	}
}

// Complain logs an error of this host, such as missing file descriptors, at most once a second for
// all frontends, because the error affects thousands at once. The frontend may be unknown: the zero key.
func (b *Balancer) Complain(of vip.FrontendKey, doing string, err error) {
	if !b.errorLog.Pass(b.Now(), time.Second) {
		return
	}
	log := b.log
	if of.Addr.IsValid() {
		log = log.With("frontend", of.String())
	}
	log.Warn(doing, "err", err)
}

// Throttle limits messages about errors that a flood of clients could repeat.
type Throttle struct{ next atomic.Int64 }

// Pass reports whether the last message is older than that.
func (t *Throttle) Pass(now int64, every time.Duration) bool {
	next := t.next.Load()
	return now >= next && t.next.CompareAndSwap(next, now+int64(every))
}
