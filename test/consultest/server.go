// Package consultest gives a test real Consul servers: one, or a cluster, on
// loopback or in network namespaces, with ACLs or TLS where asked. In go a
// testing.TB and Options; out come running servers with a client each, which can
// be stopped, killed, stalled, restarted and set back to an older state.
//
// Every server is a process of its own that the package ends by its id, at the
// end of the test at the latest, and that dies with the test's process. Without
// the binary (test/servers/setup.sh consul, or IRONVIP_CONSUL) the test is
// skipped for need.ReasonServer. Nothing here is for the product: Consul is a
// tool of the tests.
package consultest

import (
	"context"
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

// Place is where a server runs when not here: a network namespace. A node of
// test/netlab is one.
type Place interface {
	// Do runs f in the namespace: sockets and processes made by it are there.
	Do(f func())
	// DialContext connects from there to an address and port.
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}

// Options say what server it is to be. The zero value is one server on
// 127.0.0.1, durable, open to everyone.
type Options struct {
	Name       string     // the node's; "consul1" (in a cluster "consul2", ...) by default
	Datacenter string     // "dc1" by default
	Addr       netip.Addr // what it listens on; 127.0.0.1 by default
	In         Place      // nil: where the test is

	// Memory makes a server that has a leader after 0.3 s instead of 2, and keeps
	// nothing: it comes back empty from a restart. For a single server.
	Memory bool
	// ACL turns ACLs on, with nothing allowed but by a token. Server.Client has
	// the right to everything.
	ACL bool
	// TLS serves HTTPS instead of HTTP, to clients with a certificate of
	// Server.TLS's authority. The unix socket stays without.
	TLS bool
	// WAN joins the datacentre of that server, so that each serves requests for
	// the other.
	WAN *Server
	// Config are further settings of Consul's configuration, put over the
	// package's own, table by table. Consul's default of 200 connections from one
	// address is among those it may change: limits.http_max_conns_per_client.
	Config map[string]any
}

// Server is one Consul server. Its methods end the test when they fail, so they
// belong to the test's goroutine; those that only send a signal (Kill, Pause,
// Continue) may be called from any.
type Server struct {
	Name       string
	Datacenter string
	Addr       netip.AddrPort // of the HTTP API; of HTTPS with Options.TLS
	URL        string         // the same as a client takes it: "http://127.0.0.1:20001"
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

// Start runs one server and waits until it is ready. It is gone at the end of
// the test.
func Start(t testing.TB, o Options) *Server {
	t.Helper()
	s := prepare(t, o, 1, newToken())
	s.configure(1, nil)
	s.Start()
	s.WaitReady()
	return s
}

// For returns the server as one whose failures are those of t, a subtest of the
// test that started it.
func (s *Server) For(t testing.TB) *Server {
	c := *s
	c.t = t
	return &c
}

// prepare makes a server that is not running yet: number is its place in the
// cluster, from 1, and token the bootstrap token with ACLs.
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
	// Not t.TempDir, whose names are too long for a unix socket.
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

// NewClient returns a client with that token, "" for none, that connects from
// where the server runs.
func (s *Server) NewClient(token string) *api.Client {
	s.t.Helper()
	transport := s.transport()
	s.t.Cleanup(transport.CloseIdleConnections)
	c, err := api.NewClient(&api.Config{Address: s.URL, Transport: transport, Token: token})
	s.must("a client", err)
	return c
}

// Start runs a server that is stopped, with the same data, addresses and ports,
// and doesn't wait for it.
func (s *Server) Start() {
	s.t.Helper()
	s.must("start", s.proc.Start())
}

// Stop ends the server as an operator does (SIGTERM), and waits for its end. It
// stays a member of its cluster, so that it may come back.
func (s *Server) Stop() {
	s.t.Helper()
	s.must("stop", s.proc.Stop())
}

// Kill ends the server at once (SIGKILL) and waits for its end.
func (s *Server) Kill() {
	s.t.Helper()
	s.proc.Kill()
}

// Pause stalls the server (SIGSTOP): its connections stay, nothing answers.
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

// Running says whether the server's process is there and not paused.
func (s *Server) Running() bool { return s.proc.Running() }

// Pid is the id of the server's process, 0 while there is none.
func (s *Server) Pid() int { return s.proc.Pid() }

// Log is the end of what the server logged, over all its restarts: 16 KiB.
func (s *Server) Log() string { return s.proc.LogEnd(16 << 10) }

// WaitReady waits until the server knows a leader that answers for the whole
// cluster, and its own node is in the catalog, so that sessions can be made.
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
	// A consistent read is answered by a leader that a majority confirms.
	q := (&api.QueryOptions{RequireConsistent: true}).WithContext(ctx)
	node, _, err := s.Client.Catalog().Node(s.Name, q)
	if err == nil && (node == nil || node.Node == nil) {
		err = fmt.Errorf("node %s is not in the catalog", s.Name)
	}
	return err
}

// patience is how long anything is waited for; asking is how long for one answer.
const (
	patience = time.Minute
	asking   = 5 * time.Second
)

// eventually tries until there is no error.
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
