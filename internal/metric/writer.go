package metric

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ironvip/ironvip/internal/parallel"
)

// Collector adds the samples of a part of the agent. It must not add two samples of a family with
// the same labels. Two scrapes may call it at once.
type Collector func(*Writer)

// Describe implements prometheus.Collector. The library checks nothing in advance without descriptions.
func (Collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector. The library calls it in a goroutine of its own, where a panic would end the
// process.
func (c Collector) Collect(to chan<- prometheus.Metric) {
	err := parallel.Recovered(func() error {
		c(&Writer{to})
		return nil
	})
	if err != nil {
		to <- prometheus.NewInvalidMetric(prometheus.NewInvalidDesc(err), err)
	}
}

// Writer gets the samples of one scrape.
type Writer struct{ to chan<- prometheus.Metric }

// Add adds a sample of a counter or gauge. Values are those of the family's labels, in their order.
func (w *Writer) Add(f *Family, v float64, values ...string) {
	kind := prometheus.GaugeValue
	if f.Kind == KindCounter {
		kind = prometheus.CounterValue
	}
	m, err := prometheus.NewConstMetric(f.desc, kind, v, values...)
	w.send(f, m, err)
}

// Truth adds a sample that is 1 if b holds, else 0.
func (w *Writer) Truth(f *Family, b bool, values ...string) {
	v := 0.0
	if b {
		v = 1
	}
	w.Add(f, v, values...)
}

// Buckets is a histogram: how many values are at most as large as each bound, and count and sum of
// all values. The last bound, infinity, isn't part of it.
type Buckets struct {
	Bounds []float64 // ascending
	Counts []uint64  // cumulative, one for each bound
	Count  uint64
	Sum    float64
}

// AddHistogram adds the samples of a histogram. Values are those of the family's labels, in their
// order.
func (w *Writer) AddHistogram(f *Family, b Buckets, values ...string) {
	counts := make(map[float64]uint64, len(b.Bounds))
	for i, bound := range b.Bounds {
		counts[bound] = b.Counts[i]
	}
	m, err := prometheus.NewConstHistogram(f.desc, b.Count, b.Sum, counts, values...)
	w.send(f, m, err)
}

// send passes on a metric. One with an error, such as a wrong number of labels, is left out of the answer.
func (w *Writer) send(f *Family, m prometheus.Metric, err error) {
	if err != nil {
		m = prometheus.NewInvalidMetric(f.desc, err)
	}
	w.to <- m
}

// Durations counts durations by the values of labels, which are few. It is safe for concurrent use.
type Durations struct{ vec *prometheus.HistogramVec }

// NewDurations returns an empty histogram of a family. Bounds are in seconds, and ascend.
func NewDurations(of *Family, bounds ...float64) *Durations {
	d := &Durations{prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: of.Name, Help: of.Help, Buckets: bounds}, of.Labels)}
	if len(of.Labels) == 0 {
		d.vec.WithLabelValues() // also without a duration
	}
	return d
}

// Observe counts a duration. It costs O(bounds).
func (d *Durations) Observe(took time.Duration, values ...string) {
	d.vec.WithLabelValues(values...).Observe(took.Seconds())
}

// Collect is a Collector.
func (d *Durations) Collect(w *Writer) { d.vec.Collect(w.to) }
