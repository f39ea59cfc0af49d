//go:build system

package browser

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/freeport"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/process"
	"github.com/ironvip/ironvip/test/wait"
)

// agent is a real agent with the userspace proxy and a pool of its own in 127.0.0.0/8.
type agent struct {
	testing.TB
	*process.Process
	dir  string
	base string // of its API: "http://127.0.0.1:20001"
	pool string // the first three bytes of its pool
}

var lastPool atomic.Int32

// start starts an agent, in which everyone on a loopback address is an admin. more is added to its
// configuration.
func start(t testing.TB, more string) *agent {
	t.Helper()
	bin := need.Binary(t)
	dir := t.TempDir()
	listen := fmt.Sprintf("127.0.0.1:%d", freeport.Reserve(t, nil, netip.MustParseAddr("127.0.0.1"))[1])
	a := &agent{TB: t, dir: dir, base: "http://" + listen, pool: fmt.Sprintf("127.%d.%d", 130+os.Getpid()%60, lastPool.Add(1))}
	config := fmt.Sprintf(`[node]
name = "lb1"
state_dir = "%[1]s/state"
[api]
socket = "%[1]s/sock"
listen = "%[2]s"
%[4]s
[dataplane]
mode = "proxy"
[dns]
listen = []
[[pool]]
name = "main"
cidrs = ["%[3]s.0/24"]
`, dir, listen, a.pool, more)
	a.write("ironvip.toml", config)
	must.Succeed(t, os.Mkdir(filepath.Join(dir, "services.d"), 0o755))
	a.Process = process.New(bin, filepath.Join(dir, "log"), nil, "agent", "--config", dir)
	t.Cleanup(func() {
		expect.Succeed(t, a.Stop())
		if t.Failed() {
			t.Logf("the agent's log: %s", a.LogEnd(1<<14))
		}
	})
	a.begin()
	return a
}

// loopback makes every process of this host an admin.
const loopback = "insecure_loopback = true"

// begin starts the agent's process and waits until it is ready.
func (a *agent) begin() {
	a.Helper()
	must.Succeed(a, a.Start())
	wait.For(a, "the agent is ready", func() error {
		response, err := http.Get(a.base + "/readyz")
		if err != nil {
			return err
		}
		response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("%s", response.Status)
		}
		return nil
	})
}

// write replaces a file of the configuration.
func (a *agent) write(name, text string) {
	a.Helper()
	path := filepath.Join(a.dir, name)
	must.Succeed(a, os.WriteFile(path+".new", []byte(text), 0o644))
	must.Succeed(a, os.Rename(path+".new", path))
}

// call sends a request with a JSON body and returns the body of the response, which must be a success.
func (a *agent) call(method, path string, body any) []byte {
	a.Helper()
	text := must.Get(json.Marshal(body))(a)
	request := must.Get(http.NewRequestWithContext(a.Context(), method, a.base+path, bytes.NewReader(text)))(a)
	request.Header.Set("Prefer", "wait=60")
	response := must.Get(http.DefaultClient.Do(request))(a)
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode >= 300 {
		a.Fatalf("%s %s: %s %v: %s", method, path, response.Status, err, answer)
	}
	return answer
}

// read decodes the response to a GET.
func read[T any](a *agent, path string) (value T) {
	a.Helper()
	must.Succeed(a, json.Unmarshal(a.call(http.MethodGet, path, nil), &value))
	return value
}

// object is a JSON object.
type object = map[string]any

// put registers a service with a port and backends.
func (a *agent) put(name string, port int, backends ...string) {
	a.Helper()
	a.call(http.MethodPut, "/v1/services/"+name, spec(port, backends...))
}

func spec(port int, backends ...string) object {
	list := []object{}
	for _, b := range backends {
		at := netip.MustParseAddrPort(b)
		list = append(list, object{"address": at.Addr(), "port": at.Port()})
	}
	return object{"ports": []object{{"name": "http", "port": port}}, "backends": list, "health": object{"type": "tcp", "interval": "1s", "timeout": "1s"}}
}

// backend is a server that answers each line with itself, and can be stopped and started again.
type backend struct {
	testing.TB
	at   string
	mu   sync.Mutex
	l    net.Listener
	open map[net.Conn]bool
}

func newBackend(t testing.TB) *backend {
	t.Helper()
	b := &backend{TB: t, at: fmt.Sprintf("127.0.0.1:%d", freeport.Reserve(t, nil, netip.MustParseAddr("127.0.0.1"))[1]), open: map[net.Conn]bool{}}
	b.start()
	t.Cleanup(b.stop)
	return b
}

func (b *backend) start() {
	b.Helper()
	l := must.Get(net.Listen("tcp", b.at))(b)
	b.mu.Lock()
	b.l = l
	b.mu.Unlock()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			b.mu.Lock()
			b.open[c] = true
			b.mu.Unlock()
			go func() {
				_, _ = io.Copy(c, c)
				c.Close()
				b.mu.Lock()
				delete(b.open, c)
				b.mu.Unlock()
			}()
		}
	}()
}

// stop ends the server and its connections.
func (b *backend) stop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.l.Close()
	for c := range b.open {
		c.Close()
	}
}

// dial opens a connection that has carried a line, until the end of the test.
func dial(t testing.TB, at string) net.Conn {
	t.Helper()
	c := must.Get(net.Dial("tcp", at))(t)
	t.Cleanup(func() { c.Close() })
	must.Get(fmt.Fprintln(c, "hello"))(t)
	must.Get(io.ReadFull(c, make([]byte, len("hello\n"))))(t)
	return c
}
