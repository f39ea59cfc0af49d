package metric

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
)

// Collector adds the samples of a part of the agent. It must not add two samples of a family with
// the same labels. Two scrapes may call it at once.
type Collector func(*Writer)

// Writer collects the samples of one scrape. It isn't safe for concurrent use. The zero value is
// ready to use.
type Writer struct {
	texts map[*Family][]byte
	sizes map[*Family]int // of an earlier scrape, so that buffers need not grow
}

// Add adds a sample of a counter or gauge. Values are those of the family's labels, in their order.
func (w *Writer) Add(f *Family, v float64, values ...string) {
	if f.Kind == KindHistogram {
		panic("metric: " + f.Name + " is a histogram")
	}
	text := w.text(f)
	text = append(text, f.Name...)
	text = f.appendLabels(text, values)
	if len(values) > 0 {
		text = append(text, `"}`...)
	}
	w.texts[f] = appendValue(text, v)
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
	if f.Kind != KindHistogram {
		panic("metric: " + f.Name + " is not a histogram")
	}
	text := w.text(f)
	bucket := func(bound string, n uint64) {
		text = append(append(text, f.Name...), "_bucket"...)
		text = f.appendLabels(text, values)
		if len(values) > 0 {
			text = append(text, `",`...)
		} else {
			text = append(text, '{')
		}
		text = append(append(append(text, `le="`...), bound...), `"}`...)
		text = appendValue(text, float64(n))
	}
	for i, bound := range b.Bounds {
		bucket(strconv.FormatFloat(bound, 'g', -1, 64), b.Counts[i])
	}
	bucket("+Inf", b.Count)
	total := func(suffix string, v float64) {
		text = append(append(text, f.Name...), suffix...)
		text = f.appendLabels(text, values)
		if len(values) > 0 {
			text = append(text, `"}`...)
		}
		text = appendValue(text, v)
	}
	total("_sum", b.Sum)
	total("_count", float64(b.Count))
	w.texts[f] = text
}

// WriteTo writes all samples, sorted by family.
func (w *Writer) WriteTo(out io.Writer) (n int64, err error) {
	for _, f := range slices.SortedFunc(maps.Keys(w.texts), func(a, b *Family) int { return cmp.Compare(a.Name, b.Name) }) {
		for _, part := range [][]byte{[]byte(f.head()), w.texts[f]} {
			m, err := out.Write(part)
			if n += int64(m); err != nil {
				return n, err
			}
		}
	}
	return n, nil
}

// text returns the samples of a family, and makes their buffer.
func (w *Writer) text(f *Family) []byte {
	text, begun := w.texts[f]
	if !begun {
		if w.texts == nil {
			w.texts = map[*Family][]byte{}
		}
		size := w.sizes[f]
		text = make([]byte, 0, size+size/16)
	}
	return text
}

// lengths returns the sizes of the texts.
func (w *Writer) lengths() map[*Family]int {
	out := make(map[*Family]int, len(w.texts))
	for f, text := range w.texts {
		out[f] = len(text)
	}
	return out
}

// appendLabels appends the labels and values without the end of the last value.
func (f *Family) appendLabels(text []byte, values []string) []byte {
	if len(values) != len(f.order) {
		panic(fmt.Sprintf("metric: %s has %d labels, not %d", f.Name, len(f.order), len(values)))
	}
	for i, from := range f.order {
		text = append(text, f.between[i]...)
		text = appendEscaped(text, values[from])
	}
	return text
}

// appendEscaped appends the value of a label.
func appendEscaped(text []byte, value string) []byte {
	begin := 0
	for i := range len(value) {
		var escaped string
		switch value[i] {
		case '\\':
			escaped = `\\`
		case '"':
			escaped = `\"`
		case '\n':
			escaped = `\n`
		default:
			continue
		}
		text = append(append(text, value[begin:i]...), escaped...)
		begin = i + 1
	}
	return append(text, value[begin:]...)
}

// exact is up to where a float64 has all whole numbers.
const exact = 1 << 53

// appendValue appends a value and ends the line.
func appendValue(text []byte, v float64) []byte {
	text = append(text, ' ')
	if v == math.Trunc(v) && math.Abs(v) < exact { // the same number, in half of the time
		text = strconv.AppendInt(text, int64(v), 10)
	} else {
		text = strconv.AppendFloat(text, v, 'g', -1, 64)
	}
	return append(text, '\n')
}
