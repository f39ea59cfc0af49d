// Package etcdtest runs real etcd servers for a test, on loopback: one, or several that are one cluster. A test can kill,
// stall and restart them, and set them back to an older state.
//
// Every server is a process that the package owns and ends by its id, at the latest at the end of the test. Without the
// binary (test/servers/setup.sh etcd, or IRONVIP_ETCD) the test is skipped for need.ReasonServer. The package is only for
// tests.
package etcdtest

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/ironvip/ironvip/test/authority"
	"github.com/ironvip/ironvip/test/freeport"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/process"
	"github.com/ironvip/ironvip/test/wait"
)

// Servers are the members of a cluster. Their methods end the test on an error, so only the test's goroutine may call them.
type Servers struct {
	URLs   []string         // of the members
	Client *clientv3.Client // of all members
	TLS    *tls.Config      // of Client, with Options.TLS

	t     testing.TB
	bin   string
	dir   string
	procs []*process.Process
	dial  grpc.DialOption // nil: from here
}

// Options configure a cluster. The zero value is one member, without TLS.
type Options struct {
	Members int
	Hosts   []Host // in place of Members: each has a member
	TLS     bool   // clients use TLS, with a certificate of the authority of Servers.TLS
}

// Host is a network namespace for a member, and the address there where it listens.
type Host struct {
	Node
	Addr netip.Addr
}

// Node is a network namespace, for example a node of test/netlab.
type Node interface {
	process.Place
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}

// Start runs a cluster and waits until it is ready. It ends with the test.
func Start(t testing.TB, o Options) *Servers {
	t.Helper()
	s := &Servers{t: t, bin: need.Server(t, "etcd"), dir: t.TempDir()}
	hosts, scheme := o.Hosts, "http://"
	for range max(o.Members, 1) {
		if len(o.Hosts) == 0 {
			hosts = append(hosts, Host{Addr: loopback})
		}
	}
	var peers, cluster, more []string
	if o.TLS {
		a := authority.New(t)
		file := func(name string) string { return filepath.Join(s.dir, name) }
		a.WriteCert(t, file("ca.pem"))
		a.Server(t, []netip.Addr{loopback}).Write(t, file("server.pem"), file("server.key"))
		s.TLS = a.Trusts(a.Client(t, "lb"))
		scheme = "https://"
		more = []string{"--client-cert-auth", "--trusted-ca-file=" + file("ca.pem"), "--cert-file=" + file("server.pem"), "--key-file=" + file("server.key")}
	}
	for i, h := range hosts {
		ports := freeport.Reserve(t, h.Node, h.Addr)
		s.URLs = append(s.URLs, scheme+netip.AddrPortFrom(h.Addr, ports[1]).String())
		peers = append(peers, "http://"+netip.AddrPortFrom(h.Addr, ports[2]).String())
		cluster = append(cluster, fmt.Sprintf("m%d=%s", i, peers[i]))
	}
	for i, h := range hosts {
		s.procs = append(s.procs, process.New(s.bin, filepath.Join(s.dir, fmt.Sprintf("m%d.log", i)), h.Node, append(more,
			fmt.Sprintf("--name=m%d", i), "--data-dir="+s.data(i), "--log-level=warn",
			"--listen-client-urls="+s.URLs[i], "--advertise-client-urls="+s.URLs[i],
			"--listen-peer-urls="+peers[i], "--initial-advertise-peer-urls="+peers[i], "--initial-cluster="+strings.Join(cluster, ","),
			// Data that was passed to the kernel survives the end of a process, so no fsync is needed.
			"--heartbeat-interval=50", "--election-timeout=500", "--unsafe-no-fsync")...))
	}
	if len(o.Hosts) > 0 {
		s.dial = grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return hosts[0].DialContext(ctx, "tcp", address)
		})
	}
	s.Authenticate("", "")
	for i := range hosts {
		t.Cleanup(s.procs[i].Kill)
		s.Begin(i)
	}
	s.WaitReady()
	return s
}

// Authenticate makes Client one with that user.
func (s *Servers) Authenticate(user, password string) {
	s.t.Helper()
	c := clientv3.Config{Endpoints: s.URLs, TLS: s.TLS, Username: user, Password: password,
		DialTimeout: time.Second, DialKeepAliveTimeout: time.Second, Logger: zap.NewNop()}
	if s.dial != nil {
		c.DialOptions = []grpc.DialOption{s.dial}
	}
	client := must.Get(clientv3.New(c))(s.t)
	s.t.Cleanup(func() { _ = client.Close() })
	s.Client = client
}

var loopback = netip.AddrFrom4([4]byte{127, 0, 0, 1})

func (s *Servers) data(i int) string { return filepath.Join(s.dir, fmt.Sprintf("m%d", i)) }

// Begin starts a member that does not run.
func (s *Servers) Begin(i int) {
	s.t.Helper()
	must.Succeed(s.t, s.procs[i].Start(), "etcd m%d", i)
}

// Running reports whether a member runs.
func (s *Servers) Running(i int) bool { return s.procs[i].Running() }

// Kill ends a member as kill -9 does.
func (s *Servers) Kill(i int) { s.procs[i].Kill() }

// Pause stops a member without ending it.
func (s *Servers) Pause(i int) {
	s.t.Helper()
	must.Succeed(s.t, s.procs[i].Pause())
}

// Resume continues a member after Pause.
func (s *Servers) Resume(i int) {
	s.t.Helper()
	must.Succeed(s.t, s.procs[i].Resume())
}

// WaitReady waits until the cluster has a leader and answers.
func (s *Servers) WaitReady() {
	s.t.Helper()
	wait.For(s.t, "etcd answers", func() error {
		ctx, cancel := context.WithTimeout(s.t.Context(), time.Second)
		defer cancel()
		_, err := s.Client.Get(ctx, "ready")
		return err
	})
}

// Leader returns the member that leads.
func (s *Servers) Leader() int {
	s.t.Helper()
	for i, url := range s.URLs {
		ctx, cancel := context.WithTimeout(s.t.Context(), time.Second)
		r, err := s.Client.Status(ctx, url)
		cancel()
		if err == nil && r.Leader == r.Header.MemberId {
			return i
		}
	}
	s.t.Fatal("no member of etcd leads")
	return 0
}

// Compact removes the history. Members may be down.
func (s *Servers) Compact() {
	s.t.Helper()
	wait.For(s.t, "the history is compacted", func() error {
		ctx, cancel := context.WithTimeout(s.t.Context(), time.Second)
		defer cancel()
		r, err := s.Client.Get(ctx, "none")
		if err == nil {
			_, err = s.Client.Compact(ctx, r.Header.Revision)
		}
		if errors.Is(err, rpctypes.ErrCompacted) {
			return nil
		}
		return err
	})
}

// Backup copies the disk of the only member, and returns a function that sets the member back to it.
func (s *Servers) Backup() (restore func()) {
	s.t.Helper()
	copied := filepath.Join(s.dir, "backup")
	s.Kill(0)
	must.Succeed(s.t, os.CopyFS(copied, os.DirFS(s.data(0))))
	s.Begin(0)
	s.WaitReady()
	return func() {
		s.t.Helper()
		s.Kill(0)
		must.Succeed(s.t, os.RemoveAll(s.data(0)))
		must.Succeed(s.t, os.CopyFS(s.data(0), os.DirFS(copied)))
		s.Begin(0)
		s.WaitReady()
	}
}
