// Package kubetest runs a real Kubernetes API for a test: one etcd and one kube-apiserver, on
// loopback or in a network namespace, with its own authority, certificates and service account
// keys, and with RBAC. Its inputs are a testing.TB and Options. Its output is a running Cluster. A
// test can kill, stall and restart the two servers, and compact their history.
//
//	c := kubetest.Start(t, kubetest.Options{ServiceCIDRs: kubetest.DualStack()})
//	c.URL, c.CA                                           // for a client's config
//	c.Kubeconfig(t, "admin", kubetest.Masters)            // the path of one, with a client certificate; no group: may do nothing
//	c.TokenKubeconfig(t, c.TokenFile(t, "default", "x"))  // the same with a service account's token
//	c.Apply(t, `{apiVersion: v1, kind: Service, ...}`)    // create or change, as kubectl apply --server-side does; several documents
//	c.Get(t, "/api/v1/namespaces/default/services/a", &s) // and Patch, Delete; Do returns errors instead
//	c.API.Kill(t), Stop, Start, Stall, Resume, Restart    // and c.Etcd the same; c.WaitReady(t)
//	c.Compact(t)                                          // etcd forgets what was
//	restore := c.Backup(t)                                // and restore() brings back what there is now
//	loan := c.Lend(t)                                     // for a test in the VM, which has the API by Borrow(t, dir, host, nil)
//
// There is no controller-manager and no kubelet. So there are no EndpointSlices, unless a test
// applies the output of EndpointSlice. No pods run, and a deleted namespace remains Terminating.
// The server creates a Service of its own, default/kubernetes.
//
// Every process is ended by its id, at the latest at the end of the test, and dies with the test's
// process. Without the binaries (test/servers/setup.sh etcd kube-apiserver) the test is skipped for
// need.ReasonServer.
package kubetest

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/authority"
	"github.com/ironvip/ironvip/test/freeport"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/process"
)

// Place is a network namespace for a cluster, for example a node of test/netlab.
type Place interface {
	// Do runs f in the namespace. Sockets and processes that f creates are in it.
	Do(f func())
	// DialContext connects from the namespace to an address and port.
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}

// Options configure a cluster. The zero value is a cluster on 127.0.0.1 with IPv4 Services.
type Options struct {
	// ServiceCIDRs are the ranges of cluster IPs: one, or one of each family. The first one is the
	// default for Services. 10.96.0.0/16 by default.
	ServiceCIDRs []netip.Prefix
	Addr         netip.Addr // the listen address of both servers; 127.0.0.1 by default
	In           Place      // nil: the namespace of the test
	// Flags are further flags of kube-apiserver, after the package's own, for example
	// "--watch-cache=false".
	Flags []string
}

// DualStack returns ServiceCIDRs of both families, IPv4 first.
func DualStack() []netip.Prefix {
	return []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd96::/112")}
}

// Masters is the group with all permissions.
const Masters = "system:masters"

// Cluster is a running API. Any goroutine that may call t's methods may call its methods.
type Cluster struct {
	Addr   netip.AddrPort // of kube-apiserver
	URL    string         // the same as a URL: "https://127.0.0.1:20001"
	CA     string         // the file with the authority's certificate, PEM
	Client *http.Client   // with Masters' permissions; connects from the cluster's namespace
	Etcd   *Server        // nil if borrowed, as API
	API    *Server

	opts       Options
	dir        string
	etcdURL    string
	serverName string // in the server's certificate, "" for the address
	authority  authority.Authority
	transport  *http.Transport
	plain      *http.Client // for etcd

	mu        sync.Mutex
	resources map[string]resource // by apiVersion and kind
}

