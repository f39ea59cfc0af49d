package haproxy

import (
	"net/netip"
	"strconv"
	"strings"

	"github.com/ironvip/ironvip/vip/spec"
)

// bound is one address of a bind line.
type bound struct {
	addr        netip.Addr // zero: all of the host
	ports       spec.PortRange
	acceptProxy bool
}

// bind reads a bind line: addresses with ports or ranges of ports, separated by commas, and options.
func (p *proxy) bind(l *line) (out []bound) {
	accept := false
	for _, w := range l.words[min(2, len(l.words)):] {
		switch {
		case w == "accept-proxy":
			accept = true
		case w == "ssl":
			p.Note(l.Place, "ssl is not converted: ironvip passes TLS through to the backends, which need the certificate")
		}
	}
	for text := range strings.SplitSeq(l.arg(0), ",") {
		if b, ok := p.address(l, text); ok {
			b.acceptProxy = accept
			out = append(out, b)
		}
	}
	return out
}

// address reads "10.0.0.1:80", ":80", "*:80", "[::1]:80", "::1:80" or "ipv4@10.0.0.1:80-90".
func (p *proxy) address(l *line, text string) (b bound, ok bool) {
	rest := text
	for _, prefix := range []string{"ipv4@", "ipv6@", "quic4@", "quic6@", "unix@", "abns@", "fd@", "udp@"} {
		if after, found := strings.CutPrefix(rest, prefix); found {
			if prefix != "ipv4@" && prefix != "ipv6@" {
				p.Note(l.Place, "bind %s is not converted", text)
				return b, false
			}
			rest = after
		}
	}
	if strings.HasPrefix(rest, "/") {
		p.Note(l.Place, "bind %s is not converted", text)
		return b, false
	}
	i := strings.LastIndexByte(rest, ':')
	if i < 0 {
		p.Note(l.Place, "bind %s has no port: not converted", text)
		return b, false
	}
	host, port := strings.Trim(rest[:i], "[]"), rest[i+1:]
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
	first, last, isRange := strings.Cut(port, "-")
	b.ports.First, _ = strconv.Atoi(first) // 0 is noted below
	if isRange {
		b.ports.Last, _ = strconv.Atoi(last)
	}
	if b.ports.First < 1 || b.ports.First > 65535 || isRange && (b.ports.Last < b.ports.First || b.ports.Last > 65535) {
		p.Note(l.Place, "%q is not a port: not converted", port)
		return b, false
	}
	if b.ports.Last == b.ports.First {
		b.ports.Last = 0
	}
	return b, true
}
