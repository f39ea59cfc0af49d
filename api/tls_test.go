package api

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ironvip/ironvip/api/server"
	"github.com/ironvip/ironvip/api/tokens"
	"github.com/ironvip/ironvip/internal/access"
	"github.com/ironvip/ironvip/test/authority"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/scope"
	"github.com/ironvip/ironvip/test/wait"
)

var loopback = []netip.Addr{netip.MustParseAddr("127.0.0.1")}

// tlsRig is an API with TLS and client certificates.
type tlsRig struct {
	*rig
	servers, clients authority.Authority
	files            server.CertificateFiles
	certificates     *server.Certificates
	url              string
}

func newTLSRig(t *testing.T, edit ...func(*access.Policy)) *tlsRig {
	t.Helper()
	dir := t.TempDir()
	r := &tlsRig{servers: authority.New(t), clients: authority.New(t),
		files: server.CertificateFiles{Cert: filepath.Join(dir, "cert"), Key: filepath.Join(dir, "key"), ClientCA: filepath.Join(dir, "ca")}}
	r.rig = newRig(t, func(d *Deps) {
		policy, _ := access.NewPolicy(access.Owners{SocketGID: -1}, []access.Rule{{CertSubject: "deploy", Grant: access.Grant{Role: access.Viewer}}})
		policy.Tokens = d.Tokens.Caller
		for _, e := range edit {
			e(policy)
		}
		d.Policy = func() *access.Policy { return policy }
	})
	r.servers.Server(t, loopback).Write(t, r.files.Cert, r.files.Key)
	r.clients.WriteCert(t, r.files.ClientCA)
	r.certificates = server.LoadCertificates(r.files)
	must.Get(r.certificates.State())(t)
	r.url = "https://" + r.serve(t, r.certificates)
	return r
}

// serve serves the API at an address, with certificates or without.
func (r *tlsRig) serve(t *testing.T, certificates *server.Certificates) (addr string) {
	t.Helper()
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	scope.Go(t, func(ctx context.Context) error { return r.server.Serve(ctx, l, certificates) })
	return l.Addr().String()
}

// client returns a client that trusts the server. edit may change its configuration.
func (r *tlsRig) client(t *testing.T, edit func(*tls.Config)) *http.Client {
	roots := x509.NewCertPool()
	roots.AddCert(r.servers.Cert)
	config := &tls.Config{RootCAs: roots}
	if edit != nil {
		edit(config)
	}
	transport := &http.Transport{TLSClientConfig: config}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: time.Minute}
}

// get returns the status of a request, 0 if the connection fails.
func (r *tlsRig) get(t *testing.T, c *http.Client, token string) int {
	t.Helper()
	req := must.Get(http.NewRequestWithContext(t.Context(), http.MethodGet, r.url+"/v1/services", nil))(t)
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := c.Do(req)
	if err != nil {
		return 0
	}
	resp.Body.Close()
	return resp.StatusCode
}

func present(pair authority.Pair) func(*tls.Config) {
	return func(c *tls.Config) {
		c.Certificates = []tls.Certificate{{Certificate: [][]byte{pair.Cert.Raw}, PrivateKey: pair.Key}}
	}
}

// Who gets in with which certificate or token.
func TestClientCertificates(t *testing.T) {
	r := newTLSRig(t)
	token, err := r.deps.Tokens.Create(t.Context(), tokens.Token{Name: "a", Grant: access.Grant{Role: access.Viewer}})
	if err != nil {
		t.Fatal(err)
	}
	hourAgo := time.Now().Add(-time.Hour)
	stranger := authority.New(t)
	for _, c := range []struct {
		name  string
		edit  func(*tls.Config)
		token string
		want  int // 0: the handshake fails
	}{
		{"a certificate with a rule", present(r.clients.Client(t, "deploy")), "", 200},
		{"a certificate without a rule", present(r.clients.Client(t, "other")), "", 403},
		{"no certificate", nil, "", 401},
		{"a token", nil, token, 200},
		{"a token that is not valid, with a good certificate", present(r.clients.Client(t, "deploy")), "wrong", 401},
		{"an expired certificate", present(r.clients.Valid(hourAgo.Add(-time.Hour), hourAgo).Client(t, "deploy")), token, 0},
		{"a certificate of another authority", func(c *tls.Config) {
			pair := stranger.Client(t, "deploy")
			c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { // also if the server doesn't want it
				return &tls.Certificate{Certificate: [][]byte{pair.Cert.Raw}, PrivateKey: pair.Key}, nil
			}
		}, "", 0},
		{"TLS 1.1", func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS11, tls.VersionTLS11 }, token, 0},
	} {
		expect.Equal(t, r.get(t, r.client(t, c.edit), c.token), c.want, c.name)
	}
}

