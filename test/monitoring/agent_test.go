//go:build system

package monitoring

import (
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/exclusive"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/process"
	"github.com/ironvip/ironvip/test/wait"
)

// demo starts an agent in demo mode, and returns the process and the address of its API.
func demo(t *testing.T) (agent *process.Process, listen string) {
	t.Helper()
	exclusive.Use(t, exclusive.Demo)
	agent = start(t, ironvip(t), "agent", "--demo")
	wait.For(t, "the demo greets", func() error {
		found := regexp.MustCompile(`IRONVIP_ADDR=http://(\S+)`).FindStringSubmatch(agent.LogEnd(1 << 16))
		if found == nil {
			return fmt.Errorf("no address in %s", agent.LogEnd(1<<16))
		}
		listen = found[1]
		return nil
	})
	return agent, listen
}

// A real Prometheus with the rules reads a real agent. When the agent stops, IronvipAgentDown fires,
// and no other alert.
//
// Slow: Prometheus and an agent start, and Prometheus notices the end of the agent at a scrape.
func TestAlertFires(t *testing.T) {
	t.Parallel()
	agent, listen := demo(t)
	// The alert of the file waits for two minutes. This copy fires at once.
	text := read(t, rules)
	begin := strings.Index(text, "- alert: IronvipAgentDown\n")
	must.AtLeast(t, begin, 0, "no alert IronvipAgentDown")
	server := startPrometheus(t, listen, text[:begin]+strings.Replace(text[begin:], "for: 2m", "for: 0s", 1))
	server.until(t, "Prometheus reads the agent", `up{job="ironvip"} == 1 and on () ironvip_usable_backends == 5`,
		func(f []sample) bool { return len(f) == 1 })
	if firing, err := server.query(t.Context(), `ALERTS{alertstate="firing"}`); err != nil || len(firing) > 0 {
		t.Errorf("alerts of an agent without faults: %v %v", firing, err)
	}
	must.Succeed(t, agent.Stop())
	server.until(t, "the alert fires", `ALERTS{alertstate="firing"}`, func(f []sample) bool {
		return len(f) == 1 && f[0].Metric["alertname"] == "IronvipAgentDown" && f[0].Metric["severity"] == "critical"
	})
}

// promtool finds no fault in the metrics of a real agent.
func TestMetricsAreClean(t *testing.T) {
	t.Parallel()
	promtool := need.Daemon(t, "promtool")
	a := startBusyAgent(t)
	wait.For(t, "the announcer is connected, and clients are served and refused", func() error {
		body, err := get(t.Context(), "http://"+a.listen+"/metrics")
		if err != nil {
			return err
		}
		for _, want := range []string{"ironvip_announcer_up 1", "ironvip_announce_peer_up{", `ironvip_service_refused_total{reason="no_backend"`, "ironvip_dns_queries_total{", "ironvip_convergence_duration_seconds_count{"} {
			if !strings.Contains(string(body), "\n"+want) {
				return errors.Join(fmt.Errorf("no %s", want), a.work(t.Context()))
			}
		}
		return nil
	})
	body := must.Get(get(t.Context(), "http://"+a.listen+"/metrics"))(t)
	page := read(t, metrics)
	for _, family := range regexp.MustCompile(`(?m)^# TYPE (ironvip_\w+) `).FindAllStringSubmatch(string(body), -1) {
		if !hasMetric(page, family[1]) {
			t.Errorf("docs/metrics.md has no %s", family[1])
		}
	}
	var own strings.Builder // without those of the Go runtime, which the Prometheus library makes
	for line := range strings.Lines(string(body)) {
		if strings.Contains(line, "ironvip_") {
			own.WriteString(line)
		}
	}
	cmd := exec.CommandContext(t.Context(), promtool, "check", "metrics")
	cmd.Stdin = strings.NewReader(own.String())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("promtool check metrics: %v\n%s", err, out)
	}
}
