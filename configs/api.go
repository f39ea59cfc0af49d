package configs

import (
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/ironvip/ironvip/internal/access"
	"github.com/ironvip/ironvip/internal/tlsfile"
	"github.com/ironvip/ironvip/internal/tomlfile"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// API contains the addresses of the API, and who may use it.
type API struct {
	Socket     string   `toml:"socket"`      // absolute path of a unix socket; "": none
	SocketMode FileMode `toml:"socket_mode"` // permissions of the socket
	Listen     string   `toml:"listen"`      // address and port; "": none

	CertFile     string `toml:"cert_file"`      // PEM; "": no TLS
	KeyFile      string `toml:"key_file"`       // PEM
	ClientCAFile string `toml:"client_ca_file"` // PEM; "": no client certificates

	InsecureSocket   bool `toml:"insecure_socket"`                // permits a SocketMode that lets every user connect
	InsecureLoopback bool `toml:"insecure_loopback"`              // makes every process of this host an admin over TCP
	PublicMetrics    bool `toml:"public_metrics"`                 // makes the metrics public
	RateLimit        int  `toml:"rate_limit" values:"1..1000000"` // requests per second of one client

	Roles []access.Rule `toml:"role"`
}

// DefaultAPIRate is how many requests one client may send in a second. Thousands of backends behind one
// address can send their heartbeats, and a client that does nothing else takes less than a tenth of a
// processor.
const DefaultAPIRate = 1000

// Files returns the files that the keys name.
func (a *API) Files() []tomlfile.NamedFile {
	pair := func(string) *vip.Problem { return tlsfile.CheckPair("api.cert_file", a.CertFile, a.KeyFile) }
	return []tomlfile.NamedFile{{Key: "cert_file", Path: a.CertFile}, {Key: "key_file", Path: a.KeyFile, Check: pair}, {Key: "client_ca_file", Path: a.ClientCAFile, Check: tlsfile.CheckCA}}
}

// othersMayWrite is the permission of every user to connect to a socket.
const othersMayWrite = 0o002

func (c *Config) checkAPI(t *tomlfile.Checker) {
	a := &c.API
	if a.Socket == "" && a.Listen == "" {
		t.Bad("", "set api.socket, or api.listen to 127.0.0.1:7480", "has neither a socket nor an address: nothing could reach the agent")
	}
	if a.Socket != "" {
		t.Socket("socket", a.Socket)
	}
	if a.SocketMode&othersMayWrite != 0 && !a.InsecureSocket {
		t.Bad("socket_mode", `use "0660", or set api.insecure_socket = true`, "lets every user of this host connect")
	}
	t.File("cert_file", &a.CertFile)
	t.File("key_file", &a.KeyFile)
	t.File("client_ca_file", &a.ClientCAFile)
	switch {
	case a.CertFile == "" && a.KeyFile != "":
		t.Bad("cert_file", "write the file with the certificate", "is required with api.key_file")
	case a.CertFile != "" && a.KeyFile == "":
		t.Bad("key_file", "write the file with the certificate's key", "is required with api.cert_file")
	case a.CertFile == "" && a.ClientCAFile != "":
		t.Bad("cert_file", "set api.cert_file and api.key_file", "is required with api.client_ca_file")
	}
	if a.Listen != "" {
		a.checkListen(t)
	}
	for i := range a.Roles {
		checkRole(t.In(strict.Index("role", i)), &a.Roles[i], a.ClientCAFile != "")
	}
}

// checkListen allows only loopback addresses without TLS.
func (a *API) checkListen(t *tomlfile.Checker) {
	const key, hint = "listen", `write a loopback address and a port: "127.0.0.1:7480"`
	host, portText, err := net.SplitHostPort(a.Listen)
	if err != nil {
		t.Bad(key, hint, "%s is not an address with a port", strict.Quote(a.Listen))
		return
	}
	if _, err := strconv.ParseUint(portText, 10, 16); err != nil {
		t.Bad(key, hint, "%s is not a port", strict.Quote(portText))
	}
	if host == "localhost" {
		return
	}
	at, err := netip.ParseAddr(host)
	switch {
	case err != nil && host != "":
		t.Bad(key, hint, "%s is not an address", strict.Quote(host))
	case !at.IsLoopback() && a.CertFile == "":
		t.Bad(key, "set api.cert_file and api.key_file, or write a loopback address", "%s can be reached from other hosts, which needs TLS", a.Listen)
	}
}

func checkRole(t *tomlfile.Checker, r *access.Rule, certificates bool) {
	if r.Role == access.None {
		t.Bad("role", "use viewer, registrar, operator or admin", "is required")
	} else if err := (access.Grant{Role: r.Role, Namespaces: r.Namespaces}).Check(); err != nil {
		t.Bad("namespaces", "name the namespaces of a registrar, and of no other role", "%v", err)
	}
	t.List("namespaces", r.Namespaces, t.Label)
	if r.Role != access.Registrar && len(r.Backends) > 0 {
		t.Bad("backends", "remove it", "only a registrar is limited to backends")
	}
	if r.Role != access.Registrar && len(r.Hostnames) > 0 {
		t.Bad("hostnames", "remove it", "only a registrar is limited to hostnames")
	}
	t.List("hostnames", r.Hostnames, func(key, pattern string) {
		if err := access.CheckHostname(pattern); err != nil {
			t.Bad(key, `write "www.shop.example", or "*.shop.example" for all names below it`, "%v", err)
		}
	})
	var named []string
	for _, n := range []struct{ key, value string }{{"user", r.User}, {"group", r.Group}, {"cert_subject", r.CertSubject}} {
		if n.value != "" {
			named = append(named, n.key)
		}
	}
	switch {
	case len(named) == 0:
		t.Bad("", "add user, group or cert_subject", "names nobody who gets the role")
	case len(named) > 1:
		t.Bad(named[1], "write one block for each", "%s exclude each other", strings.Join(named, " and "))
	case r.CertSubject != "" && !certificates:
		t.Bad("cert_subject", "set api.client_ca_file", "without api.client_ca_file there are no client certificates")
	}
}
