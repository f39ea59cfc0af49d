package server

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
)

// CertificateFiles are the files of a server's certificate, in PEM.
type CertificateFiles struct {
	Cert, Key string
	ClientCA  string // the authorities of client certificates; "": none are asked for
}

// checkEvery is how often a handshake looks for changed files.
const checkEvery = time.Second

// Certificates are the server's certificate and the authorities of its clients, as they are in their
// files. A handshake after a change uses the new ones; connections that are open go on. Files that
// can't be used leave the former ones in effect.
type Certificates struct {
	files CertificateFiles

	mu      sync.Mutex
	config  *tls.Config // nil: no files could be used yet, so every handshake fails
	expires time.Time
	texts   [3]string // of the files in use
	checked time.Time
	failed  error // of the newest files; nil: they are in use
}

// LoadCertificates reads the files. Files that can't be used are read again later; State says why.
func LoadCertificates(files CertificateFiles) *Certificates {
	c := &Certificates{files: files}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.check(time.Now())
	return c
}

// Config returns the configuration of a listener.
func (c *Certificates) Config() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if now := time.Now(); now.Sub(c.checked) >= checkEvery {
			c.check(now)
		}
		if c.config == nil {
			return nil, c.failed
		}
		return c.config, nil
	}}
}

// State returns when the certificate in use expires, and why the newest files are not in use, or nil.
func (c *Certificates) State() (expires time.Time, failed error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.check(time.Now())
	return c.expires, c.failed
}

// check reads the files, and takes over those that have changed. The caller holds mu.
func (c *Certificates) check(now time.Time) {
	c.checked = now
	var texts [3]string
	for i, f := range []struct{ key, name string }{{"cert_file", c.files.Cert}, {"key_file", c.files.Key}, {"client_ca_file", c.files.ClientCA}} {
		if f.name == "" {
			continue
		}
		text, err := os.ReadFile(f.name)
		if err != nil {
			c.failed = fmt.Errorf("api.%s: %w", f.key, err)
			return
		}
		texts[i] = string(text)
	}
	if texts == c.texts {
		c.failed = nil
		return
	}
	config, expires, err := newTLS(texts[0], texts[1], texts[2])
	if c.failed = err; err == nil {
		c.config, c.expires, c.texts = config, expires, texts
	}
}

// newTLS returns the configuration of a certificate, its key, and the authorities of clients.
func newTLS(cert, key, clientCA string) (*tls.Config, time.Time, error) {
	pair, err := tls.X509KeyPair([]byte(cert), []byte(key))
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("api.cert_file, api.key_file: %w", err)
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, NextProtos: []string{"http/1.1"}}
	if clientCA != "" {
		config.ClientCAs = x509.NewCertPool()
		if !config.ClientCAs.AppendCertsFromPEM([]byte(clientCA)) {
			return nil, time.Time{}, errors.New("api.client_ca_file: no certificate in PEM")
		}
		config.ClientAuth = tls.VerifyClientCertIfGiven
	}
	return config, pair.Leaf.NotAfter, nil
}
