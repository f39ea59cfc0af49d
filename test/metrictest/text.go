// Package metrictest checks what collectors write.
package metrictest

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/prometheus/common/expfmt"

	"github.com/ironvip/ironvip/internal/metric"
)

// Text returns the samples of collectors. It fails the test if Prometheus' lint finds a fault, or if
// two samples have the same name and labels.
func Text(t testing.TB, collectors ...metric.Collector) string {
	t.Helper()
	families, err := metric.Registry(collectors...).Gather()
	if err != nil {
		t.Error(err)
	}
	var b strings.Builder
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(&b, f); err != nil {
			t.Fatal(err)
		}
	}
	Check(t, b.String(), "")
	return b.String()
}

// Check fails the test if Prometheus' lint finds a fault in the metrics with a prefix, or if two samples
// of a scrape have the same name and labels.
func Check(t testing.TB, text, prefix string) {
	t.Helper()
	found, err := promlint.New(strings.NewReader(text)).Lint()
	if err != nil {
		t.Errorf("%v in\n%s", err, text)
	}
	for _, p := range found {
		if strings.HasPrefix(p.Metric, prefix) {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
	seen := map[string]bool{}
	for line := range strings.Lines(text) {
		series := line[:max(strings.LastIndexByte(line, ' '), 0)]
		if !strings.HasPrefix(line, "#") && seen[series] {
			t.Errorf("two samples %s", series)
		}
		seen[series] = true
	}
}
