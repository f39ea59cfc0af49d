package server

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"

	v1 "github.com/ironvip/ironvip/api/v1"
)

// client is who shares a limit: a user of this host on the unix socket, an IPv4 address, or the /64 of
// an IPv6 address, because a host can use every address of its network. The zero value is an unknown
// client, which only the limits of all clients apply to.
type client struct {
	network netip.Prefix
	isUnix  bool
	uid     uint32
}

// clientOf returns the client of a new connection.
func clientOf(p *peer, c net.Conn) client {
	if p == nil {
		return client{}
	}
	if p.isUnix {
		return client{isUnix: true, uid: p.uid}
	}
	at, is := c.RemoteAddr().(*net.TCPAddr)
	if !is {
		return client{}
	}
	addr := at.AddrPort().Addr().Unmap().WithZone("")
	bits := addr.BitLen()
	if addr.Is6() {
		bits = 64
	}
	network, _ := addr.Prefix(bits) // the length is valid
	return client{network: network}
}

// String names the client for a message to it.
func (c client) String() string {
	if c.isUnix {
		return fmt.Sprintf("uid %d", c.uid)
	}
	if c.network.IsSingleIP() {
		return c.network.Addr().String()
	}
	return c.network.String()
}

// tally counts what is open.
type tally struct {
	open int
	of   map[client]int // of each known client
}

// count adds n to what a client has open.
func (t *tally) count(who client, n int) {
	t.open += n
	if who == (client{}) {
		return
	}
	if t.of == nil {
		t.of = map[client]int{}
	}
	if t.of[who] += n; t.of[who] == 0 {
		delete(t.of, who)
	}
}

// maxClients bounds the clients with a count of requests of their own. Further ones share one.
const maxClients = 4096

// rates counts the requests of clients. A client may send its requests of one second at once.
type rates struct {
	mu     sync.Mutex
	of     map[client]*rate.Limiter
	others *rate.Limiter // of clients beyond maxClients
	swept  time.Time
}

// allow reports whether a client may send a request now, with a limit in requests a second.
func (r *rates) allow(c client, perSecond int, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.limiter(c, perSecond, now).AllowN(now, 1)
}

// limiter returns the count of a client, with a limit in requests a second. The caller holds mu.
func (r *rates) limiter(c client, perSecond int, now time.Time) *rate.Limiter {
	l := r.find(c, perSecond, now)
	if l.Burst() != perSecond { // the configuration has changed
		l.SetLimitAt(now, rate.Limit(perSecond))
		l.SetBurstAt(now, perSecond)
	}
	return l
}

// find returns the count of a client, and forgets those of clients that were silent for a second
// when there are too many. The caller holds mu.
func (r *rates) find(c client, perSecond int, now time.Time) *rate.Limiter {
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
		r.of = map[client]*rate.Limiter{}
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
