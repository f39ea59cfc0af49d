package reconcile

import (
	"time"

	"github.com/ironvip/ironvip/internal/delayqueue"
)

// retryQueue has the keys to retry, by time. Each operation costs O(log n) in the number of failing keys. Its timer
// fires when the earliest key is due.
type retryQueue[K comparable] struct {
	timer *time.Timer
	keys  delayqueue.Queue[K]
}

func newRetryQueue[K comparable]() retryQueue[K] {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return retryQueue[K]{timer: t}
}

func (q *retryQueue[K]) add(k K, at time.Time) {
	q.keys.Set(k, at)
	q.arm()
}

func (q *retryQueue[K]) remove(k K) {
	if q.keys.Has(k) {
		q.keys.Drop(k)
		q.arm()
	}
}

// due removes and returns the keys that are due.
func (q *retryQueue[K]) due(now time.Time) []K {
	var keys []K
	for k := range q.keys.Due(now) {
		q.keys.Drop(k)
		keys = append(keys, k)
	}
	q.arm()
	return keys
}

// hurry makes all keys due.
func (q *retryQueue[K]) hurry(now time.Time) {
	for _, k := range q.due(now.Add(1 << 50)) {
		q.keys.Set(k, now)
	}
	q.arm()
}

func (q *retryQueue[K]) arm() {
	_, first, any := q.keys.First()
	if !any {
		q.timer.Stop()
		return
	}
	q.timer.Reset(time.Until(first))
}
