package configs

import (
	"cmp"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"unicode"

	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// ConsulServer is where a Consul agent answers, and as whom it is asked.
type ConsulServer struct {
	Address    string `toml:"address"`    // "127.0.0.1:8500", "http://...", "https://..." or "unix:///path"
	Datacenter string `toml:"datacenter"` // "": the one of the agent that is asked
	Namespace  string `toml:"namespace"`  // of Consul Enterprise; "": the token's
	Partition  string `toml:"partition"`  // of Consul Enterprise; "": the agent's
	// The files are absolute, or begin with Credentials; "" is none.
	TokenFile  string `toml:"token_file"`
	CAFile     string `toml:"ca_file"`
	CertFile   string `toml:"cert_file"`
	KeyFile    string `toml:"key_file"`
	ServerName string `toml:"server_name"` // in the server's certificate; "": the address's host
}

// Consul is [consul]: the store of a fleet, and where sources of type consul
// look that name no address of their own.
type Consul struct {
	ConsulServer
	Prefix string `toml:"prefix"` // of everything that a fleet keeps in Consul's KV store, without "/" at its ends
}

// Defaults of what concerns Consul.
const (
	DefaultConsulAddress = "127.0.0.1:8500"
	DefaultConsulPrefix  = "ironvip"
	DefaultConsulTag     = "ironvip"
)

// Credentials is how a path in the directory of systemd's credentials begins.
const Credentials = "$CREDENTIALS_DIRECTORY/"

// ResolvePath returns the path of a file that a configuration names, with
// systemd's directory of credentials in its place. The error says that this
// process has none.
func ResolvePath(path string) (string, error) {
	name, isCredential := strings.CutPrefix(path, Credentials)
	if !isCredential {
		return path, nil
	}
	dir := os.Getenv("CREDENTIALS_DIRECTORY")
	if dir == "" {
		return "", vip.Problem{Code: vip.CodeInvalid, Message: path + ": this process has no credentials of systemd",
			Hint: "add LoadCredential=" + name + ":/path to the unit, or write a path from the root"}
	}
	return filepath.Join(dir, name), nil
}

// files are the keys that name files, and what they name.
func (s *ConsulServer) files() []namedFile {
	return []namedFile{{"token_file", &s.TokenFile}, {"ca_file", &s.CAFile}, {"cert_file", &s.CertFile}, {"key_file", &s.KeyFile}}
}

type namedFile struct {
	key  string
	path *string
}

// IsTLS reports whether the address asks for TLS.
func (s *ConsulServer) IsTLS() bool { return strings.HasPrefix(s.Address, "https://") }

// CheckFiles looks for the files with secrets and certificates, and says which
// can't be read by this process. What systemd gives to the agent alone is not
// looked for.
func (c *Config) CheckFiles() []vip.Problem {
	var problems []vip.Problem
	seen := map[string]bool{} // sources take files over from [consul]
	check := func(field string, files []namedFile) {
		for _, f := range files {
			path, err := ResolvePath(*f.path)
			if path == "" || err != nil || seen[path] {
				continue
			}
			seen[path] = true
			if _, problem := ReadFile(path, MaxConfigSize); problem != nil {
				problem.Field = strict.Join(field, f.key)
				problem.Place = c.Where(problem.Field)
				problem.Message = path + ": " + problem.Message
				problems = append(problems, *problem)
			}
		}
	}
	if c.UsesConsul() {
		check("consul", c.Consul.ConsulServer.files())
	}
	for i := range c.Sources {
		switch s, field := &c.Sources[i], strict.Index("source", i); s.Type {
		case SourceConsul:
			check(field, s.ConsulServer.files())
		case SourceKubernetes:
			check(field, []namedFile{{"kubeconfig", &s.Kubeconfig}})
		}
	}
	return problems
}

// UsesConsul reports whether anything asks the server of [consul].
func (c *Config) UsesConsul() bool {
	if c.IPAM.Store == StoreConsul {
		return true
	}
	for i := range c.Sources {
		if s := &c.Sources[i]; s.Type == SourceConsul && s.Address == c.Consul.Address {
			return true
		}
	}
	return false
}

func (v *validator) consul() {
	c, i, address := &v.config.Consul, &v.config.IPAM, "consul.address"
	switch {
	case i.ConsulAddress == "":
	case c.Address != "" && c.Address != i.ConsulAddress:
		v.bad("ipam.consul_address", "keep consul.address alone", "is short for consul.address, which is %s at %s", strict.Quote(c.Address), v.where("consul.address"))
	case i.Store != StoreConsul:
		v.bad("ipam.consul_address", `set ipam.store to "consul", or write consul.address`, "is for the consul store, and ipam.store is %q", i.Store)
	default:
		address, c.Address, i.ConsulAddress = "ipam.consul_address", i.ConsulAddress, ""
	}
	c.Address = cmp.Or(c.Address, DefaultConsulAddress)
	v.consulAddress(address, c.Address)
	v.consulServer("consul", &c.ConsulServer)
	if !prefixes.MatchString(c.Prefix) || len(c.Prefix) > maxConsulPrefix {
		v.bad("consul.prefix", fmt.Sprintf("use %q", DefaultConsulPrefix), `%s is not a prefix: up to %d of a-z A-Z 0-9 . _ -, in parts with a single "/" between`, strict.Quote(c.Prefix), maxConsulPrefix)
	}
}

const maxConsulPrefix = 128

var prefixes = regexp.MustCompile(`^[a-zA-Z0-9._-]+(/[a-zA-Z0-9._-]+)*$`)

// consulServer checks what goes with a server's address. Field is the table's.
func (v *validator) consulServer(field string, s *ConsulServer) {
	at := func(key string) string { return strict.Join(field, key) }
	for _, word := range []struct{ key, text string }{{"datacenter", s.Datacenter}, {"namespace", s.Namespace}, {"partition", s.Partition}, {"server_name", s.ServerName}} {
		v.word(at(word.key), word.text)
	}
	for _, f := range s.files() {
		*f.path = v.file(at(f.key), *f.path)
		if *f.path != "" && f.key != "token_file" && !s.IsTLS() {
			v.bad(at(f.key), "write the address as https://HOST:PORT", "is for TLS, which %s does not ask for", strict.Quote(s.Address))
		}
	}
	if s.ServerName != "" && !s.IsTLS() {
		v.bad(at("server_name"), "write the address as https://HOST:PORT", "is for TLS, which %s does not ask for", strict.Quote(s.Address))
	}
	if s.CertFile != "" && s.KeyFile == "" {
		v.bad(at("cert_file"), "add key_file, with the certificate's private key", "has no key_file")
	}
	if s.KeyFile != "" && s.CertFile == "" {
		v.bad(at("key_file"), "add cert_file, with the key's certificate", "has no cert_file")
	}
}

// file makes the path of a file absolute, as that of a source is.
func (v *validator) file(field, path string) string {
	name, isCredential := strings.CutPrefix(path, Credentials)
	switch {
	case path == "":
		return ""
	case isCredential:
		if name == "" || strings.Contains(name, "/") || strings.ContainsFunc(name, unicode.IsControl) {
			v.bad(field, `write it as "`+Credentials+`NAME"`, "%s names no credential", strict.Quote(path))
		}
		return path
	case strings.HasPrefix(path, "$"):
		v.bad(field, `use a path, or "`+Credentials+`NAME" for a credential of systemd`, "%s: no variable but CREDENTIALS_DIRECTORY is known here", strict.Quote(path))
		return path
	}
	path = v.fromFolder(path)
	v.absolute(field, path)
	return path
}

// fromFolder makes a path absolute that is written from the folder of the
// configuration.
func (v *validator) fromFolder(path string) string {
	if !filepath.IsAbs(path) {
		path = filepath.Join(filepath.Dir(v.path), path)
		if abs, err := filepath.Abs(path); err == nil {
			path = abs
		}
	}
	return filepath.Clean(path)
}

func (v *validator) consulAddress(field, text string) {
	const hint = `write "127.0.0.1:8500", "https://consul.example:8501" or "unix:///run/consul.sock"`
	scheme, rest, written := strings.Cut(text, "://")
	if !written {
		scheme, rest = "http", text
	}
	switch scheme {
	case "unix":
		v.absolute(field, rest)
		if len(rest) > maxSocketPath {
			v.bad(field, "use a shorter path", "has %d bytes, a socket's path has up to %d", len(rest), maxSocketPath)
		}
		return
	case "http", "https":
	default:
		v.bad(field, hint, "%s:// is not a way to reach Consul", scheme)
		return
	}
	if u, err := url.Parse(scheme + "://" + rest); err == nil && (u.User != nil || u.RawQuery != "" || u.Fragment != "" || strings.Trim(u.Path, "/") != "") {
		v.bad(field, hint+"; a token goes into token_file", "%s has more than a host and a port", strict.Quote(text))
		return
	}
	host, port, err := net.SplitHostPort(strings.TrimSuffix(rest, "/"))
	if err != nil || host == "" || strings.ContainsFunc(host, func(r rune) bool { return r <= ' ' || r > '~' }) {
		v.bad(field, hint, "%s is not a host and a port", strict.Quote(text))
		return
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		v.bad(field, hint, "%s is not a port", strict.Quote(port))
	}
}

// consulSource checks a source of type consul and fills in what it leaves to
// [consul]: with no address of its own it asks the same server, with the same
// credentials. With one it gets nothing from there, so that no token goes
// anywhere it wasn't meant for.
func (v *validator) consulSource(field string, s *Source) {
	if s.Address == "" {
		server := v.config.Consul.ConsulServer
		for _, key := range []struct{ name, text string }{{"ca_file", s.CAFile}, {"cert_file", s.CertFile}, {"key_file", s.KeyFile}, {"server_name", s.ServerName}} {
			if key.text != "" {
				v.bad(strict.Join(field, key.name), "write it in [consul], or give this source an address", "belongs to an address, which this source leaves to [consul]")
			}
		}
		server.Datacenter = cmp.Or(s.Datacenter, server.Datacenter)
		server.Namespace = cmp.Or(s.Namespace, server.Namespace)
		server.Partition = cmp.Or(s.Partition, server.Partition)
		server.TokenFile = cmp.Or(v.file(strict.Join(field, "token_file"), s.TokenFile), server.TokenFile)
		for _, word := range []struct{ key, text string }{{"datacenter", s.Datacenter}, {"namespace", s.Namespace}, {"partition", s.Partition}} {
			v.word(strict.Join(field, word.key), word.text)
		}
		s.ConsulServer = server
	} else {
		v.consulAddress(strict.Join(field, "address"), s.Address)
		v.consulServer(field, &s.ConsulServer)
	}
	if s.Tag != "" && len(s.Services) > 0 {
		v.bad(strict.Join(field, "tag"), "keep one of the two", "services are listed at %s: those are taken whatever their tags", v.where(strict.Join(field, "services")))
	}
	v.word(strict.Join(field, "tag"), s.Tag)
	v.word(strict.Join(field, "tagged_address"), s.TaggedAddress)
	v.pool(strict.Join(field, "pool"), s.Pool)
	if s.ServiceNamespace != "" {
		v.label(strict.Join(field, "service_namespace"), s.ServiceNamespace)
	}
	v.shrinkGuard(field, s)
	if s.Tag == "" && len(s.Services) == 0 {
		s.Tag = DefaultConsulTag
	}
	seen := map[string]bool{}
	for i, name := range s.Services {
		at := strict.Index(strict.Join(field, "services"), i)
		v.word(at, name)
		switch {
		case name == "":
			v.bad(at, "remove it", "is empty")
		case seen[name]:
			v.bad(at, "remove it", "%s is there twice", strict.Quote(name))
		}
		seen[name] = true
	}
}
