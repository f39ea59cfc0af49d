//go:build system || vm

package program

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/test/accept"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/logbuffer"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/wait"
)

// bin is the binary under test.
func bin(t testing.TB) string {
	t.Helper()
	path := os.Getenv("IRONVIP_BIN")
	must.True(t, path != "", "IRONVIP_BIN is not set: run `make system`, or set it to the built binary's absolute path")
	return path
}

// host is one agent with its directory: configuration, state and socket.
type host struct {
	t    testing.TB
	dir  string
	pool string // the first three bytes of the pool's addresses: "127.96.7"
	// adjust changes the agent's process before its start; nil changes nothing.
	adjust func(*exec.Cmd)
	// inside runs the start of the process elsewhere, for example in a network namespace; nil is
	// here.
	inside func(func())

	mu   sync.Mutex
	cmd  *exec.Cmd
	log  *logbuffer.Buffer
	done chan error
}

var (
	poolMu   sync.Mutex
	lastPool = 10
)

// newHost creates a configuration directory with one pool of 256 addresses.
func newHost(t testing.TB) *host {
	t.Helper()
	poolMu.Lock()
	lastPool++
	h := &host{t: t, dir: t.TempDir(), pool: fmt.Sprintf("%s.%d", poolBase, lastPool)}
	poolMu.Unlock()
	h.config("")
	must.Succeed(t, os.Mkdir(filepath.Join(h.dir, "services.d"), 0o755))
	t.Cleanup(func() {
		h.stop()
		if t.Failed() {
			t.Logf("the agent's log:\n%s", h.log)
		}
	})
	return h
}

// config writes ironvip.toml with more appended.
func (h *host) config(more string) {
	h.t.Helper()
	h.write("ironvip.toml", fmt.Sprintf(`[node]
name = "lb1"
state_dir = "%[1]s/state"
[api]
socket = "%[1]s/sock"
[dataplane]
mode = "%[2]s"
resync_interval = "%[5]s"
[[pool]]
name = "main"
cidrs = ["%[3]s.0/24"]
%[4]s
`, h.dir, mode, h.pool, more, resync))
}

// write replaces a file of the configuration atomically, as a careful editor does.
func (h *host) write(name, text string) {
	h.t.Helper()
	path := filepath.Join(h.dir, name)
	tmp := filepath.Join(h.dir, ".tmp")
	must.Succeed(h.t, os.WriteFile(tmp, []byte(text), 0o644))
	must.Succeed(h.t, os.Rename(tmp, path))
}

func (h *host) remove(name string) {
	h.t.Helper()
	must.Succeed(h.t, os.Remove(filepath.Join(h.dir, name)))
}

// edit replaces a text that must exist in a file of the configuration.
func (h *host) edit(name, from, to string) {
	h.t.Helper()
	text := must.Get(os.ReadFile(filepath.Join(h.dir, name)))(h.t)
	must.True(h.t, bytes.Contains(text, []byte(from)), "%s does not have %q", name, from)
	h.write(name, strings.ReplaceAll(string(text), from, to))
}

// start runs the agent and waits until it is ready.
func (h *host) start() {
	h.t.Helper()
	h.launch()
	h.ready()
}

func (h *host) launch() {
	h.t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.log == nil {
		h.log = &logbuffer.Buffer{}
	}
	h.cmd = exec.Command(bin(h.t), "agent", "--config", h.dir)
	h.cmd.Stdout, h.cmd.Stderr = h.log, h.log
	h.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if h.adjust != nil {
		h.adjust(h.cmd)
	}
	var err error
	start := func() { err = h.cmd.Start() }
	if h.inside != nil {
		h.inside(start)
	} else {
		start()
	}
	if err != nil {
		h.cmd = nil // there is nothing to stop
		h.t.Fatal(err)
	}
	h.done = make(chan error, 1)
	go func(cmd *exec.Cmd, done chan error) { done <- cmd.Wait() }(h.cmd, h.done)
}

func (h *host) ready() {
	h.t.Helper()
	h.eventually("the agent is ready", func() error {
		select {
		case err := <-h.done:
			h.done <- err
			h.t.Fatalf("the agent ended: %v\n%s", err, h.log)
		default:
		}
		resp, err := h.http().Get("http://ironvip/readyz")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			b, _ := io.ReadAll(resp.Body)
			return fmt.Errorf("%s: %s", resp.Status, b)
		}
		return nil
	})
}

