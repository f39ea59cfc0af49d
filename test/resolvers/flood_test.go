//go:build system

package resolvers

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/ironvip/ironvip/test/need"
)

const (
	floodRate   = 100_000 // queries per second
	floodPhase  = 20 * time.Second
	checked     = 50 // services with a health check every second
	changeEvery = 50 * time.Millisecond
)

// BenchmarkFlood measures what a flood of queries costs the traffic path: the time until a change of a
// service is applied, and how many health checks were late or disturbed. Agent and dnsperf share the
// processors of the machine.
func BenchmarkFlood(b *testing.B) {
	dnsperf := need.Program(b, "dnsperf")
	h := newHost(b)
	h.configure("")
	var services strings.Builder
	for i := range checked {
		at := netip.AddrPortFrom(netip.MustParseAddr("127.0.1.1"), uint16(10_000+i))
		h.Serve("tcp", at)
		fmt.Fprintf(&services, "[[service]]\nname = \"web%d\"\nnamespace = \"prod\"\nvips = [\"10.96.1.%[1]d\"]\nports = [{ port = 80, target_port = %d }]\nbackends = [{ address = %q }]\nhealth = { type = \"tcp\", interval = \"1s\", timeout = \"500ms\" }\n", i, at.Port(), at.Addr())
	}
	write(b, filepath.Join(h.dir, "services.d", "checked.toml"), services.String())
	h.start(binary(b), "web0.prod.svc."+zone)
	h.await(serving, fmt.Sprintf("web%d.prod.svc.%s", checked-1, zone), dns.TypeA)

	load := &bench{t: b, names: checked, dir: h.dir, node: h.Node, port: "8653"}
	var asked strings.Builder
	for i := range checked {
		fmt.Fprintf(&asked, "web%d.prod.svc.%s A\nno%[1]d.prod.svc.%[2]s A\n", i, zone)
	}
	load.asked = write(b, filepath.Join(h.dir, "queries"), asked.String())

	var quiet, flooded []time.Duration
	var late, answered float64
	for b.Loop() {
		quiet = append(quiet, changes(b, h.client, floodPhase)...)
		before := lateness(b, h.client)
		var n int
		var err error
		done := make(chan struct{})
		go func() {
			defer close(done)
			n, err = load.dnsperf(floodPhase, "nice", "-n", "19", dnsperf, "-Q", strconv.Itoa(floodRate), "-q", "1000")
		}()
		flooded = append(flooded, changes(b, h.client, floodPhase)...)
		if <-done; err != nil {
			b.Fatal(err)
		}
		answered += float64(n) / floodPhase.Seconds()
		late += lateness(b, h.client) - before
	}
	slices.Sort(quiet)
	slices.Sort(flooded)
	ms := func(all []time.Duration, q float64) float64 { return all[int(q*float64(len(all)-1))].Seconds() * 1000 }
	for _, q := range []float64{0.5, 0.99} {
		b.ReportMetric(ms(quiet, q), fmt.Sprintf("quiet-p%g-ms", q*100))
		b.ReportMetric(ms(flooded, q), fmt.Sprintf("flood-p%g-ms", q*100))
	}
	b.ReportMetric(ms(flooded, 0.5)/ms(quiet, 0.5), "x-quiet")
	b.ReportMetric(answered/float64(b.N), "answers/s")
	b.ReportMetric(late, "late")
}

// changes changes a service again and again, and returns how long each change took to be applied.
func changes(b *testing.B, api *http.Client, d time.Duration) (took []time.Duration) {
	b.Helper()
	tick := time.NewTicker(changeEvery)
	defer tick.Stop()
	for end := time.Now().Add(d); time.Now().Before(end); <-tick.C {
		body := fmt.Sprintf(`{"ports":[{"port":80}],"backends":[{"address":"127.0.1.1","weight":%d}],"health":{"type":"none"}}`, 1+len(took)%100)
		req, err := http.NewRequestWithContext(b.Context(), http.MethodPut, "http://agent/v1/services/prod/changing", bytes.NewReader([]byte(body)))
		if err != nil {
			b.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Prefer", "wait=30")
		began := time.Now()
		answer, err := api.Do(req)
		if err != nil {
			b.Fatal(err)
		}
		text, _ := io.ReadAll(answer.Body)
		answer.Body.Close()
		if answer.StatusCode/100 != 2 {
			b.Fatalf("%s: %s", answer.Status, text)
		}
		took = append(took, time.Since(began))
	}
	return took
}

var lateChecks = regexp.MustCompile(`(?m)^ironvip_health_check(?:s_late|_stalls)_total(?:\{.*\})? (\S+)$`)

// lateness returns how many health checks started more than an interval late, or were disturbed because
// the process did not run.
func lateness(b *testing.B, api *http.Client) (n float64) {
	b.Helper()
	answer, err := api.Get("http://agent/metrics")
	if err != nil {
		b.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		b.Fatal(err)
	}
	all := lateChecks.FindAllSubmatch(text, -1)
	if len(all) == 0 {
		b.Fatalf("no metrics of late checks in:\n%s", text)
	}
	for _, m := range all {
		value, err := strconv.ParseFloat(string(m[1]), 64)
		if err != nil {
			b.Fatal(err)
		}
		n += value
	}
	return n
}
