// Package authority creates certificates for the servers and clients of tests. Its output is an
// authority and the certificates that it signs, in memory or as PEM files. Certificates are valid
// from an hour ago for a day, unless a test specifies otherwise.
package authority

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

// Authority signs certificates. It is a value: a copy signs with the same key.
type Authority struct {
	Pair                  // its own certificate
	from, until time.Time // validity of what it signs; zero: as in the package comment
}

// New creates an authority that no client trusts yet.
func New(t testing.TB) Authority {
	t.Helper()
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "authority of tests"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	key := NewKey(t)
	return Authority{Pair: Authority{Pair: Pair{Cert: template, Key: key}}.sign(t, template, key)}
}

// Read returns the authority in these files.
func Read(t testing.TB, certFile, keyFile string) Authority {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	must(t, "read an authority", err)
	return Authority{Pair: Pair{Cert: pair.Leaf, Key: pair.PrivateKey.(*ecdsa.PrivateKey)}}
}

// Valid returns the same authority with another validity for what it signs.
func (a Authority) Valid(from, until time.Time) Authority {
	a.from, a.until = from, until
	return a
}

// Server creates the pair of a server with those addresses and names. The server may also be a
// client of other servers of this authority.
func (a Authority) Server(t testing.TB, addrs []netip.Addr, names ...string) Pair {
	t.Helper()
	c := &x509.Certificate{
		Subject: pkix.Name{CommonName: "server of tests"}, KeyUsage: x509.KeyUsageDigitalSignature, DNSNames: names,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, addr := range addrs {
		c.IPAddresses = append(c.IPAddresses, net.IP(addr.AsSlice()))
	}
	return a.sign(t, c, NewKey(t))
}

// Client creates the pair of a user. Groups are written as organizations, which Kubernetes reads as
// the user's groups.
func (a Authority) Client(t testing.TB, user string, groups ...string) Pair {
	t.Helper()
	return a.sign(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: user, Organization: groups}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, NewKey(t))
}

// Trusts returns the configuration of a client that trusts the authority's servers and presents the
// pair to them.
func (a Authority) Trusts(client Pair) *tls.Config {
	roots := x509.NewCertPool()
	roots.AddCert(a.Cert)
	return &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{{Certificate: [][]byte{client.Cert.Raw}, PrivateKey: client.Key}}}
}

// sign creates the certificate of a key.
func (a Authority) sign(t testing.TB, c *x509.Certificate, key *ecdsa.PrivateKey) Pair {
	t.Helper()
	var err error
	c.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	must(t, "a serial number", err)
	if c.NotBefore, c.NotAfter = a.from, a.until; a.from.IsZero() {
		c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	}
	der, err := x509.CreateCertificate(rand.Reader, c, a.Cert, &key.PublicKey, a.Key)
	must(t, "sign the certificate of "+c.Subject.CommonName, err)
	signed, err := x509.ParseCertificate(der)
	must(t, "the certificate of "+c.Subject.CommonName, err)
	return Pair{Cert: signed, Key: key}
}

// Pair is a certificate and its private key.
type Pair struct {
	Cert *x509.Certificate
	Key  *ecdsa.PrivateKey
}

// Write writes both as PEM files.
func (p Pair) Write(t testing.TB, certFile, keyFile string) {
	t.Helper()
	p.WriteCert(t, certFile)
	WriteKey(t, keyFile, p.Key)
}

// WriteCert writes only the certificate, for programs that are to trust an authority.
func (p Pair) WriteCert(t testing.TB, file string) {
	t.Helper()
	writePEM(t, file, "CERTIFICATE", p.Cert.Raw)
}

// NewKey creates a private key.
func NewKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, "a key", err)
	return key
}

// WriteKey writes a private key as a PEM file. kube-apiserver also reads the public key for service
// accounts from this form.
func WriteKey(t testing.TB, file string, key *ecdsa.PrivateKey) {
	t.Helper()
	der, err := x509.MarshalECPrivateKey(key)
	must(t, "a key", err)
	writePEM(t, file, "EC PRIVATE KEY", der)
}

func writePEM(t testing.TB, file, kind string, der []byte) {
	t.Helper()
	must(t, "a PEM file", os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
}

func must(t testing.TB, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("authority: %s: %v", what, err)
	}
}
