// Package tlsfile has the files of clients with credentials: in PEM the authorities of the server's certificate and the
// certificate of the client, and the token.
package tlsfile

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"strings"

	"github.com/ironvip/ironvip/internal/tomlfile"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// Client has the paths of a client's files. A path may begin with tomlfile.Credentials; "" is no file.
type Client struct {
	CA   string `toml:"ca_file"`   // "": the host's authorities
	Cert string `toml:"cert_file"` // our certificate, with Key; "": none
	Key  string `toml:"key_file"`
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

// Check makes the paths of the keys ca_file, cert_file and key_file absolute, and requires both or none of the last two. Hint
// says how to write an address that uses TLS, if this one does not.
func (f *Client) Check(t *tomlfile.Checker, address, hint string) {
	for _, file := range []struct {
		key  string
		path *string
	}{{"ca_file", &f.CA}, {"cert_file", &f.Cert}, {"key_file", &f.Key}} {
		if t.File(file.key, file.path); *file.path != "" && !strings.HasPrefix(address, "https://") {
			t.Bad(file.key, hint, "is for TLS, which %s does not use", strict.Quote(address))
		}
	}
	if f.Cert != "" && f.Key == "" {
		t.Bad("cert_file", "add key_file, with the certificate's private key", "has no key_file")
	}
	if f.Key != "" && f.Cert == "" {
		t.Bad("key_file", "add cert_file, with the key's certificate", "has no cert_file")
	}
}

// Token returns the token in a file; "" without a path. It reads the file each time, because another program may rotate the
// token. A file that can't be read is an error: without the token, a server could answer as to an anonymous client.
func Token(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	path, err := tomlfile.ResolvePath(path)
	if err != nil {
		return "", err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	value := strings.TrimSpace(string(data))
	if value == "" {
		return "", fmt.Errorf("%s is empty: it should hold a token", path)
	}
	return value, nil
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
