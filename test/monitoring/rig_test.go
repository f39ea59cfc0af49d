//go:build system

package monitoring

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/freeport"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/process"
	"github.com/ironvip/ironvip/test/wait"
)

var loopback = netip.MustParseAddr("127.0.0.1")

// ironvip returns the path of the built binary.
func ironvip(t *testing.T) string {
	t.Helper()
	bin := os.Getenv("IRONVIP_BIN")
	if bin == "" {
		bin = "../../bin/ironvip"
	}
	_, err := os.Stat(bin)
	must.Succeed(t, err, "run make build, or set IRONVIP_BIN")
	return bin
}

// start runs a program until the end of the test.
func start(t *testing.T, bin string, args ...string) *process.Process {
	t.Helper()
	p := process.New(bin, filepath.Join(t.TempDir(), "log"), nil, args...)
	must.Succeed(t, p.Start())
	t.Cleanup(func() {
		expect.Succeed(t, p.Stop())
		if t.Failed() {
			t.Logf("%s wrote\n%s", filepath.Base(bin), p.LogEnd(4000))
		}
	})
	return p
}

func read(t *testing.T, path string) string {
	t.Helper()
	text := must.Get(os.ReadFile(path))(t)
	return string(text)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	must.Succeed(t, os.WriteFile(path, []byte(text), 0o600))
}

// get returns the body of a response with the status 200.
func get(ctx context.Context, address string) ([]byte, error) {
	return send(ctx, http.MethodGet, address, "")
}

// send returns the body of a response with a status of success.
func send(ctx context.Context, method, address, body string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, method, address, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	answer, err := (&http.Client{Timeout: time.Minute}).Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	out, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode >= 300 {
		err = fmt.Errorf("%s %s: %s: %s", method, address, answer.Status, out)
	}
	return out, err
}

// prometheus is a running Prometheus.
type prometheus struct {
	*process.Process
	url string
}

// sample is an element of the result of a query.
type sample struct {
	Metric map[string]string
	Value  [2]any // time and value
}

// startPrometheus starts a Prometheus that reads the agent at an address each second as the job
// ironvip, and evaluates rules as often.
func startPrometheus(t *testing.T, agent, rules string) *prometheus {
	t.Helper()
	bin := need.Daemon(t, "prometheus")
	dir := t.TempDir()
	write(t, filepath.Join(dir, "rules.yml"), rules)
	write(t, filepath.Join(dir, "prometheus.yml"), fmt.Sprintf("global: { scrape_interval: 1s, evaluation_interval: 1s }\nrule_files: [rules.yml]\n"+
		"scrape_configs:\n  - job_name: ironvip\n    static_configs: [{ targets: [%q] }]\n", agent))
	listen := fmt.Sprintf("127.0.0.1:%d", freeport.Reserve(t, nil, loopback)[1])
	p := start(t, bin, "--config.file="+filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+listen)
	return &prometheus{p, "http://" + listen}
}

// query returns the result of an expression that yields a vector.
func (p *prometheus) query(ctx context.Context, expr string) ([]sample, error) {
	body, err := get(ctx, p.url+"/api/v1/query?query="+url.QueryEscape(expr))
	if err != nil {
		return nil, err
	}
	var answer struct {
		Data struct{ Result []sample }
	}
	err = json.Unmarshal(body, &answer)
	return answer.Data.Result, err
}

// until waits for a result of a query.
func (p *prometheus) until(t *testing.T, what, expr string, ok func([]sample) bool) {
	t.Helper()
	wait.For(t, what, func() error {
		found, err := p.query(t.Context(), expr)
		if err == nil && !ok(found) {
			err = fmt.Errorf("%s is %v; %s", expr, found, p.LogEnd(2000))
		}
		return err
	})
}
