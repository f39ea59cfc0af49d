//go:build system

package monitoring

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/ironvip/ironvip/test/accept"
	"github.com/ironvip/ironvip/test/freeport"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/wait"
)

// busyAgent is an agent with the userspace proxy, an announcer, DNS, a backend that fails its checks,
// a service without backends, and one that has reached its limits.
type busyAgent struct {
	listen, web, empty, dns string // addresses
	backend                 int    // a port that accepts
	turn                    int
	last                    time.Time
	hold                    net.Conn
}

const agentConfig = `[node]
name = "lb1"
state_dir = "%[1]s/state"
[api]
socket = "%[1]s/sock"
listen = "127.0.0.1:%[2]d"
insecure_loopback = true
[dataplane]
mode = "proxy"
device = "ironvip-test"
[dns]
listen = ["127.0.0.1:%[3]d"]
[announce]
mode = "bgp"
socket = "%[1]s/announcer"
[[announce.bgp]]
peer = "127.0.0.1"
asn = 65001
local_asn = 65010
[[pool]]
name = "main"
cidrs = ["127.97.33.0/24"]
`

const agentServices = `[[service]]
name = "web"
vips = ["127.97.33.1"]
ports = [ { port = %[1]d } ]
max_connections = 1
max_queue = 1
queue_timeout = "10ms"
backends = [ { address = "127.0.0.1", port = %[2]d }, { address = "127.0.0.1", port = %[3]d } ]
[service.health]
type = "tcp"
interval = "500ms"
timeout = "300ms"
[[service]]
name = "empty"
vips = ["127.97.33.2"]
ports = [ { port = %[1]d } ]
`

func startBusyAgent(t *testing.T) *busyAgent {
	t.Helper()
	dir, ports := t.TempDir(), freeport.Reserve(t, nil, loopback)
	backend := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { backend.Close() })
	accept.Each(backend, func(c net.Conn) {
		_, _ = io.Copy(c, c)
	})
	a := &busyAgent{listen: fmt.Sprintf("127.0.0.1:%d", ports[1]), dns: fmt.Sprintf("127.0.0.1:%d", ports[2]), backend: backend.Addr().(*net.TCPAddr).Port,
		web: fmt.Sprintf("127.97.33.1:%d", ports[3]), empty: fmt.Sprintf("127.97.33.2:%d", ports[3])}
	must.Succeed(t, os.Mkdir(filepath.Join(dir, "services.d"), 0o700))
	write(t, filepath.Join(dir, "ironvip.toml"), fmt.Sprintf(agentConfig, dir, ports[1], ports[2]))
	write(t, filepath.Join(dir, "services.d", "all.toml"), fmt.Sprintf(agentServices, ports[3], a.backend, ports[4]))
	if out, err := exec.CommandContext(t.Context(), ironvip(t), "config", "validate", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	start(t, ironvip(t), "announcer", "--socket", filepath.Join(dir, "announcer"))
	start(t, ironvip(t), "agent", "--config", filepath.Join(dir, "ironvip.toml"))
	wait.For(t, "the agent is ready", func() error {
		_, err := get(t.Context(), "http://"+a.listen+"/readyz")
		return err
	})
	t.Cleanup(func() {
		if a.hold != nil {
			a.hold.Close()
		}
	})
	return a
}

// work lets clients come and services change, at most twice a second.
func (a *busyAgent) work(ctx context.Context) error {
	if time.Since(a.last) < 500*time.Millisecond {
		return nil
	}
	a.last, a.turn = time.Now(), a.turn+1
	if a.hold != nil {
		a.hold.Close()
	}
	hold, err := dial(ctx, a.web) // holds the only place of the service
	if err != nil {
		return err
	}
	a.hold = hold
	for _, address := range []string{a.web, a.empty} { // refused
		if c, err := dial(ctx, address); err == nil {
			_ = c.Close()
		}
	}
	query := new(dns.Msg)
	query.SetQuestion("web.default.ironvip.", dns.TypeA)
	if _, _, err := new(dns.Client).ExchangeContext(ctx, query, a.dns); err != nil {
		return err
	}
	_, err = send(ctx, "PUT", "http://"+a.listen+"/v1/services/default/changing",
		fmt.Sprintf(`{"ports":[{"port":%d}],"backends":[{"address":"127.0.0.1","port":%d,"weight":%d}]}`, 1+a.backend%1000, a.backend, 1+a.turn%2))
	return err
}

// dial connects, and sends and receives a byte. It returns an error if the client is refused.
func dial(ctx context.Context, address string) (net.Conn, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err = c.Write([]byte("x")); err == nil {
		_, err = c.Read(make([]byte, 1))
	}
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, nil
}
