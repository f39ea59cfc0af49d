package haproxy

import (
	"net/netip"
	"strings"

	"github.com/ironvip/ironvip/cmd/ironvip/cli/migrate"
	"github.com/ironvip/ironvip/vip/spec"
)

// bound is one address of a bind line.
type bound struct {
	addr        netip.Addr // zero: all of the host
	ports       spec.PortRange
	acceptProxy bool
}

// The options of a bind line of which nothing is missing: with a value, and without. The note about ssl stands for the options of TLS.
var (
	bindValues = words("name id user group mode process thread shards nice backlog tcp-ut crt crt-list ca-file ca-sign-file alpn ciphers ciphersuites ssl-min-ver ssl-max-ver verify curves ecdhe crl-file npn")
	bindFlags  = words("transparent v4v6 v6only tfo defer-accept strict-sni no-tls-tickets no-sslv3 no-tlsv10 no-tlsv11 allow-0rtt prefer-client-ciphers force-tlsv12 force-tlsv13")
)

// bind reads a bind line: addresses with ports or ranges of ports, separated by commas, and options.
func (p *proxy) bind(l *migrate.Statement) (out []bound) {
	accept := false
	l.Keyword()
	for i := 1; i+1 < len(l.Words); i++ {
		switch w := l.Words[i+1]; {
		case w == "accept-proxy":
			accept = true
		case w == "ssl":
			p.Note(l.Place, "ssl is not converted: ironvip passes TLS through to the backends, which need the certificate")
		case bindValues[w]:
			l.Arg(i)
			i++
		case !bindFlags[w]:
			continue // NoteUnread
		}
		l.Arg(i)
	}
	for text := range strings.SplitSeq(l.Arg(0), ",") {
		if b, ok := p.address(l, text); ok {
			b.acceptProxy = accept
			out = append(out, b)
		}
	}
	return out
}

// address reads "10.0.0.1:80", ":80", "*:80", "[::1]:80", "::1:80" or "ipv4@10.0.0.1:80-90".
func (p *proxy) address(l *migrate.Statement, text string) (b bound, ok bool) {
	kind, rest, isKind := strings.Cut(text, "@")
	if !isKind {
		rest = text
	}
	if isKind && kind != "ipv4" && kind != "ipv6" || strings.HasPrefix(rest, "/") {
		p.Note(l.Place, "bind %s is not converted", text)
		return b, false
	}
	i := strings.LastIndexByte(rest, ':')
	if i < 0 {
		p.Note(l.Place, "bind %s has no port: not converted", text)
		return b, false
	}
	host, port := strings.Trim(rest[:i], "[]"), rest[i+1:] // the last colon, also without brackets
	if host != "" && host != "*" {
		addr, err := netip.ParseAddr(host)
		if err != nil {
			p.Note(l.Place, "%q is not an address: not converted", host)
			return b, false
		}
		if !addr.IsUnspecified() {
			b.addr = addr
		}
	}
	if b.ports, ok = migrate.Ports(port); !ok {
		p.Note(l.Place, "%q is not a port: not converted", port)
	}
	return b, ok
}
