package consultest

import (
	"crypto/tls"
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/ironvip/ironvip/test/authority"
)

// TLS holds the files that a client of an HTTPS server needs, in PEM.
type TLS struct {
	CA   string // the authority's certificate
	Cert string // a client's certificate by that authority
	Key  string // the client's key

	serverCert, serverKey string
	config                *tls.Config // of a client with these files
}

// newTLS creates an authority, a client's certificate and a certificate of a server at addr.
func newTLS(t testing.TB, addr netip.Addr) *TLS {
	t.Helper()
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	f := &TLS{CA: file("ca.pem"), Cert: file("client.pem"), Key: file("client.key"), serverCert: file("server.pem"), serverKey: file("server.key")}

	a := authority.New(t)
	a.WriteCert(t, f.CA)
	a.Server(t, []netip.Addr{addr}, "localhost").Write(t, f.serverCert, f.serverKey)
	client := a.Client(t, "consultest client")
	client.Write(t, f.Cert, f.Key)
	f.config = a.Trusts(client)
	return f
}
