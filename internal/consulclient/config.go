package consulclient

import (
	"net"
	"net/url"
	"strconv"
	"strings"

	"github.com/ironvip/ironvip/internal/tlsfile"
	"github.com/ironvip/ironvip/internal/tomlfile"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// Config holds the address of a Consul agent and the credentials for it. It is a part of [consul]
// and of a [[source]]. The keys have Consul's names.
type Config struct {
	// Address is "127.0.0.1:8500", "http://...", "https://host:8501" or
	// "unix:///path"; "" is DefaultAddress.
	Address    string `toml:"address"`
	Datacenter string `toml:"datacenter" values:"name..253"` // "": the one of the agent at Address
	Namespace  string `toml:"namespace" values:"name..253"`  // of Consul Enterprise; "": the token's namespace
	Partition  string `toml:"partition" values:"name..253"`  // of Consul Enterprise; "": the agent's partition
	Token      string `toml:"-"`                             // "" with no TokenFile: the agent's default
	TokenFile  string `toml:"token_file"`                    // takes precedence over Token; read again when it changes
	// The keys below are for https.
	CAFile     string `toml:"ca_file"`   // CA of the server's certificate; "": the system's CAs
	CertFile   string `toml:"cert_file"` // our certificate, with KeyFile; read for each connection
	KeyFile    string `toml:"key_file"`
	ServerName string `toml:"server_name" values:"name..253"` // name in the server's certificate; "": the host of the address
}

// Files returns the files that the keys name.
func (c *Config) Files() []tomlfile.NamedFile {
	return append([]tomlfile.NamedFile{{Key: "token_file", Path: c.TokenFile}}, c.tlsFiles().Files()...)
}

func (c *Config) tlsFiles() tlsfile.Client {
	return tlsfile.Client{CA: c.CAFile, Cert: c.CertFile, Key: c.KeyFile}
}

// Resolved returns the settings with the paths of systemd credentials of this process.
func (c Config) Resolved() (Config, error) {
	for _, file := range []*string{&c.TokenFile, &c.CAFile, &c.CertFile, &c.KeyFile} {
		path, err := tomlfile.ResolvePath(*file)
		if err != nil {
			return c, err
		}
		*file = path
	}
	return c, nil
}

// Check checks all keys except the address, and makes paths absolute.
func (c *Config) Check(t *tomlfile.Checker) {
	t.File("token_file", &c.TokenFile)
	const hint = "write the address as https://HOST:PORT"
	files := c.tlsFiles()
	files.Check(t, c.Address, hint)
	c.CAFile, c.CertFile, c.KeyFile = files.CA, files.Cert, files.Key
	if c.ServerName != "" && !strings.HasPrefix(c.Address, "https://") {
		t.Bad("server_name", hint, "is for TLS, which %s does not use", strict.Quote(c.Address))
	}
}

// CheckAddress checks an address that is set by key.
func CheckAddress(t *tomlfile.Checker, key, text string) {
	const hint = `write "127.0.0.1:8500", "https://consul.example:8501" or "unix:///run/consul.sock"`
	scheme, rest, written := strings.Cut(text, "://")
	if !written {
		scheme, rest = "http", text
	}
	switch scheme {
	case "unix":
		t.Socket(key, rest)
		return
	case "http", "https":
	default:
		t.Bad(key, hint, "%s:// is not a way to reach Consul", scheme)
		return
	}
	if u, err := url.Parse(scheme + "://" + rest); err == nil && (u.User != nil || u.RawQuery != "" || u.Fragment != "" || strings.Trim(u.Path, "/") != "") {
		t.Bad(key, hint+"; a token goes into token_file", "%s has more than a host and a port", strict.Quote(text))
		return
	}
	host, port, err := net.SplitHostPort(strings.TrimSuffix(rest, "/"))
	if err != nil || host == "" || strings.ContainsFunc(host, func(r rune) bool { return r <= ' ' || r > '~' }) {
		t.Bad(key, hint, "%s is not a host and a port", strict.Quote(text))
		return
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		t.Bad(key, hint, "%s is not a port", strict.Quote(port))
	}
}