// fails starts an agent that must end by itself with exit code 1, and returns its output.
func (h *host) fails() string {
	h.t.Helper()
	h.log = nil
	h.launch()
	h.mu.Lock()
	defer h.mu.Unlock()
	select {
	case <-h.done:
	case <-time.After(wait.Timeout):
		h.cmd.Process.Kill()
		<-h.done
		h.t.Errorf("the agent did not end within %s", wait.Timeout)
	}
	code := h.cmd.ProcessState.ExitCode()
	expect.Equal(h.t, code, 1, "the agent ended with exit code %d, want 1", code)
	h.cmd = nil
	return h.log.String()
}

// stop ends the agent with SIGTERM and waits for its end.
func (h *host) stop() { h.signal(syscall.SIGTERM) }

// kill ends the agent with SIGKILL, as a crash does.
func (h *host) kill() { h.signal(syscall.SIGKILL) }

func (h *host) signal(s syscall.Signal) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.cmd == nil {
		return
	}
	h.cmd.Process.Signal(s)
	select {
	case <-h.done:
	case <-time.After(wait.Timeout):
		h.cmd.Process.Kill()
		<-h.done
		h.t.Errorf("the agent did not end within %s of %s", wait.Timeout, s)
	}
	h.cmd = nil
}

func (h *host) http() *http.Client {
	return &http.Client{Timeout: wait.Timeout, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(h.dir, "sock"))
		},
	}}
}

// result is the result of one command.
type result struct {
	stdout, stderr string
	code           int
}

// cli runs a client command against the agent.
func (h *host) cli(args ...string) result {
	h.t.Helper()
	return command(h.t, append([]string{"--timeout", wait.Timeout.String(), "--addr", "unix://" + filepath.Join(h.dir, "sock")}, args...)...)
}

// ok runs a client command that must succeed and returns its output.
func (h *host) ok(args ...string) string {
	h.t.Helper()
	r := h.cli(args...)
	if r.code != 0 {
		h.t.Fatalf("ironvip %s: exit %d\n%s%s", strings.Join(args, " "), r.code, r.stdout, r.stderr)
	}
	return r.stdout
}

// command runs a command. One that does not end says where it is.
func command(t testing.TB, args ...string) result {
	t.Helper()
	var out, errs bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), wait.Timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, bin(t), args...)
	cmd.Cancel = func() error {
		t.Errorf("ironvip %s does not end", strings.Join(args, " "))
		stacks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stack", cmd.Process.Pid)) // in the kernel
		for _, s := range stacks {
			text, _ := os.ReadFile(s)
			t.Logf("%s:\n%s", s, text)
		}
		return cmd.Process.Signal(syscall.SIGQUIT)
	}
	cmd.WaitDelay = time.Minute
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("ironvip %s: %v", strings.Join(args, " "), err)
	}
	return result{stdout: out.String(), stderr: errs.String(), code: cmd.ProcessState.ExitCode()}
}

// rest sends one API request and decodes the answer into an untyped tree.
func (h *host) rest(method, path, body string, header ...string) (int, map[string]any) {
	h.t.Helper()
	req, err := http.NewRequestWithContext(h.t.Context(), method, "http://ironvip"+path, strings.NewReader(body))
	must.Succeed(h.t, err)
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := h.http().Do(req)
	must.Succeed(h.t, err, "%s %s", method, path)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	must.Succeed(h.t, err, "%s %s", method, path)
	tree := map[string]any{}
	if len(text) > 0 {
		if err := json.Unmarshal(text, &tree); err != nil {
			h.t.Fatalf("%s %s: %s: %v\n%s", method, path, resp.Status, err, text)
		}
	}
	return resp.StatusCode, tree
}

// eventually waits until check returns nil, for at most wait.Timeout.
func (h *host) eventually(what string, check func() error) {
	h.t.Helper()
	h.within(wait.Timeout, what, check)
}

// within is eventually with another timeout. A failure prints the agent's log.
func (h *host) within(timeout time.Duration, what string, check func() error) {
	h.t.Helper()
	wait.Within(h.t, timeout, what, func() error {
		if err := check(); err != nil {
			return fmt.Errorf("%w\n%s", err, h.log)
		}
		return nil
	})
}

