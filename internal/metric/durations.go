package metric

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// Durations counts durations by the value of one label. The label has few values. It is safe for
// concurrent use.
type Durations struct {
	of     *Family
	bounds []float64

	mu      sync.Mutex
	buckets map[string]*Buckets
}

// NewDurations returns an empty histogram of a family. Bounds are in seconds, and ascend.
func NewDurations(of *Family, bounds ...float64) *Durations {
	return &Durations{of: of, bounds: bounds, buckets: map[string]*Buckets{}}
}

// Observe counts a duration. It costs O(bounds).
func (d *Durations) Observe(value string, took time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	b := d.buckets[value]
	if b == nil {
		b = &Buckets{Bounds: d.bounds, Counts: make([]uint64, len(d.bounds))}
		d.buckets[value] = b
	}
	b.Count++
	b.Sum += took.Seconds()
	for i := len(d.bounds) - 1; i >= 0 && took.Seconds() <= d.bounds[i]; i-- {
		b.Counts[i]++
	}
}

// Collect is a Collector.
func (d *Durations) Collect(w *Writer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, value := range slices.Sorted(maps.Keys(d.buckets)) {
		w.AddHistogram(d.of, *d.buckets[value], value)
	}
}
