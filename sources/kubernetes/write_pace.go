package kubernetes

import (
	"math/rand/v2"
	"time"

	"golang.org/x/time/rate"

	"github.com/ironvip/ironvip/vip"
)

const (
	writeRate  = 10 // requests a second, of the whole Writer
	writeBurst = 20
)

// take takes a token, or returns how long to wait for one.
func take(l *rate.Limiter) (wait time.Duration) {
	r := l.Reserve()
	if wait = r.Delay(); wait > 0 {
		r.Cancel()
	}
	return wait
}

// grown returns the backoff after a number of failures. It doubles each time, with a jitter of up
// to half.
func grown(first, most time.Duration, failures int) time.Duration {
	d := most
	if failures < 16 { // more would overflow
		d = min(first<<max(0, failures-1), most)
	}
	return d/2 + rand.N(d/2+1)
}

// pause is the wait after an answer that the server is unavailable for all requests.
type pause struct {
	failures int
	until    time.Time
}

func (p *pause) fail(asked time.Duration) {
	p.failures++
	p.until = time.Now().Add(max(asked, grown(time.Second, 30*time.Second, p.failures)))
}

func (p *pause) left() time.Duration { return time.Until(p.until) }

// queue holds unique keys in the order in which they were added. A change costs O(1).
type queue struct {
	keys []vip.ServiceKey
	has  map[vip.ServiceKey]struct{}
}

func (q *queue) add(key vip.ServiceKey) {
	if _, has := q.has[key]; has {
		return
	}
	if q.has == nil {
		q.has = map[vip.ServiceKey]struct{}{}
	}
	q.has[key] = struct{}{}
	q.keys = append(q.keys, key)
}

// next returns the first key, which stays in the queue until drop.
func (q *queue) next() (vip.ServiceKey, bool) {
	if len(q.keys) == 0 {
		return vip.ServiceKey{}, false
	}
	return q.keys[0], true
}

// drop removes the first key.
func (q *queue) drop() {
	delete(q.has, q.keys[0])
	if q.keys = q.keys[1:]; len(q.keys) == 0 {
		q.keys = nil
	}
}