// A connection goes on while the server's certificate is replaced, a new one uses the new
// certificate, and files that can't be used change nothing.
func TestCertificateIsReplaced(t *testing.T) {
	r := newTLSRig(t)
	open, certificate := r.client(t, nil), func(c *http.Client) (subject string) {
		resp := must.Get(c.Get(r.url + "/healthz"))(t)
		_, _ = io.Copy(io.Discard, resp.Body) // else the connection is not used again
		resp.Body.Close()
		return resp.TLS.PeerCertificates[0].SerialNumber.String()
	}
	first := certificate(open)

	next := r.servers.Server(t, loopback)
	next.Write(t, r.files.Cert, r.files.Key)
	wait.Until(t, "a new connection sees the new certificate", func() bool {
		return certificate(r.client(t, nil)) == next.Cert.SerialNumber.String()
	})
	expect.Equal(t, certificate(open), first, "the open connection did not go on")
	if _, failed := r.certificates.State(); failed != nil {
		t.Error(failed)
	}

	must.Succeed(t, os.WriteFile(r.files.Cert, []byte("junk"), 0o600))
	if expires, failed := r.certificates.State(); failed == nil || !expires.Equal(next.Cert.NotAfter) {
		t.Errorf("with a broken file: expires %s, error %v", expires, failed)
	}
	expect.Equal(t, certificate(r.client(t, nil)), next.Cert.SerialNumber.String(), "the broken file is used")
}

// insecure_loopback is about addresses without TLS: behind TLS, a local proxy may stand for others.
func TestInsecureLoopback(t *testing.T) {
	r := newTLSRig(t, func(p *access.Policy) { p.InsecureLoopback = true })
	expect.Equal(t, r.get(t, r.client(t, nil), ""), http.StatusUnauthorized, "with TLS")
	r.url = "http://" + r.serve(t, nil)
	expect.Equal(t, r.get(t, r.client(t, nil), ""), http.StatusOK, "without TLS")
	expect.Equal(t, r.get(t, r.client(t, nil), "wrong"), http.StatusUnauthorized, "with a token that is not valid")
}

// With TLS, callers use the names of the certificate.
func TestAnyHostWithTLS(t *testing.T) {
	r := newTLSRig(t)
	req := must.Get(http.NewRequestWithContext(t.Context(), http.MethodGet, r.url+"/healthz", nil))(t)
	req.Host = "lb1.example:7480"
	resp := must.Get(r.client(t, nil).Do(req))(t)
	resp.Body.Close()
	expect.Equal(t, resp.StatusCode, http.StatusOK, "status")
}

// An agent starts without a certificate that can be used, and takes over a good one.
func TestCertificateIsRepaired(t *testing.T) {
	r := newTLSRig(t)
	good := must.Get(os.ReadFile(r.files.Key))(t)
	other := authority.NewKey(t)
	authority.WriteKey(t, r.files.Key, other)
	broken := server.LoadCertificates(r.files)
	if expires, failed := broken.State(); failed == nil || !expires.IsZero() {
		t.Errorf("with another key: expires %s, error %v", expires, failed)
	}
	r.url = "https://" + r.serve(t, broken)
	expect.Equal(t, r.get(t, r.client(t, nil), ""), 0, "with another key: status")
	must.Succeed(t, os.WriteFile(r.files.Key, good, 0o600))
	wait.Until(t, "the good key is used", func() bool { return r.get(t, r.client(t, nil), "") == http.StatusUnauthorized })
}
