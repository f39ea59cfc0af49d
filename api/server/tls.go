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
	config  *tls.Config
	expires time.Time
	stamps  [3]stamp
	checked time.Time
	failed  error // of the newest files; nil: they are in use
}

// stamp tells versions of a file apart.
type stamp struct {
	size    int64
	changed time.Time
}

// LoadCertificates reads the files.
func LoadCertificates(files CertificateFiles) (*Certificates, error) {
	c := &Certificates{files: files}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.check(time.Now())
	return c, c.failed
}

// Config returns the configuration of a listener.
func (c *Certificates) Config() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if now := time.Now(); now.Sub(c.checked) >= checkEvery {
			c.check(now)
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

// check reads the files if they have changed. The caller holds mu.
func (c *Certificates) check(now time.Time) {
	c.checked = now
	var stamps [3]stamp
	for i, name := range []string{c.files.Cert, c.files.Key, c.files.ClientCA} {
		if info, err := os.Stat(name); name != "" && err == nil {
			stamps[i] = stamp{info.Size(), info.ModTime()}
		}
	}
	if stamps == c.stamps && c.failed == nil && c.config != nil {
		return
	}
	config, expires, err := c.files.read()
	if c.failed = err; err != nil {
		return
	}
	c.config, c.expires, c.stamps = config, expires, stamps
}

func (f CertificateFiles) read() (*tls.Config, time.Time, error) {
	pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("api.cert_file, api.key_file: %w", err)
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, NextProtos: []string{"http/1.1"}}
	if f.ClientCA != "" {
		text, err := os.ReadFile(f.ClientCA)
		if err != nil {
			return nil, time.Time{}, fmt.Errorf("api.client_ca_file: %w", err)
		}
		config.ClientCAs = x509.NewCertPool()
		if !config.ClientCAs.AppendCertsFromPEM(text) {
			return nil, time.Time{}, errors.New("api.client_ca_file: no certificate in PEM")
		}
		config.ClientAuth = tls.VerifyClientCertIfGiven
	}
	return config, pair.Leaf.NotAfter, nil
}