// backend is a server that answers each connection with its name and closes.
type backend struct {
	name string
	addr string
	port int
	l    net.Listener // nil while it refuses connections
	held int          // a socket that keeps the port meanwhile

	serve func(net.Conn)
}

// newBackend starts a backend on the loopback.
func newBackend(t testing.TB, name string) *backend {
	t.Helper()
	b := &backend{name: name, serve: func(c net.Conn) {
		defer c.Close()
		fmt.Fprintln(c, name)
		io.Copy(c, c) // echoes for as long as the client stays
	}}
	b.begin(t)
	return b
}

// begin listens on the loopback until the end of the test.
func (b *backend) begin(t testing.TB) {
	t.Helper()
	b.addr = "127.0.0.1:0"
	must.Succeed(t, b.listen())
	b.addr, b.port = b.l.Addr().String(), b.l.Addr().(*net.TCPAddr).Port
	t.Cleanup(func() {
		if b.l != nil {
			b.l.Close()
		} else {
			unix.Close(b.held)
		}
	})
}

// listen serves at addr. The port can be shared, so that refuse can keep it.
func (b *backend) listen() error {
	shared := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) (err error) {
		if failed := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) }); failed != nil {
			return failed
		}
		return err
	}}
	l, err := shared.Listen(context.Background(), "tcp", b.addr)
	if err != nil {
		return err
	}
	b.l = l
	accept.Each(l, b.serve)
	return nil
}

// refuse makes the backend refuse connections until accept. Meanwhile, it keeps its port.
func (b *backend) refuse() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	err = errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1),
		unix.Bind(fd, &unix.SockaddrInet4{Port: b.port, Addr: [4]byte{127, 0, 0, 1}}))
	if err != nil {
		unix.Close(fd)
		return err
	}
	b.held = fd
	b.l.Close()
	b.l = nil
	return nil
}

// accept ends refuse.
func (b *backend) accept() error {
	err := b.listen()
	unix.Close(b.held)
	return err
}

// toml returns the backend as an element of a backends array.
func (b *backend) toml() string {
	return fmt.Sprintf(`{ address = "127.0.0.1", port = %d }`, b.port)
}

func (b *backend) json() string {
	return fmt.Sprintf(`{"address": "127.0.0.1", "port": %d}`, b.port)
}

// who connects once and returns the name in the answer.
func who(addr string) (string, error) {
	c, err := net.DialTimeout("tcp", addr, wait.Reply)
	if err != nil {
		return "", err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(wait.Reply))
	buf := make([]byte, 64)
	n, err := c.Read(buf)
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(buf[:n])), nil
}

// answered connects n times and returns how often each name answered.
func answered(t testing.TB, addr string, n int) map[string]int {
	t.Helper()
	got := map[string]int{}
	for range n {
		name, err := who(addr)
		must.Succeed(t, err, "ask %s", addr)
		got[name]++
	}
	return got
}

// vip returns the first address of a service.
func (h *host) vip(name string) string {
	h.t.Helper()
	var vips []string
	h.eventually("service "+name+" has a VIP", func() error {
		if vips = h.vips(name); len(vips) == 0 {
			return errors.New("it has none")
		}
		return nil
	})
	return vips[0]
}

// service is one [[service]] block on port 8080.
func service(name string, more string, backends ...*backend) string {
	lines := make([]string, len(backends))
	for i, b := range backends {
		lines[i] = b.toml()
	}
	return fmt.Sprintf("[[service]]\nname = %q\nscheduler = \"rr\"\nports = [ { port = 8080 } ]\nbackends = [ %s ]\n%s\n",
		name, strings.Join(lines, ", "), more)
}

// serves waits until exactly these backends answer at addr.
func (h *host) serves(addr string, names ...string) {
	h.t.Helper()
	h.eventually(fmt.Sprintf("%s is answered by %v", addr, names), func() error {
		got := map[string]int{}
		for range 2 * len(names) {
			name, err := who(addr)
			if err != nil {
				return err
			}
			got[name]++
		}
		for _, n := range names {
			if got[n] == 0 {
				return fmt.Errorf("%s did not answer: %v", n, got)
			}
		}
		if len(got) != len(names) {
			return fmt.Errorf("others answered: %v", got)
		}
		return nil
	})
}

