//go:build system

package resolvers

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/test/must"

	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/process"
)

const (
	floodRate   = "100000" // queries per second
	floodPhase  = 5 * time.Second
	checked     = 50 // services with a health check every second
	changeEvery = 50 * time.Millisecond
	resyncEvery = time.Second // see configure
)

// floods are the phases of a round of BenchmarkFlood, with the arguments of dnsperf.
var floods = []struct {
	name string
	args []string
}{
	{"quiet", nil},
	{"udp", []string{"-c", "4"}},
	{"tcp", []string{"-c", "32", "-m", "tcp"}},
	{"connections", []string{"-c", "32", "-m", "tcp", "-O", "num-queries-per-conn=1"}},
}

// phase is what happened in all phases of one kind.
type phase struct {
	changes []time.Duration // until a change of a service was applied
	resyncs []time.Duration // from one resync of the dataplane to the next
	late    float64         // health checks
	answers float64         // per second
	cpu     float64         // that the agent used, in processors
}

// BenchmarkFlood measures what a flood of queries costs the traffic path: the time until a change of a
// service is applied, the health checks that were late or disturbed, and the time between two resyncs of
// the dataplane, which are due every second. Agent and dnsperf share the processors of the machine. An
// iteration has a phase without a flood and one with each kind of flood.
func BenchmarkFlood(b *testing.B) {
	h := newHost(b)
	h.configure("")
	var services, queries strings.Builder
	for i := range checked {
		at := netip.AddrPortFrom(netip.MustParseAddr("127.0.1.1"), uint16(10_000+i))
		h.Serve("tcp", at)
		fmt.Fprintf(&services, "[[service]]\nname = \"web%d\"\nnamespace = \"prod\"\nvips = [\"10.96.1.%[1]d\"]\nports = [{ port = 80, target_port = %d }]\nbackends = [{ address = %q }]\nhealth = { type = \"tcp\", interval = \"1s\", timeout = \"500ms\" }\n", i, at.Port(), at.Addr())
		fmt.Fprintf(&queries, "web%d.prod.svc.%s A\nno%[1]d.prod.svc.%[2]s A\n", i, zone)
	}
	write(b, filepath.Join(h.dir, "services.d", "checked.toml"), services.String())
	h.start(need.Binary(b), "web0.prod.svc."+zone)
	h.await(serving, fmt.Sprintf("web%d.prod.svc.%s", checked-1, zone), dns.TypeA)
	load := newLoad(b, h.Node, "8653", h.dir, queries.String())

	phases := make([]phase, len(floods))
	for b.Loop() {
		for i, f := range floods {
			h.flood(b, &phases[i], load, f.args)
		}
	}
	quiet := &phases[0]
	ms := func(all []time.Duration, share float64) float64 { return quantile(all, share).Seconds() * 1000 }
	for i := range phases {
		p, name := &phases[i], floods[i].name
		rounds := float64(b.N)
		b.Logf("%-12s %6.0f answers/s, agent %.2f processors; change: median %.1f ms (%.2f x quiet), p99 %.0f ms (%.2f x), most %.0f ms; resync: p50 %.0f, most %.0f ms; %.0f checks late",
			name, p.answers/rounds, p.cpu/rounds, ms(p.changes, 0.5), ms(p.changes, 0.5)/ms(quiet.changes, 0.5), ms(p.changes, 0.99), ms(p.changes, 0.99)/ms(quiet.changes, 0.99), ms(p.changes, 1),
			ms(p.resyncs, 0.5), ms(p.resyncs, 1), p.late)
		b.ReportMetric(ms(p.changes, 0.5), name+"-p50-ms")
		b.ReportMetric(ms(p.changes, 0.99), name+"-p99-ms")
		b.ReportMetric(ms(p.resyncs, 1), name+"-resync-ms")
		b.ReportMetric(p.late, name+"-late")
	}
}

// flood runs one phase, with a flood if there are arguments for it.
func (h *host) flood(b *testing.B, p *phase, load load, args []string) {
	b.Helper()
	done := make(chan error, 1)
	go func() {
		if args == nil {
			done <- nil
			return
		}
		n, err := load.run(floodPhase, []string{"nice", "-n", "19"}, append(args, "-Q", floodRate, "-q", "1000")...)
		p.answers += float64(n) / floodPhase.Seconds()
		done <- err
	}()
	stop, resyncs := make(chan struct{}), make(chan error, 1)
	go func() { resyncs <- h.resyncs(stop, &p.resyncs) }()
	late, cpu := h.lateness(b), process.CPUTime(b, h.agent.Pid())
	p.changes = append(p.changes, h.changes(b, floodPhase)...)
	p.cpu += (process.CPUTime(b, h.agent.Pid()) - cpu).Seconds() / floodPhase.Seconds()
	p.late += h.lateness(b) - late
	close(stop)
	for _, c := range []chan error{done, resyncs} {
		must.Succeed(b, <-c)
	}
}

// changes changes a service again and again, and returns how long each change took to be applied.
func (h *host) changes(b *testing.B, d time.Duration) (took []time.Duration) {
	b.Helper()
	tick := time.NewTicker(changeEvery)
	defer tick.Stop()
	for end := time.Now().Add(d); time.Now().Before(end); <-tick.C {
		body := fmt.Sprintf(`{"ports":[{"port":80}],"backends":[{"address":"127.0.1.1","weight":%d}],"health":{"type":"none"}}`, 1+len(took)%100)
		req := must.Get(http.NewRequestWithContext(b.Context(), http.MethodPut, "http://agent/v1/services/prod/changing", bytes.NewReader([]byte(body))))(b)
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Prefer", "wait=30")
		began := time.Now()
		answer := must.Get(h.client.Do(req))(b)
		text, _ := io.ReadAll(answer.Body)
		answer.Body.Close()
		must.Equal(b, answer.StatusCode/100, 2, "%s: %s", answer.Status, text)
		took = append(took, time.Since(began))
	}
	return took
}

// resyncs adds the times between resyncs until stop is closed.
func (h *host) resyncs(stop <-chan struct{}, took *[]time.Duration) error {
	tick := time.NewTicker(resyncEvery / 5)
	defer tick.Stop()
	var last time.Time
	for {
		select {
		case <-stop:
			return nil
		case <-tick.C:
		}
		text, err := h.get("/v1/dataplane")
		var plane v1.Dataplane
		if err == nil {
			err = json.Unmarshal(text, &plane)
		}
		if err != nil {
			return err
		}
		if now := plane.LastResync; now != nil && !now.Equal(last) {
			if !last.IsZero() {
				*took = append(*took, now.Sub(last))
			}
			last = *now
		}
	}
}

// get reads a path of the agent's API.
func (h *host) get(path string) ([]byte, error) {
	answer, err := h.client.Get("http://agent" + path)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	return io.ReadAll(answer.Body)
}

var lateChecks = regexp.MustCompile(`(?m)^ironvip_health_check(?:s_late|_stalls)_total(?:\{.*\})? (\S+)$`)

// lateness returns how many health checks started more than an interval late, or were disturbed because
// the process did not run.
func (h *host) lateness(b *testing.B) (n float64) {
	b.Helper()
	text := must.Get(h.get("/metrics"))(b)
	all := lateChecks.FindAllSubmatch(text, -1)
	must.True(b, len(all) != 0, "no metrics of late checks in:\n%s", text)
	for _, m := range all {
		value := must.Get(strconv.ParseFloat(string(m[1]), 64))(b)
		n += value
	}
	return n
}
