// Package consultest runs real Consul servers for a test: one or a cluster, on loopback or in
// network namespaces, optionally with ACLs or TLS. Its inputs are a testing.TB and Options. Its
// outputs are running servers with a client each. A test can stop, kill, stall and restart them,
// and set them back to an older state.
//
// Every server is a process that the package owns and ends by its id, at the latest at the end of
// the test. It dies with the test's process. Without the binary (test/servers/setup.sh consul, or
// IRONVIP_CONSUL) the test is skipped for need.ReasonServer. The package is only for tests.
package consultest

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/process"
	"github.com/ironvip/ironvip/test/wait"
)

// Place is a network namespace for a server, for example a node of test/netlab.
type Place interface {
	// Do runs f in the namespace. Sockets and processes that f creates are in it.
	Do(f func())
	// DialContext connects from the namespace to an address and port.
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}

// Options configure a server. The zero value is one server on 127.0.0.1, durable and without access
// control.
type Options struct {
	Name       string     // the node name; by default "consul1" (in a cluster "consul2", ...)
	Datacenter string     // "dc1" by default
	Addr       netip.Addr // the listen address; 127.0.0.1 by default
	In         Place      // nil: the namespace of the test

	// Memory makes a server that has a leader after 0.3 s instead of 2, and that stores nothing: it
	// is empty after a restart. It is for a single server.
	Memory bool
	// ACL enables ACLs, with everything denied without a token. Server.Client has all permissions.
	ACL bool
	// TLS serves HTTPS instead of HTTP, to clients with a certificate of Server.TLS's authority.
	// The unix socket remains unencrypted.
	TLS bool
	// WAN joins the datacenter of that server, so that each serves requests for the other.
	WAN *Server
	// Config has further settings of Consul's configuration, which overwrite the package's own,
	// table by table. They can also change Consul's limit of 200 connections from one address,
	// limits.http_max_conns_per_client.
	Config map[string]any
}

// Server is one Consul server. Its methods end the test on an error, so only the test's goroutine
// may call them. Kill, Pause and Continue only send a signal, and any goroutine may call them.
type Server struct {
	Name       string
	Datacenter string
	Addr       netip.AddrPort // of the HTTP API, or of HTTPS with Options.TLS
	URL        string         // the same as a URL: "http://127.0.0.1:20001"
	Socket     string         // the HTTP API's unix socket: "/tmp/consul123/http.sock"
	Token      string         // the bootstrap token with Options.ACL, else ""
	TLS        *TLS           // with Options.TLS, else nil
	Client     *api.Client    // with the bootstrap token

	t     testing.TB
	proc  *process.Process
	opts  Options
	ports ports
	dir   string
}

// Start runs one server and waits until it is ready. The server ends with the test.
func Start(t testing.TB, o Options) *Server {
	t.Helper()
	s := prepare(t, o, 1, newToken())
	s.configure(1, nil)
	s.Start()
	s.WaitReady()
	return s
}

// For returns the server with t for its failures, where t is a subtest of the test that started it.
func (s *Server) For(t testing.TB) *Server {
	c := *s
	c.t = t
	return &c
}

