package consultest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TLS are the files that a client of an HTTPS server needs, in PEM.
type TLS struct {
	CA   string // the authority's certificate
	Cert string // a client's certificate by that authority
	Key  string // and its key

	serverCert, serverKey string
}

// NewTLS makes a new authority with certificates of its own, that no server
// trusts: for clients with the wrong ones.
func NewTLS(t testing.TB) *TLS {
	t.Helper()
	return newTLS(t, netip.AddrFrom4([4]byte{127, 0, 0, 1}))
}

// newTLS makes an authority, a client's certificate and one of a server at addr.
func newTLS(t testing.TB, addr netip.Addr) *TLS {
	t.Helper()
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	f := &TLS{CA: file("ca.pem"), Cert: file("client.pem"), Key: file("client.key"), serverCert: file("server.pem"), serverKey: file("server.key")}

	ca, caKey := certificate(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: "consultest authority"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}, nil, nil, f.CA, file("ca.key"))
	certificate(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: "consultest server"}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		DNSNames:    []string{"localhost"}, IPAddresses: []net.IP{addr.AsSlice()},
	}, ca, caKey, f.serverCert, f.serverKey)
	certificate(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: "consultest client"}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, ca, caKey, f.Cert, f.Key)
	return f
}

// certificate makes a key and its certificate, signed by the authority or by
// itself when there is none, and writes both.
func certificate(t testing.TB, c, ca *x509.Certificate, caKey *ecdsa.PrivateKey, certFile, keyFile string) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("consultest: certificate of %s: %v", c.Subject.CommonName, err)
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	if ca == nil {
		ca, caKey = c, key
	}
	c.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	must(err)
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, c, ca, &key.PublicKey, caKey)
	must(err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	must(err)
	must(os.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644))
	must(os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600))
	signed, err := x509.ParseCertificate(der)
	must(err)
	return signed, key
}

// clientConfig is what a client with these files has.
func (f *TLS) clientConfig(t testing.TB) *tls.Config {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		t.Fatalf("consultest: the client's certificate: %v", err)
	}
	ca, err := os.ReadFile(f.CA)
	if err != nil {
		t.Fatalf("consultest: the authority: %v", err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	return &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: roots}
}
