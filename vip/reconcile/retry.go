package reconcile

import (
	"container/heap"
	"time"
)

// retryQueue holds the keys to be tried again, by time. Adding, removing and
// taking one cost O(log n) in the number of failing keys. Its timer fires when
// the earliest is due.
type retryQueue[K comparable] struct {
	timer *time.Timer
	byKey map[K]*retryItem[K]
	heap  retryHeap[K]
}

type retryItem[K comparable] struct {
	key   K
	at    time.Time
	index int
}

func newRetryQueue[K comparable]() retryQueue[K] {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return retryQueue[K]{timer: t, byKey: make(map[K]*retryItem[K])}
}

func (q *retryQueue[K]) add(k K, at time.Time) {
	q.remove(k)
	item := &retryItem[K]{key: k, at: at}
	q.byKey[k] = item
	heap.Push(&q.heap, item)
	q.arm()
}

func (q *retryQueue[K]) remove(k K) {
	item := q.byKey[k]
	if item == nil {
		return
	}
	delete(q.byKey, k)
	heap.Remove(&q.heap, item.index)
	q.arm()
}

// due takes out and returns the keys whose time has come.
func (q *retryQueue[K]) due(now time.Time) []K {
	var keys []K
	for len(q.heap) > 0 && !q.heap[0].at.After(now) {
		item := heap.Pop(&q.heap).(*retryItem[K])
		delete(q.byKey, item.key)
		keys = append(keys, item.key)
	}
	q.arm()
	return keys
}

func (q *retryQueue[K]) arm() {
	if len(q.heap) == 0 {
		q.timer.Stop()
		return
	}
	q.timer.Reset(time.Until(q.heap[0].at))
}

type retryHeap[K comparable] []*retryItem[K]

func (h retryHeap[K]) Len() int           { return len(h) }
func (h retryHeap[K]) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h retryHeap[K]) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}
func (h *retryHeap[K]) Push(x any) {
	item := x.(*retryItem[K])
	item.index = len(*h)
	*h = append(*h, item)
}
func (h *retryHeap[K]) Pop() any {
	old := *h
	item := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return item
}