// prepare creates a server that is not running yet. Number is its position in the cluster, from 1.
// Token is the bootstrap token with ACLs.
func prepare(t testing.TB, o Options, number int, token string) *Server {
	t.Helper()
	bin := need.Server(t, "consul")
	if o.Name == "" {
		o.Name = fmt.Sprintf("consul%d", number)
	}
	if o.Datacenter == "" {
		o.Datacenter = "dc1"
	}
	if !o.Addr.IsValid() {
		o.Addr = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	s := &Server{Name: o.Name, Datacenter: o.Datacenter, t: t, opts: o}
	// The names of t.TempDir are too long for a unix socket.
	var err error
	s.dir, err = os.MkdirTemp("", "consul")
	s.must("a folder", err)
	t.Cleanup(func() { os.RemoveAll(s.dir) })
	s.Socket = filepath.Join(s.dir, "http.sock")
	s.ports = reservePorts(t, o.In, o.Addr)

	scheme := "http"
	s.Addr = netip.AddrPortFrom(o.Addr, s.ports.http)
	if o.TLS {
		scheme = "https"
		s.TLS = newTLS(t, o.Addr)
	}
	s.URL = scheme + "://" + s.Addr.String()
	if o.ACL {
		s.Token = token
	}
	s.Client = s.NewClient(s.Token)

	s.proc = process.New(bin, filepath.Join(s.dir, "log"), o.In, s.arguments()...)
	t.Cleanup(func() {
		s.proc.Kill()
		if t.Failed() {
			t.Logf("%s: the end of its log:\n%s", s.Name, s.Log())
		}
	})
	return s
}

// NewClient returns a client with that token, "" for none, that connects from the server's
// namespace.
func (s *Server) NewClient(token string) *api.Client {
	s.t.Helper()
	transport := s.transport()
	s.t.Cleanup(transport.CloseIdleConnections)
	c, err := api.NewClient(&api.Config{Address: s.URL, Transport: transport, Token: token})
	s.must("a client", err)
	return c
}

// Start runs a stopped server with the same data, addresses and ports, and doesn't wait for it.
func (s *Server) Start() {
	s.t.Helper()
	s.must("start", s.proc.Start())
}

// Stop ends the server as an operator does (SIGTERM), and waits for its end. It remains a member of
// its cluster, so that it can return.
func (s *Server) Stop() {
	s.t.Helper()
	s.must("stop", s.proc.Stop())
}

// Kill ends the server at once (SIGKILL) and waits for its end.
func (s *Server) Kill() {
	s.t.Helper()
	s.proc.Kill()
}

// Pause stalls the server (SIGSTOP): its connections remain, but it doesn't answer.
func (s *Server) Pause() {
	s.t.Helper()
	s.must("pause", s.proc.Pause())
}

// Continue ends a Pause.
func (s *Server) Continue() {
	s.t.Helper()
	s.must("continue", s.proc.Resume())
}

// Restart stops the server if it runs, starts it with the same data, addresses
// and ports, and waits until it is ready.
func (s *Server) Restart() {
	s.t.Helper()
	s.Stop()
	s.Start()
	s.WaitReady()
}

// Reload changes settings of the running server as `consul reload` does: those that Consul can change
// while it runs.
func (s *Server) Reload(config map[string]any) {
	s.t.Helper()
	file := filepath.Join(s.dir, "config.json")
	text, err := os.ReadFile(file)
	s.must("the configuration", err)
	var c map[string]any
	s.must("the configuration", json.Unmarshal(text, &c))
	merge(c, config)
	s.writeConfig(c)
	s.must("reload", s.Client.Agent().Reload())
}

// Running reports whether the server's process exists and is not paused.
func (s *Server) Running() bool { return s.proc.Running() }

// Pid returns the id of the server's process, 0 without one.
func (s *Server) Pid() int { return s.proc.Pid() }

// Log returns the end of the server's log, over all its restarts: 16 KiB.
func (s *Server) Log() string { return s.proc.LogEnd(16 << 10) }

// WaitReady waits until the server knows a leader that answers for the whole cluster, and until its
// own node is in the catalog, so that sessions can be created.
func (s *Server) WaitReady() {
	s.t.Helper()
	s.eventually("ready", func(ctx context.Context) error {
		if !s.proc.Running() {
			s.t.Fatalf("%s: ended by itself, or is stopped: %s\n%s", s.Name, s.proc.Ending(), s.Log())
		}
		return s.ready(ctx)
	})
}

func (s *Server) ready(ctx context.Context) error {
	// Only a leader that a majority confirms answers a consistent read.
	q := (&api.QueryOptions{RequireConsistent: true}).WithContext(ctx)
	node, _, err := s.Client.Catalog().Node(s.Name, q)
	if err == nil && (node == nil || node.Node == nil) {
		err = fmt.Errorf("node %s is not in the catalog", s.Name)
	}
	return err
}

// maxWait bounds every wait; asking bounds one request.
const (
	maxWait = time.Minute
	asking  = 5 * time.Second
)

// eventually retries try until it returns no error.
func (s *Server) eventually(what string, try func(context.Context) error) {
	s.t.Helper()
	wait.For(s.t, s.Name+": "+what, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), asking)
		defer cancel()
		if err := try(ctx); err != nil {
			return fmt.Errorf("%w\n%s", err, s.Log())
		}
		return nil
	})
}

func (s *Server) must(what string, err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatalf("consul %s: %s: %v", s.Name, what, err)
	}
}
