package server

import (
	"fmt"
	"maps"
	"net/http"
	"sync"
	"time"

	"golang.org/x/time/rate"

	v1 "github.com/ironvip/ironvip/api/v1"
)

// maxRates bounds the keys of a rates with a count of their own. Further ones share one.
const maxRates = 4096

// rates bounds how often something happens for each of many keys, such as the requests of a client. The
// zero value is ready.
type rates[K comparable] struct {
	mu    sync.Mutex
	of    map[K]*rate.Limiter
	swept time.Time
}

// allow reports whether a key may have one more now, with a limit and how many it may have at once. Without
// room for a key, it forgets those that were silent until they have their whole burst again.
func (r *rates[K]) allow(key K, limit rate.Limit, burst int, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.of == nil {
		r.of = map[K]*rate.Limiter{}
	}
	if r.of[key] == nil && len(r.of) >= maxRates {
		if now.Sub(r.swept) >= time.Second {
			r.swept = now
			maps.DeleteFunc(r.of, func(_ K, l *rate.Limiter) bool { return l.TokensAt(now) >= float64(l.Burst()) })
		}
		if len(r.of) >= maxRates {
			key = *new(K)
		}
	}
	l := r.of[key]
	if l == nil {
		l = rate.NewLimiter(limit, burst)
		r.of[key] = l
	}
	if l.Burst() != burst { // the configuration has changed
		l.SetLimitAt(now, limit)
		l.SetBurstAt(now, burst)
	}
	return l.AllowN(now, 1)
}

// slowDown returns the problem of a request of a client that sends too many, or nil.
func (s *Server) slowDown(r *http.Request) *Problem {
	if s.ClientRate == nil {
		return nil
	}
	p, most := requestOf(r.Context()).peer, s.ClientRate()
	if p == nil || s.rates.allow(p.client, rate.Limit(most), most, time.Now()) {
		return nil
	}
	s.RefusedRequests.add()
	return Refuse(http.StatusTooManyRequests, v1.CodeTooManyRequests, fmt.Sprintf("too many requests of %s: at most %d in a second", p.client, most),
		"send fewer requests: apply and list many services with one, or raise api.rate_limit").RetryAfter(1)
}
