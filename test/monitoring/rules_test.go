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
	ruleTests = folder + "/ironvip_test.yml"
)

// Each alert fires, and does not fire, in a test of promtool.
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

// Every metric of the rules is one that the code makes.
func TestRulesNameMetrics(t *testing.T) {
	code := ""
	for _, path := range []string{"../../api/metrics.go", "../../api/metrics_health.go", "../../internal/agent/announcing/metrics.go",
		"../../internal/agent/naming/metrics.go", "../../internal/agent/lostnodes/status.go"} {
		code += read(t, path)
	}
	for _, name := range regexp.MustCompile(`\bironvip_(\w+)`).FindAllStringSubmatch(withoutComments(read(t, rules)), -1) {
		short, _ := strings.CutPrefix(name[1], "dns_") // whose constructor adds the prefix
		if !strings.Contains(code, `"`+name[1]+`"`) && !strings.Contains(code, `"`+name[0]+`"`) && !strings.Contains(code, `"`+short+`"`) {
			t.Errorf("no metric %s", name[0])
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
