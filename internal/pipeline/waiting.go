package pipeline

import (
	"cmp"
	"maps"
	"slices"

	"github.com/ironvip/ironvip/vip"
)

// waiting is a set of services in the order in which they began to wait. The zero value is empty
// and ready to use.
type waiting struct {
	since map[vip.ServiceKey]uint64
	next  uint64
}

// set adds or removes k. A service that already waits keeps its position.
func (w *waiting) set(k vip.ServiceKey, waits bool) {
	if !waits {
		delete(w.since, k)
		return
	}
	if _, there := w.since[k]; there {
		return
	}
	if w.since == nil {
		w.since = make(map[vip.ServiceKey]uint64)
	}
	w.next++
	w.since[k] = w.next
}

// keys returns the set, longest waiting first.
func (w *waiting) keys() []vip.ServiceKey {
	return slices.SortedFunc(maps.Keys(w.since), func(a, b vip.ServiceKey) int {
		return cmp.Compare(w.since[a], w.since[b])
	})
}
