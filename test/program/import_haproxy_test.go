//go:build system

package program

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/wait"
)

// haproxySections are sections whose conversion is easy to get wrong. POOL is the first three numbers of the addresses that
// they bind, and A, B and C are the addresses of servers that work.
const haproxySections = `
defaults
  mode tcp
  timeout connect 5s
  timeout client 1m
  timeout server 1m
  default-server maxconn 1
frontend parts
  bind POOL.1:8001
  default_backend parts
frontend chosen
  bind POOL.2:8002
  use_backend chosen
  default_backend parts
listen backup
  bind POOL.3:8003
  server a A
  server b B backup
listen disabled
  bind POOL.4:8004
  server a A disabled
  server b B
listen server-limit
  bind POOL.5:8005
  server a A
listen frontend-limit
  bind POOL.6:8006
  maxconn 1
  default-server maxconn 0
  server a A
frontend ignored
  bind POOL.7:8007
  default_backend ignored
.if defined(NOBODY)
listen conditional
  bind POOL.8:8008
  server a A
.endif
defaults
  mode tcp
  timeout connect 5s
  timeout client 1m
  timeout server 1m
backend parts
  server a A
  server b B
backend chosen
  server c C
backend ignored
  maxconn 1
  server a A
`

// The answers of services that are converted from a configuration of HAProxy are those of HAProxy.
func TestImportedServicesAnswerTheSame(t *testing.T) {
	parallel(t)
	program := need.Program(t, "haproxy")
	h := newHost(t)
	pairs := []string{"POOL", h.pool}
	for _, name := range []string{"A", "B", "C"} {
		pairs = append(pairs, " "+name, " "+newBackend(t, name).addr)
	}
	conf := filepath.Join(t.TempDir(), "haproxy.cfg")
	must.Succeed(t, os.WriteFile(conf, []byte(strings.NewReplacer(pairs...).Replace(haproxySections)), 0o644))
	var addrs []string
	for n := range 8 {
		addrs = append(addrs, fmt.Sprintf("%s.%d:%d", h.pool, n+1, 8001+n))
	}

	haproxy := exec.Command(program, "-db", "-q", "-f", conf)
	haproxy.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must.Succeed(t, haproxy.Start())
	h.eventually("HAProxy listens", func() error { _, err := who(addrs[0]); return err })
	want := answers(addrs)
	must.Succeed(t, haproxy.Process.Kill())
	_ = haproxy.Wait()

	out := t.TempDir()
	if r := command(t, "import", "haproxy", conf, "--dir", out); r.code != 0 || strings.Count(r.stderr, conf+":") != 3 {
		t.Fatalf("not the notes about default_backend, .if and maxconn of a backend: %v", r)
	}
	h.edit("ironvip.toml", fmt.Sprintf("[[pool]]\nname = \"main\"\ncidrs = [%q]\n", h.pool+".0/24"), string(must.Get(os.ReadFile(filepath.Join(out, "ironvip.toml")))(t)))
	h.write("services.d/imported.toml", string(must.Get(os.ReadFile(filepath.Join(out, "services.d/haproxy.toml")))(t)))
	h.start()
	for i, got := range answers(addrs) {
		expect.Equal(t, got, want[i], addrs[i])
	}
}

// answers returns for each address who answers there, and what becomes of a client beyond a first one that stays.
func answers(addrs []string) (out []string) {
	for _, at := range addrs {
		names := map[string]bool{}
		for range 6 {
			name, err := who(at)
			if err != nil {
				name = "nobody"
			}
			names[name] = true
		}
		text := ""
		for _, name := range []string{"A", "B", "C", "nobody"} {
			if names[name] {
				text += name
			}
		}
		out = append(out, text+secondClient(at))
	}
	return out
}

// secondClient returns whether a second client is served beside the first one, waits for its end, or is refused.
func secondClient(at string) string {
	var clients []net.Conn
	read := func(within time.Duration) string {
		c, err := net.Dial("tcp", at)
		if err != nil {
			return "refused"
		}
		clients = append(clients, c)
		c.SetDeadline(time.Now().Add(within))
		switch _, err := c.Read(make([]byte, 1)); {
		case os.IsTimeout(err):
			return "waits"
		case err != nil:
			return "refused"
		}
		return "served"
	}
	defer func() {
		for _, c := range clients {
			c.Close()
		}
	}()
	said := []string{read(wait.Timeout), read(200 * time.Millisecond)}
	if said[1] == "waits" {
		clients[0].Close()
		clients[1].SetDeadline(time.Now().Add(wait.Timeout))
		if _, err := clients[1].Read(make([]byte, 1)); err != nil {
			said = append(said, "in vain")
		}
	}
	return " " + strings.Join(slices.Compact(said), ", ")
}
