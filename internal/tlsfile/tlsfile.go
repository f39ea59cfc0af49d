// Package tlsfile has the files of TLS clients, in PEM: the authorities of the server's certificate, and the certificate of
// the client.
package tlsfile

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"

	"github.com/ironvip/ironvip/internal/tomlfile"
	"github.com/ironvip/ironvip/vip"
)

// Client has the paths of a client's files. A path may begin with tomlfile.Credentials; "" is no file.
type Client struct {
	CA        string // "": the host's authorities
	Cert, Key string // "" both: no certificate
}

// Config returns the settings of a new connection to a server. It reads the files each time, because they may change.
func (f Client) Config(server string) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: server}
	for _, path := range []*string{&f.CA, &f.Cert, &f.Key} {
		resolved, err := tomlfile.ResolvePath(*path)
		if err != nil {
			return nil, err
		}
		*path = resolved
	}
	if f.CA != "" {
		pem, err := os.ReadFile(f.CA)
		if err != nil {
			return nil, err
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s has no certificate in PEM", f.CA)
		}
	}
	if f.Cert != "" || f.Key != "" {
		pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// Files returns the files that the keys ca_file, cert_file and key_file name.
func (f Client) Files() []tomlfile.NamedFile {
	return []tomlfile.NamedFile{{Key: "ca_file", Path: f.CA, Check: CheckCA}, {Key: "cert_file", Path: f.Cert},
		{Key: "key_file", Path: f.Key, Check: func(string) *vip.Problem { return CheckPair("cert_file", f.Cert, f.Key) }}}
}

// CheckCA returns what is wrong with a file of authorities.
func CheckCA(path string) *vip.Problem {
	text, err := os.ReadFile(path)
	if err == nil && !x509.NewCertPool().AppendCertsFromPEM(text) {
		return &vip.Problem{Code: vip.CodeInvalid, Message: path + " has no certificate in PEM", Hint: "write the certificates of the authorities"}
	}
	return nil
}

// CheckPair returns why a key does not fit the certificate that a key of the configuration names.
func CheckPair(name, cert, key string) *vip.Problem {
	cert, certErr := tomlfile.ResolvePath(cert)
	key, keyErr := tomlfile.ResolvePath(key)
	if certErr != nil || keyErr != nil {
		return nil
	}
	if _, err := tls.LoadX509KeyPair(cert, key); err != nil {
		return &vip.Problem{Code: vip.CodeInvalid, Message: "does not fit " + name + ": " + err.Error(), Hint: "write the key of that certificate, in PEM"}
	}
	return nil
}
