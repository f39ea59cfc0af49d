package haproxy

import (
	"math"
	"net/netip"
	"slices"
	"strings"

	"github.com/ironvip/ironvip/cmd/ironvip/cli/migrate"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

// valued are the options of a server that have a value.
var valued = map[string]bool{
	"weight": true, "maxconn": true, "minconn": true, "maxqueue": true, "inter": true, "fastinter": true, "downinter": true,
	"rise": true, "fall": true, "port": true, "addr": true, "slowstart": true, "cookie": true, "id": true, "source": true,
	"track": true, "on-error": true, "on-marked-down": true, "on-marked-up": true, "observe": true, "error-limit": true,
	"ca-file": true, "crt": true, "verify": true, "sni": true, "alpn": true, "check-sni": true, "check-alpn": true, "init-addr": true,
	"resolvers": true, "resolve-prefer": true, "resolve-net": true, "resolve-opts": true, "namespace": true, "proto": true,
	"pool-max-conn": true, "pool-purge-delay": true, "socks4": true, "ciphers": true, "ciphersuites": true, "verifyhost": true,
	"agent-addr": true, "agent-port": true, "agent-inter": true, "agent-send": true, "tcp-ut": true, "usesrc": true,
	"ssl-min-ver": true, "ssl-max-ver": true, "check-proto": true, "max-reuse": true, "pool-low-conn": true, "redir": true, "crl-file": true,
	"proxy-v2-options": true, "interface": true, "log-proto": true, "shard": true, "ws": true,
}

// server converts a server line: name, address and options, after those of default-server.
func (p *proxy) server(l *migrate.Statement, words []string) {
	if len(words) < 2 {
		p.Note(l.Place, "a server needs a name and an address: not converted")
		return
	}
	host, port := words[1], ""
	host = strings.TrimPrefix(strings.TrimPrefix(host, "ipv4@"), "ipv6@")
	if i := strings.LastIndexByte(host, ':'); i > strings.LastIndexByte(host, ']') { // the last colon, also without brackets
		host, port = host[:i], host[i+1:]
	}
	addr, err := netip.ParseAddr(strings.Trim(host, "[]"))
	if err != nil {
		p.Note(l.Place, "server %s: %q is not an address: write the server's address, or use a source that follows a registry", words[0], host)
		return
	}
	b := migrate.Backend{Place: l.Place, Backend: spec.Backend{Address: addr.String(), Port: migrate.Port(port)}}
	if port != "" && b.Port == 0 {
		p.Note(l.Place, "server %s: the port %q is not converted", words[0], port)
	}
	p.check.server, p.check.own = false, serverCheck{}
	p.own = serverOptions{}
	for _, option := range slices.Concat(p.standard, options(words[2:])) {
		p.serverOption(l, &b.Backend, option[0], option[1])
	}
	switch {
	case p.first == nil:
		first := p.own
		p.first = &first
	case *p.first != p.own:
		p.Note(l.Place, "server %s has other options of send-proxy, slowstart, maxqueue or on-marked-down than the first server: a service has them once, those of the first server", words[0])
	}
	if p.check.server {
		p.check.endServer(p, l, words[0])
	} else {
		p.unchecked = append(p.unchecked, uncheckedServer{l.Place, words[0]})
	}
	p.backends = append(p.backends, b)
}

// options divides words into options with their values.
func options(words []string) (out [][2]string) {
	for i := 0; i < len(words); i++ {
		option := [2]string{words[i]}
		if valued[words[i]] && i+1 < len(words) {
			i++
			option[1] = words[i]
		}
		out = append(out, option)
	}
	return out
}

// serverOptions are the options of a server that a service has once.
type serverOptions struct {
	proxyProtocol, onUnhealthy string
	slowStart                  spec.Duration // 0: none
	maxQueue                   int
}

// set makes them those of a service.
func (o *serverOptions) set(s *spec.Service) {
	if o == nil {
		return
	}
	s.ProxyProtocol, s.OnUnhealthy, s.MaxQueue = o.proxyProtocol, o.onUnhealthy, o.maxQueue
	if o.slowStart != 0 {
		s.SlowStart = new(o.slowStart)
	}
}

// uncheckedServer is a server that HAProxy does not check.
type uncheckedServer struct {
	migrate.Place
	name string
}

// noteUnchecked notes the servers that HAProxy does not check, if others are checked: a service has one
// check.
func (p *proxy) noteUnchecked() {
	if !p.check.on {
		return
	}
	for _, s := range p.unchecked {
		p.Note(s.Place, "server %s has no check in HAProxy: here it has the check of the service", s.name)
	}
}

func (p *proxy) serverOption(l *migrate.Statement, b *spec.Backend, option, value string) {
	switch option {
	case "weight":
		if n, ok := p.number(l, "server option weight", value, 0, vip.MaxWeight); ok {
			b.Weight = migrate.Weight(n)
		}
	case "maxconn":
		b.MaxConnections, _ = p.number(l, "server option maxconn", value, 0, vip.MaxMaxConnections)
	case "maxqueue":
		n, ok := p.number(l, "server option maxqueue", value, 0, math.MaxInt32)
		if ok && (n == 0 || n > vip.MaxMaxQueue) { // HAProxy's 0 is no limit
			p.Note(l.Place, "server option maxqueue %d is out of bounds: %d is used", n, vip.MaxMaxQueue)
			n = vip.MaxMaxQueue
		}
		p.own.maxQueue = n
	case "backup", "no-backup":
		b.Backup = option == "backup"
	case "disabled":
		b.State = vip.Maint.String()
	case "enabled":
		b.State = ""
	case "slowstart":
		if d := p.positive(l, value, vip.MinSlowStart, vip.MaxSlowStart); d != nil {
			p.own.slowStart = *d
		}
	case "no-send-proxy", "no-send-proxy-v2":
		p.own.proxyProtocol = ""
	case "send-proxy":
		p.own.proxyProtocol = "v1"
	case "send-proxy-v2":
		p.own.proxyProtocol = "v2"
	case "on-marked-down":
		if value == "shutdown-sessions" {
			p.own.onUnhealthy = "reset"
		}
	case "ssl":
		p.check.own.ssl = true
		p.Note(l.Place, "ssl is not converted: ironvip passes connections through, so clients must speak TLS themselves")
	case "cookie", "id", "init-addr", "tfo", "proto", "verify", "ca-file", "sni", "crt":
		// without an effect on connections that are passed through
	default:
		if !p.check.serverOption(p, l, option, value) {
			p.Note(l.Place, "server option %s is not converted", strings.TrimSpace(option+" "+value))
		}
	}
}
