//go:build system

package monitoring

import (
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/need"
)

const (
	folder    = "../../configs/prometheus"
	rules     = folder + "/ironvip.rules.yml"
	metrics   = "../../docs/metrics.md"
	ruleTests = folder + "/ironvip_test.yml"
)

// Each alert fires, and does not fire, in a test of promtool.
//
// Slow: promtool evaluates hours of each alert.
func TestRules(t *testing.T) {
	t.Parallel()
	promtool := need.Daemon(t, "promtool")
	for _, args := range [][]string{{"check", "rules", "ironvip.rules.yml"}, {"test", "rules", "ironvip_test.yml"}} {
		cmd := exec.CommandContext(t.Context(), promtool, args...)
		cmd.Dir = folder
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	tests := read(t, ruleTests)
	alerts := regexp.MustCompile(`(?m)^ +- alert: (\w+)$`).FindAllStringSubmatch(read(t, rules), -1)
	if len(alerts) == 0 {
		t.Fatal("no alerts")
	}
	for _, alert := range alerts {
		for _, what := range []string{" fires\n", " does not fire\n"} {
			if !strings.Contains(tests, "- name: "+alert[1]+what) {
				t.Errorf("no test that %s%s", alert[1], what)
			}
		}
	}
}

// Every metric of the rules is in the reference, which is made from the code.
func TestRulesNameMetrics(t *testing.T) {
	page := read(t, metrics)
	for _, name := range regexp.MustCompile(`\bironvip_\w+`).FindAllString(withoutComments(read(t, rules)), -1) {
		if !strings.Contains(page, "\n| `"+name+"` |") {
			t.Errorf("no metric %s", name)
		}
	}
}

// Every reason of a refusal is one of the proxy. A test of the proxy compares them with its page.
func TestRulesNameReasons(t *testing.T) {
	page := read(t, "../../docs/proxy.md")
	found := regexp.MustCompile(`reason=~?"([a-z_|]+)"`).FindAllStringSubmatch(read(t, rules)+read(t, ruleTests), -1)
	if len(found) == 0 {
		t.Fatal("no reasons")
	}
	for _, labels := range found {
		for reason := range strings.SplitSeq(labels[1], "|") {
			if !strings.Contains(page, "\n| `"+reason+"` |") {
				t.Errorf("docs/proxy.md has no reason %s", reason)
			}
		}
	}
}

func withoutComments(yaml string) string {
	return regexp.MustCompile(`(?m)^\s*#.*$`).ReplaceAllString(yaml, "")
}
