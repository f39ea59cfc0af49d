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

// Add adds a sample of a counter or gauge. Values are those of the family's labels, in their order. A sample with an
// error, such as a wrong number of labels, is left out of the answer.
func (w *Writer) Add(f *Family, v float64, values ...string) {
	kind := prometheus.GaugeValue
	if f.Kind == KindCounter {
		kind = prometheus.CounterValue
	}
	m, err := prometheus.NewConstMetric(f.desc, kind, v, values...)
	if err != nil {
		m = prometheus.NewInvalidMetric(f.desc, err)
	}
	w.to <- m
}

// Truth adds a sample that is 1 if b holds, else 0.
func (w *Writer) Truth(f *Family, b bool, values ...string) {
	v := 0.0
	if b {
		v = 1
	}
	w.Add(f, v, values...)
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
