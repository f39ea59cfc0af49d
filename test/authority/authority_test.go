package authority

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/expect"
)

// A server of an authority, read from files, accepts only valid clients of that authority, and only
// they accept the server.
func TestAuthority(t *testing.T) {
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	written := New(t)
	written.Write(t, file("ca.pem"), file("ca.key"))
	a := Read(t, file("ca.pem"), file("ca.key"))
	loopback := []netip.Addr{netip.MustParseAddr("127.0.0.1")}
	now := time.Now()

	serve := func(p Pair) *httptest.Server {
		p.Write(t, file("server.pem"), file("server.key"))
		pair, err := tls.LoadX509KeyPair(file("server.pem"), file("server.key"))
		if err != nil {
			t.Fatal(err)
		}
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			subject := r.TLS.PeerCertificates[0].Subject
			io.WriteString(w, subject.CommonName+" of "+subject.Organization[0])
		}))
		roots := x509.NewCertPool()
		roots.AddCert(a.Cert)
		s.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: roots}
		s.Config.ErrorLog = log.New(io.Discard, "", 0)
		s.StartTLS()
		t.Cleanup(s.Close)
		return s
	}
	ask := func(s *httptest.Server, conf *tls.Config, name string) string {
		conf.ServerName = name
		tr := &http.Transport{TLSClientConfig: conf}
		defer tr.CloseIdleConnections()
		resp, err := (&http.Client{Transport: tr}).Get(s.URL)
		if err != nil {
			return ""
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		return string(body)
	}

	good, late := serve(a.Server(t, loopback, "here.example")), serve(a.Valid(now.Add(time.Hour), now.Add(2*time.Hour)).Server(t, loopback))
	client, other := written.Client(t, "ann", "masters"), New(t)
	for _, c := range []struct {
		what   string
		server *httptest.Server
		conf   *tls.Config
		name   string
		want   string
	}{
		{"by its address", good, a.Trusts(client), "", "ann of masters"},
		{"by its name", good, a.Trusts(client), "here.example", "ann of masters"},
		{"by another's name", good, a.Trusts(client), "there.example", ""},
		{"a client of another authority", good, a.Trusts(other.Client(t, "ann", "masters")), "", ""},
		{"a client that trusts another authority", good, other.Trusts(client), "", ""},
		{"a client that was valid", good, a.Trusts(a.Valid(now.Add(-2*time.Hour), now.Add(-time.Hour)).Client(t, "ann", "masters")), "", ""},
		{"a server that will be valid", late, a.Trusts(client), "", ""},
	} {
		expect.Equal(t, ask(c.server, c.conf, c.name), c.want, c.what)
	}
}