// Start runs a cluster and waits until it is ready. The cluster ends with the test.
func Start(t testing.TB, o Options) *Cluster {
	t.Helper()
	etcd, api := need.Server(t, "etcd"), need.Server(t, "kube-apiserver")
	if !o.Addr.IsValid() {
		o.Addr = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	if len(o.ServiceCIDRs) == 0 {
		o.ServiceCIDRs = DualStack()[:1]
	}
	ports := freeport.Reserve(t, o.In, o.Addr)
	dir, err := os.MkdirTemp("", "kube")
	must(t, "a folder", err)
	t.Cleanup(func() { os.RemoveAll(dir) })

	c := &Cluster{
		Addr: netip.AddrPortFrom(o.Addr, ports[1]),
		opts: o, dir: dir, resources: map[string]resource{},
		etcdURL: "http://" + netip.AddrPortFrom(o.Addr, ports[2]).String(),
	}
	c.URL = "https://" + c.Addr.String()
	c.CA = c.file("ca.pem")
	c.authority = authority.New(t)
	c.authority.WriteCert(t, c.CA)
	c.certify(t, c.authority)
	authority.WriteKey(t, c.file("accounts.key"), authority.NewKey(t))
	c.connect(t)

	peer := "http://" + netip.AddrPortFrom(o.Addr, ports[3]).String()
	c.Etcd = &Server{name: "etcd", changed: func() {}, proc: process.New(etcd, c.file("etcd.log"), o.In,
		"--name=one", "--data-dir="+c.file("etcd"), "--log-level=warn",
		"--listen-client-urls="+c.etcdURL, "--advertise-client-urls="+c.etcdURL,
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=one="+peer,
		// A single member elects itself. Data that was passed to the kernel survives it, so no
		// fsync is needed.
		"--heartbeat-interval=10", "--election-timeout=100", "--unsafe-no-fsync",
	)}
	c.Etcd.ready = c.etcdReady
	c.API = &Server{name: "kube-apiserver", changed: c.transport.CloseIdleConnections, ready: c.apiReady,
		proc: process.New(api, c.file("api.log"), o.In, c.apiFlags()...)}
	for _, s := range []*Server{c.Etcd, c.API} {
		t.Cleanup(func() { s.end(t) })
		s.Start(t)
		s.WaitReady(t)
	}
	return c
}

// file returns the path of one of the cluster's own files.
func (c *Cluster) file(name string) string { return filepath.Join(c.dir, name) }

// connect creates the two clients.
func (c *Cluster) connect(t testing.TB) {
	t.Helper()
	dial := (&net.Dialer{Timeout: asking}).DialContext
	if c.opts.In != nil {
		dial = c.opts.In.DialContext
	}
	tls := c.authority.Trusts(c.authority.Client(t, "kubetest", Masters))
	tls.ServerName = c.serverName
	c.transport = &http.Transport{
		DialContext: dial, MaxIdleConnsPerHost: 16, IdleConnTimeout: time.Minute, TLSClientConfig: tls,
	}
	c.Client = &http.Client{Transport: c.transport}
	plain := &http.Transport{DialContext: dial, DisableKeepAlives: true}
	c.plain = &http.Client{Transport: plain}
	t.Cleanup(c.transport.CloseIdleConnections)
}

func (c *Cluster) apiFlags() []string {
	var cidrs []string
	for _, p := range c.opts.ServiceCIDRs {
		cidrs = append(cidrs, p.String())
	}
	return append([]string{
		"--bind-address=" + c.opts.Addr.String(), fmt.Sprintf("--secure-port=%d", c.Addr.Port()),
		"--advertise-address=" + c.advertised().String(),
		"--cert-dir=" + c.dir, "--tls-cert-file=" + c.file("server.pem"), "--tls-private-key-file=" + c.file("server.key"),
		"--client-ca-file=" + c.CA, "--authorization-mode=RBAC",
		"--etcd-servers=" + c.etcdURL, "--etcd-compaction-interval=0",
		"--service-cluster-ip-range=" + strings.Join(cidrs, ","),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + c.file("accounts.key"), "--service-account-signing-key-file=" + c.file("accounts.key"),
		// A pod needs its namespace's service account, which no controller creates here.
		"--disable-admission-plugins=ServiceAccount",
	}, c.opts.Flags...)
}

// Join starts another kube-apiserver of the cluster in a place, at all of its addresses and the port of the first one. It ends
// with the test.
func (c *Cluster) Join(t testing.TB, in Place, addr netip.Addr) *process.Process {
	t.Helper()
	p := process.New(need.Server(t, "kube-apiserver"), c.file("api-"+addr.String()+".log"), in,
		append(c.apiFlags(), "--bind-address=0.0.0.0", "--advertise-address="+addr.String())...)
	t.Cleanup(p.Kill)
	must(t, "another kube-apiserver", p.Start())
	return p
}

// advertised returns the endpoint of the Service default/kubernetes. It is the server's own address
// if the API allows that, else a documentation address. The API doesn't allow loopback addresses,
// or another family than that of the first cluster IPs.
func (c *Cluster) advertised() netip.Addr {
	four := c.opts.ServiceCIDRs[0].Addr().Is4()
	switch {
	case !c.opts.Addr.IsLoopback() && c.opts.Addr.Is4() == four:
		return c.opts.Addr
	case four:
		return netip.MustParseAddr("192.0.2.1")
	default:
		return netip.MustParseAddr("2001:db8::1")
	}
}

// WaitReady waits until both servers are ready.
func (c *Cluster) WaitReady(t testing.TB) {
	t.Helper()
	c.Etcd.WaitReady(t)
	c.API.WaitReady(t)
}

func (c *Cluster) apiReady(ctx context.Context) error {
	// Cluster IPs may not be served before the server's own Service exists.
	for _, path := range []string{"/readyz", "/api/v1/namespaces/default/services/kubernetes"} {
		if _, err := c.ask(ctx, http.MethodGet, path, "", nil); err != nil {
			return err
		}
	}
	return nil
}

func must(t testing.TB, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("kubetest: %s: %v", what, err)
	}
}
