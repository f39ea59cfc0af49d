package cli

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/dashboard"
	"github.com/ironvip/ironvip/test/expect"
)

func TestTunnel(t *testing.T) {
	at := netip.MustParseAddrPort("127.0.0.1:8000")
	for _, c := range []struct{ session, user, sudo, want string }{
		{"", "ann", "", ""},
		{"192.0.2.9 50000 10.0.0.1 22", "ann", "", "ssh -N -L 8000:127.0.0.1:8000 ann@10.0.0.1"},
		{"192.0.2.9 50000 10.0.0.1 2222", "root", "ann", "ssh -N -p 2222 -L 8000:127.0.0.1:8000 ann@10.0.0.1"},
		{"2001:db8::9 50000 2001:db8::1 22", "", "", "ssh -N -L 8000:127.0.0.1:8000 2001:db8::1"},
		{"nonsense", "ann", "", ""},
	} {
		env := map[string]string{"SSH_CONNECTION": c.session, "USER": c.user, "SUDO_USER": c.sudo}
		expect.Equal(t, tunnel(func(name string) string { return env[name] }, at), c.want, "%+v", c)
	}
}

func TestDashboardCommand(t *testing.T) {
	a := newAgent(t)
	a.on("GET /v1/whoami", 200, v1.Whoami{Name: "ann", Role: "operator", Node: "lb1"})
	a.on("GET /v1/status", 200, healthyStatus())
	for _, listen := range []string{"0.0.0.0:0", "10.0.0.1:80", "8000", "localhost:8000"} {
		r := a.run(t, "dashboard --listen "+listen)
		expect.Equal(t, r.code, ExitUsage, "%s: %+v", listen, r)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stdout, to := io.Pipe()
	var stderr bytes.Buffer
	code := make(chan int)
	go func() {
		code <- Execute(ctx, Options{Stdout: to, Stderr: &stderr, Getenv: func(name string) string { return map[string]string{EnvAddr: a.socket}[name] }}, []string{"dashboard"})
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
	if got := <-code; got != ExitOK || !strings.Contains(stderr.String(), "dashboard of lb1 as ann (operator)") {
		t.Errorf("exit %d, %s", got, &stderr)
	}
}
