package kubetest

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
	"testing"
	"time"
)

// authority signs the certificates of the server and of its clients.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	// from and until are when what it signs is valid; zero is from an hour ago for
	// a day.
	from, until time.Time
}

// valid is the same authority, with another time for what it signs.
func (a authority) valid(from, until time.Time) *authority {
	a.from, a.until = from, until
	return &a
}

// newAuthority makes one, and writes its certificate to a file.
func newAuthority(t testing.TB, file string) *authority {
	t.Helper()
	a := &authority{key: newKey(t)}
	der := a.sign(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: "kubetest authority"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}, a.key)
	var err error
	a.cert, err = x509.ParseCertificate(der)
	must(t, "the authority", err)
	writePEM(t, file, "CERTIFICATE", der)
	return a
}

// serve writes the certificate and key of a server with those addresses.
func (a *authority) serve(t testing.TB, certFile, keyFile string, addrs []netip.Addr) {
	t.Helper()
	c := &x509.Certificate{
		Subject: pkix.Name{CommonName: "kube-apiserver"}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames:    []string{"localhost", "kubernetes.default.svc"},
	}
	for _, addr := range addrs {
		c.IPAddresses = append(c.IPAddresses, net.IP(addr.AsSlice()))
	}
	key := newKey(t)
	writePEM(t, certFile, "CERTIFICATE", a.sign(t, c, key))
	writeKey(t, keyFile, key)
}

// client makes the certificate of a user, as Kubernetes reads one: the common
// name is the user's, organisations are the groups.
func (a *authority) client(t testing.TB, user string, groups []string) ([]byte, *ecdsa.PrivateKey) {
	t.Helper()
	key := newKey(t)
	return a.sign(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: user, Organization: groups}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, key), key
}

// clientConfig is what a user's client has.
func (a *authority) clientConfig(t testing.TB, user string, groups ...string) *tls.Config {
	t.Helper()
	der, key := a.client(t, user, groups)
	roots := x509.NewCertPool()
	roots.AddCert(a.cert)
	return &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
}

// sign makes the certificate of a key. The authority's own is signed by itself.
func (a *authority) sign(t testing.TB, c *x509.Certificate, key *ecdsa.PrivateKey) []byte {
	t.Helper()
	var err error
	c.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	must(t, "a serial number", err)
	if c.NotBefore, c.NotAfter = a.from, a.until; a.from.IsZero() {
		c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	}
	parent := a.cert
	if parent == nil {
		parent = c
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, a.key)
	must(t, "certificate of "+c.Subject.CommonName, err)
	return der
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, "a key", err)
	return key
}

// writeKey writes a private key in the form in which kube-apiserver takes also
// the public one from it, for service accounts.
func writeKey(t testing.TB, file string, key *ecdsa.PrivateKey) {
	t.Helper()
	der, err := x509.MarshalECPrivateKey(key)
	must(t, "a key", err)
	writePEM(t, file, "EC PRIVATE KEY", der)
}

func writePEM(t testing.TB, file, kind string, der []byte) {
	t.Helper()
	must(t, "a PEM file", os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
}
