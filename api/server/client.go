package server

import (
	"fmt"
	"net/http"
	"sync"
	"time"

	"golang.org/x/time/rate"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/internal/connlimit"
)

// maxClients bounds the clients with a count of requests of their own. Further ones share one.
const maxClients = 4096

// rates counts the requests of clients. A client may send its requests of one second at once.
type rates struct {
	mu     sync.Mutex
	of     map[connlimit.Client]*rate.Limiter
	others *rate.Limiter // of clients beyond maxClients
	swept  time.Time
}

// allow reports whether a client may send a request now, with a limit in requests a second.
func (r *rates) allow(c connlimit.Client, perSecond int, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.limiter(c, perSecond, now).AllowN(now, 1)
}

// limiter returns the count of a client, with a limit in requests a second. The caller holds mu.
func (r *rates) limiter(c connlimit.Client, perSecond int, now time.Time) *rate.Limiter {
	l := r.find(c, perSecond, now)
	if l.Burst() != perSecond { // the configuration has changed
		l.SetLimitAt(now, rate.Limit(perSecond))
		l.SetBurstAt(now, perSecond)
	}
	return l
}

// find returns the count of a client, and forgets those of clients that were silent for a second
// when there are too many. The caller holds mu.
func (r *rates) find(c connlimit.Client, perSecond int, now time.Time) *rate.Limiter {
	if l := r.of[c]; l != nil {
		return l
	}
	if len(r.of) >= maxClients && now.Sub(r.swept) >= time.Second {
		r.swept = now
		for c, l := range r.of {
			if l.TokensAt(now) >= float64(l.Burst()) {
				delete(r.of, c)
			}
		}
	}
	l := rate.NewLimiter(rate.Limit(perSecond), perSecond)
	if len(r.of) >= maxClients {
		if r.others == nil {
			r.others = l
		}
		return r.others
	}
	if r.of == nil {
		r.of = map[connlimit.Client]*rate.Limiter{}
	}
	r.of[c] = l
	return l
}

// slowDown returns the problem of a request of a client that sends too many, or nil.
func (s *Server) slowDown(r *http.Request) *Problem {
	if s.ClientRate == nil {
		return nil
	}
	p, known := r.Context().Value(peerKey{}).(*peer)
	most := s.ClientRate()
	if !known || s.rates.allow(p.client, most, time.Now()) {
		return nil
	}
	s.RefusedRequests.add()
	return Refuse(http.StatusTooManyRequests, v1.CodeTooManyRequests, fmt.Sprintf("too many requests of %s: at most %d in a second", p.client, most),
		"send fewer requests: apply and list many services with one, or raise api.rate_limit").RetryAfter(1)
}
