package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path"
	"slices"
	"strings"

	"github.com/ironvip/ironvip/dns/resolved"
	"github.com/ironvip/ironvip/internal/text"
)

// resolvers checks the configurations of the resolvers that this host may have, and looks up a name
// if the agent configures one of them.
func resolvers(h Host, w Want) []Finding {
	if len(w.DNS.Listen) == 0 {
		return nil
	}
	return slices.Concat(globalServers(h.Files, w.DNS), dnsmasq(h.Files, w), unbound(h.Files, w), systemResolver(h, w.DNS))
}

// globalServers warns of a file that makes systemd-resolved ask the agent for every name.
func globalServers(files fs.FS, d DNS) (out []Finding) {
	for _, file := range configFiles(files, "etc/systemd/resolved.conf", "etc/systemd/resolved.conf.d/*.conf", "run/systemd/resolved.conf.d/*.conf", "usr/lib/systemd/resolved.conf.d/*.conf") {
		for _, line := range file.lines {
			key, value, _ := strings.Cut(line, "=")
			if strings.TrimSpace(key) != "DNS" {
				continue
			}
			for _, server := range strings.Fields(value) {
				server, _, _ = strings.Cut(server, "#") // the name for TLS
				server, _, _ = strings.Cut(server, "%") // the interface
				if at, err := netip.ParseAddrPort(server); err == nil && slices.Contains(d.Listen, at) {
					out = append(out, Finding{Warn, "resolved", fmt.Sprintf("%s sends every name to the agent at %s, which answers for %s only", file.name, at, d.Domain),
						"remove " + server + ` from DNS= there, and set dns.resolver = "resolved"`})
				}
			}
		}
	}
	return out
}

// dnsmasq checks a dnsmasq that forwards the domain.
func dnsmasq(files fs.FS, w Want) []Finding {
	var filter, allowed, forwards bool
	for _, file := range configFiles(files, "etc/dnsmasq.conf", "etc/dnsmasq.d/*") {
		for _, line := range file.lines {
			key, value, _ := strings.Cut(line, "=")
			names := strings.Split(strings.TrimSpace(value), "/")
			ours := len(names) > 2 && slices.Contains(names[1:len(names)-1], w.DNS.Domain)
			switch strings.TrimSpace(key) {
			case "stop-dns-rebind":
				filter = true
			case "rebind-domain-ok":
				allowed = allowed || ours || strings.TrimSpace(value) == w.DNS.Domain
			case "server":
				forwards = forwards || ours
			}
		}
	}
	switch {
	case !forwards:
		return nil
	case filter && !allowed && slices.ContainsFunc(w.Pools, isPrivate):
		return []Finding{{Warn, "dnsmasq", "dnsmasq removes private addresses from answers for " + w.DNS.Domain + ": stop-dns-rebind is set", "add rebind-domain-ok=/" + w.DNS.Domain + "/"}}
	}
	return []Finding{{OK, "dnsmasq", "dnsmasq forwards " + w.DNS.Domain, ""}}
}

// isPrivate reports whether filters against DNS rebinding remove the addresses of a pool.
func isPrivate(p netip.Prefix) bool {
	return p.Addr().IsPrivate() || p.Addr().IsLoopback() || p.Addr().IsLinkLocalUnicast()
}

// unbound checks an unbound that forwards the domain.
func unbound(files fs.FS, w Want) (out []Finding) {
	domain := w.DNS.Domain
	var localhost, allowed, insecure, forwards, anchors bool
	var filtered []netip.Prefix
	clause := ""
	for _, file := range configFiles(files, "etc/unbound/unbound.conf", "etc/unbound/unbound.conf.d/*.conf") {
		for _, line := range file.lines {
			key, value, _ := strings.Cut(line, ":")
			value = strings.Trim(strings.TrimSpace(value), `"`)
			ours := strings.TrimSuffix(value, ".") == domain
			switch {
			case value == "":
				clause = key
			case key == "name" && (clause == "stub-zone" || clause == "forward-zone"):
				forwards = forwards || ours
			case key == "do-not-query-localhost":
				localhost = value == "no"
			case key == "private-domain":
				allowed = allowed || ours
			case key == "domain-insecure":
				insecure = insecure || ours
			case key == "trust-anchor-file" || key == "auto-trust-anchor-file" || key == "trust-anchor":
				anchors = true
			case key == "private-address":
				if p, err := netip.ParsePrefix(value); err == nil {
					filtered = append(filtered, p)
				}
			}
		}
	}
	if !forwards {
		return nil
	}
	warn := func(reason, fix string) {
		out = append(out, Finding{Warn, "unbound", "unbound does not answer for " + domain + ": " + reason, "add " + fix})
	}
	if !localhost && slices.ContainsFunc(w.DNS.Listen, func(a netip.AddrPort) bool { return a.Addr().IsLoopback() }) {
		warn("it asks no server on this host", "do-not-query-localhost: no")
	}
	if !allowed && slices.ContainsFunc(filtered, func(f netip.Prefix) bool { return slices.ContainsFunc(w.Pools, f.Overlaps) }) {
		warn("private-address removes addresses of our pools", `private-domain: "`+domain+`"`)
	}
	if !insecure && anchors {
		warn("it validates answers, and ours are not signed", `domain-insecure: "`+domain+`"`)
	}
	if out == nil {
		out = []Finding{{OK, "unbound", "unbound forwards " + domain, ""}}
	}
	return out
}

// systemResolver checks systemd-resolved, if the agent configures it, and looks up a name as other
// programs do.
func systemResolver(h Host, d DNS) []Finding {
	if h.Resolved == nil || !d.Resolved.On {
		return nil
	}
	var out []Finding
	if p := h.Resolved(d.Resolved).Problem; p == nil {
		out = append(out, Finding{OK, "resolved", fmt.Sprintf("systemd-resolved looks up %s at the agent, through interface %s",
			text.First(3, d.Resolved.Domains, ", "), d.Resolved.Link), ""})
	} else {
		out = append(out, Finding{Warn, "resolved", p.Message, p.Hint})
		if _, err := fs.Stat(h.Files, strings.TrimPrefix(resolved.RuleFile, "/")); errors.Is(err, fs.ErrNotExist) {
			out = append(out, Finding{Warn, "resolved", "polkit rule " + resolved.RuleFile + " does not exist: only an agent that runs as root can configure systemd-resolved",
				"install it from configs/polkit, as make install does"})
		}
	}
	name := "dns-version." + d.Domain
	if err := h.Lookup(name); err != nil {
		return append(out, Finding{Warn, "lookup", fmt.Sprintf("name %s not found by the system's resolver: %v", name, err),
			"link /etc/resolv.conf to /run/systemd/resolve/stub-resolv.conf, and see the other findings on DNS"})
	}
	return append(out, Finding{OK, "lookup", "the system's resolver finds " + name, ""})
}

// configFile is a file of settings, one a line.
type configFile struct {
	name  string
	lines []string // without comments, empty lines and outer spaces
}

// configFiles reads the files that match patterns. It leaves out what doesn't exist or can't be read.
func configFiles(files fs.FS, patterns ...string) (out []configFile) {
	for _, pattern := range patterns {
		found, _ := fs.Glob(files, pattern)
		for _, name := range found {
			b, err := fs.ReadFile(files, name)
			if err != nil {
				continue
			}
			f := configFile{name: path.Join("/", name)}
			for line := range strings.Lines(string(b)) {
				line, _, _ = strings.Cut(strings.TrimSpace(line), " #")
				if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, ";") {
					f.lines = append(f.lines, line)
				}
			}
			out = append(out, f)
		}
	}
	return out
}
