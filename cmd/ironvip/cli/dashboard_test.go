package cli

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/command"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/dashboard"
	"github.com/ironvip/ironvip/test/expect"
)

func TestDashboardCommand(t *testing.T) {
	a := newAgent(t)
	a.on("GET /v1/whoami", 200, v1.Whoami{Name: "ann", Role: "operator", Node: "lb1"})
	a.on("GET /v1/status", 200, healthyStatus())
	for _, listen := range []string{"0.0.0.0:0", "10.0.0.1:80", "8000", "localhost:8000"} {
		r := a.run(t, "dashboard --listen "+listen)
		expect.Equal(t, r.code, command.ExitUsage, "%s: %+v", listen, r)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stdout, to := io.Pipe()
	var stderr bytes.Buffer
	code := make(chan int)
	go func() {
		code <- Execute(ctx, Options{Environment: command.Environment{Stdout: to, Stderr: &stderr, Getenv: func(name string) string { return map[string]string{command.EnvAddr: a.socket}[name] }}}, []string{"dashboard"})
	}()
	url, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Get(strings.TrimSpace(url))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	_, key, has := strings.Cut(resp.Header.Get("Location"), "#key=")
	if resp.StatusCode != http.StatusSeeOther || !has {
		t.Fatalf("%s: %s", url, resp.Status)
	}
	base, _, _ := strings.Cut(url, "/ui/")
	req, err := http.NewRequestWithContext(t.Context(), "GET", base+"/v1/status", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set(dashboard.KeyHeader, key)
	if resp, err = client.Do(req); err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil || !strings.Contains(string(body), `"node":"lb1"`) {
		t.Errorf("%s %v", body, err)
	}
	client.CloseIdleConnections()
	cancel()
	if got := <-code; got != command.ExitOK || !strings.Contains(stderr.String(), "dashboard of lb1 as ann (operator)") {
		t.Errorf("exit %d, %s", got, &stderr)
	}
}