// put registers a service on port 8080 through REST and waits until the
// dataplane has it. It returns the VIP that the answer carries.
func (h *host) put(name string, backends ...*backend) string {
	h.t.Helper()
	list := make([]string, len(backends))
	for i, b := range backends {
		list[i] = b.json()
	}
	code, tree := h.rest("PUT", "/v1/services/default/"+name,
		fmt.Sprintf(`{"scheduler": "rr", "ports": [{"port": 8080}], "backends": [%s]}`, strings.Join(list, ",")), "Prefer", "wait=300")
	if code != http.StatusOK && code != http.StatusCreated {
		h.t.Fatalf("PUT %s: %d %v", name, code, tree)
	}
	status := tree["status"].(map[string]any)
	if status["applied"] != true {
		h.t.Fatalf("PUT %s with Prefer: wait=300 is answered before the dataplane has it: %v", name, status)
	}
	return status["vips"].([]any)[0].(string)
}

// status waits for a check of the node's status with this level, first word of its name, and text. It asks the API, because
// a command for each attempt would cost a process.
func (h *host) status(level, name, says string) {
	h.t.Helper()
	h.eventually(fmt.Sprintf("status has %s %s %q", level, name, says), func() error {
		resp, err := h.http().Get("http://ironvip/v1/status")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		var status v1.NodeStatus
		if err := json.NewDecoder(resp.Body).Decode(&status); err != nil {
			return err
		}
		for _, c := range status.Checks {
			if strings.EqualFold(c.Level, level) && strings.Fields(c.Name)[0] == name && strings.Contains(c.Message, says) {
				return nil
			}
		}
		return fmt.Errorf("%s", compact(status.Checks))
	})
}

// vips returns the present addresses of a service, without waiting.
func (h *host) vips(name string) []string {
	h.t.Helper()
	_, tree := h.rest("GET", "/v1/services/default/"+name, "")
	status, _ := tree["status"].(map[string]any)
	list, _ := status["vips"].([]any)
	var out []string
	for _, v := range list {
		out = append(out, v.(string))
	}
	return out
}

// explains waits until a service's explanation contains all of these texts.
func (h *host) explains(name string, says ...string) {
	h.t.Helper()
	h.eventually(name+" is explained", func() error {
		text := h.cli("service", "explain", name).stdout
		for _, word := range says {
			if !strings.Contains(text, word) {
				return fmt.Errorf("%q is not said: %s", word, text)
			}
		}
		return nil
	})
}

// mentions fails the test for each word that is missing in the text.
func mentions(t *testing.T, what, text string, words ...string) {
	t.Helper()
	for _, w := range words {
		expect.Contains(t, text, w, "%s: %q is not said:\n", what, w)
	}
}

// nobody is a user without privileges.
const nobody = 65534

// publicDir returns a directory that every user may enter, unlike t.TempDir's.
func publicDir(t testing.TB) string {
	t.Helper()
	dir := must.Get(os.MkdirTemp("", "ironvip-test-"))(t)
	t.Cleanup(func() { os.RemoveAll(dir) })
	must.Succeed(t, os.Chmod(dir, 0o755))
	return dir
}

// copyBinary copies the binary to a place where every user may run it. It blocks the start of
// processes meanwhile: a child would inherit the copy open for writing, and the copy could not be
// run.
func copyBinary(t testing.TB, to string) {
	t.Helper()
	data, err := os.ReadFile(bin(t))
	must.Succeed(t, err)
	syscall.ForkLock.RLock()
	err = os.WriteFile(to, data, 0o755)
	syscall.ForkLock.RUnlock()
	must.Succeed(t, err)
	if err := os.Chmod(to, 0o755); err != nil { // independent of the umask
		t.Fatal(err)
	}
}

// fill writes until the disk is full.
func fill(t *testing.T, path string) {
	t.Helper()
	f := must.Get(os.Create(path))(t)
	defer f.Close()
	for chunk := make([]byte, 4096); ; {
		if _, err := f.Write(chunk); err != nil {
			return
		}
	}
}

// compact formats a JSON tree in one line.
func compact(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(b)
}
