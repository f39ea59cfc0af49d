package configs

import (
	"net/url"
	"slices"
	"strings"

	"github.com/ironvip/ironvip/internal/tlsfile"
	"github.com/ironvip/ironvip/internal/tomlfile"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// Etcd is [etcd]: the members that have the fleet's store, and the credentials for them.
type Etcd struct {
	Endpoints    []string `toml:"endpoints"` // "http://host:port", or all "https://host:port"
	Prefix       string   `toml:"prefix"`    // of the fleet's keys, without "/" at its ends
	Username     string   `toml:"username"`
	PasswordFile string   `toml:"password_file"`
	// The keys below are for https.
	CAFile     string `toml:"ca_file"`
	CertFile   string `toml:"cert_file"`
	KeyFile    string `toml:"key_file"`
	ServerName string `toml:"server_name"` // name in the servers' certificates; "": the host of the endpoint
}

// TLS returns the files for https.
func (e *Etcd) TLS() tlsfile.Client {
	return tlsfile.Client{CA: e.CAFile, Cert: e.CertFile, Key: e.KeyFile}
}

// UsesTLS reports whether the endpoints are of https.
func (e *Etcd) UsesTLS() bool { return slices.ContainsFunc(e.Endpoints, isHTTPS) }

func isHTTPS(endpoint string) bool { return strings.HasPrefix(endpoint, "https://") }

// Files returns the files that the keys name.
func (e *Etcd) Files() []tomlfile.NamedFile {
	return append([]tomlfile.NamedFile{{Key: "password_file", Path: e.PasswordFile}}, e.TLS().Files()...)
}

func (c *Config) checkEtcd(doc *tomlfile.Checker) {
	e, t := &c.Etcd, doc.In("etcd")
	if c.IPAM.Store == StoreEtcd && len(e.Endpoints) == 0 {
		t.Bad("endpoints", `write endpoints = ["http://127.0.0.1:2379"]`, "is required for the store etcd")
	}
	t.List("endpoints", e.Endpoints, func(key, text string) {
		switch u, err := url.Parse(text); {
		case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.Port() == "" || u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "":
			t.Bad(key, `write "http://127.0.0.1:2379" or "https://etcd1.example:2379"`, "%s is not an endpoint of etcd", strict.Quote(text))
		case isHTTPS(text) != e.UsesTLS():
			t.Bad(key, "write https:// for all of them", "%s is without TLS, which another endpoint uses", strict.Quote(text))
		}
	})
	checkFleetPrefix(doc, "etcd.prefix", e.Prefix)
	t.Word("username", e.Username)
	t.Word("server_name", e.ServerName)
	for _, f := range []struct {
		key  string
		path *string
	}{{"password_file", &e.PasswordFile}, {"ca_file", &e.CAFile}, {"cert_file", &e.CertFile}, {"key_file", &e.KeyFile}} {
		t.File(f.key, f.path)
		if *f.path != "" && f.key != "password_file" && !e.UsesTLS() {
			t.Bad(f.key, "write the endpoints as https://HOST:PORT", "is for TLS, which the endpoints do not use")
		}
	}
	if e.ServerName != "" && !e.UsesTLS() {
		t.Bad("server_name", "write the endpoints as https://HOST:PORT", "is for TLS, which the endpoints do not use")
	}
	pairs := []struct{ key, value, other, with string }{
		{"username", e.Username, "password_file", e.PasswordFile}, {"password_file", e.PasswordFile, "username", e.Username},
		{"cert_file", e.CertFile, "key_file", e.KeyFile}, {"key_file", e.KeyFile, "cert_file", e.CertFile},
	}
	for _, p := range pairs {
		if p.value != "" && p.with == "" {
			t.Bad(p.key, "add "+p.other, "has no %s", p.other)
		}
	}
}

// FleetPrefix returns the prefix of the fleet's keys in its store.
func (c *Config) FleetPrefix() string {
	if c.IPAM.Store == StoreEtcd {
		return c.Etcd.Prefix
	}
	return c.Consul.Prefix
}

// FleetServers names the fleet's store and its servers, as in "consul at 127.0.0.1:8500".
func (c *Config) FleetServers() string {
	if c.IPAM.Store == StoreEtcd {
		return "etcd at " + strings.Join(c.Etcd.Endpoints, ", ")
	}
	return "consul at " + c.Consul.Address
}
