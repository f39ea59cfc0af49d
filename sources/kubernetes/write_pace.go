package kubernetes

import (
	"math/rand/v2"
	"time"

	"github.com/ironvip/ironvip/vip"
)

const (
	writeRate  = 10 // requests a second, of the whole Writer
	writeBurst = 20
)

// pacer is a token bucket for one goroutine: one token each every, and up to burst
// saved ones. It keeps the time at which it will be full.
type pacer struct {
	every time.Duration
	burst int
	full  time.Time
}

// take takes a token, or returns how long to wait for one.
func (p *pacer) take() (wait time.Duration) {
	now := time.Now()
	if p.full.Before(now) {
		p.full = now
	}
	if wait := p.full.Sub(now) - time.Duration(p.burst-1)*p.every; wait > 0 {
		return wait
	}
	p.full = p.full.Add(p.every)
	return 0
}

// grown returns the pause after so many failures in a row: twice as long each
// time, of which the second half is drawn.
func grown(first, most time.Duration, failures int) time.Duration {
	d := most
	if failures < 16 { // beyond, it would overflow at last
		d = min(first<<max(0, failures-1), most)
	}
	return d/2 + rand.N(d/2+1)
}

// pause is the rest that a server asks for which serves nobody at present.
type pause struct {
	failures int
	until    time.Time
}

func (p *pause) fail(asked time.Duration) {
	p.failures++
	p.until = time.Now().Add(max(asked, grown(time.Second, 30*time.Second, p.failures)))
}

func (p *pause) left() time.Duration { return time.Until(p.until) }

// queue holds keys in the order in which they came, each once. A change costs O(1).
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

// next returns the first key, which stays in the queue until it is dropped.
func (q *queue) next() (vip.ServiceKey, bool) {
	if len(q.keys) == 0 {
		return vip.ServiceKey{}, false
	}
	return q.keys[0], true
}

// drop takes the first key out.
func (q *queue) drop() {
	delete(q.has, q.keys[0])
	if q.keys = q.keys[1:]; len(q.keys) == 0 {
		q.keys = nil
	}
}
