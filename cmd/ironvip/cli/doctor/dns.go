package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/miekg/dns"

	"github.com/ironvip/ironvip/dns/resolved"
	"github.com/ironvip/ironvip/dns/zone"
	"github.com/ironvip/ironvip/internal/text"
)

// DNS is what the configuration needs for answering queries.
type DNS struct {
	Domain string
	Listen []netip.AddrPort // empty: off
	// Agent is the part of Listen where a running agent reports no other program: a port that is in use
	// there is its own.
	Agent []netip.AddrPort
	// Resolved is what the agent sets in systemd-resolved, if it is on.
	Resolved resolved.Settings
}

// transports are how clients query a server.
var transports = []string{"udp", "tcp"}

// dnsServers queries each address of dns.listen, all at the same time, because one that doesn't answer takes queryTimeout.
func dnsServers(h Host, w Want) []Finding {
	if h.Query == nil {
		return nil
	}
	out := make([]Finding, len(w.DNS.Listen))
	var queries sync.WaitGroup
	for i, server := range w.DNS.Listen {
		queries.Go(func() { out[i] = answers(h, w, server) })
	}
	queries.Wait()
	return out
}

// answers queries a server, by UDP and TCP, for the TXT record that every zone has.
func answers(h Host, w Want, server netip.AddrPort) Finding {
	const check = "dns"
	for _, transport := range transports {
		_, err := h.Query(transport, server, "dns-version."+w.DNS.Domain, dns.TypeTXT)
		if err == nil {
			continue
		}
		what := fmt.Sprintf("dns: %s does not answer for %s by %s: %v", server, w.DNS.Domain, transport, err)
		if !slices.Contains(w.DNS.Agent, server) && h.taken(transport, server) {
			return Finding{Fail, check, what + "; the port is in use",
				fmt.Sprintf("find the program and stop it, or change dns.listen: ss -lp 'sport = :%d'", server.Port())}
		}
		return Finding{Warn, check, what, "run ironvip status"}
	}
	return Finding{OK, check, fmt.Sprintf("dns: %s answers for %s by UDP and TCP", server, w.DNS.Domain), ""}
}

// taken reports whether another socket has an address. It reports false if this process may not
// know.
func (h *Host) taken(transport string, server netip.AddrPort) bool {
	return h.Bind != nil && errors.Is(h.Bind(transport, server), syscall.EADDRINUSE)
}

// Name is a DNS name of a service, with the VIPs that it should resolve to.
type Name struct {
	Name  string
	Addrs []netip.Addr
}

// Lookup queries a name at each address of dns.listen, by UDP and TCP, and compares the answer.
func Lookup(h Host, w Want, name Name) []Finding {
	const check = "dns_lookup"
	if h.Query == nil {
		return nil
	}
	for _, server := range w.DNS.Listen {
		for _, transport := range transports {
			for _, addr := range name.Addrs {
				kind := dns.TypeAAAA
				if addr.Is4() {
					kind = dns.TypeA
				}
				got, err := h.Query(transport, server, name.Name, kind)
				switch {
				case err != nil:
					return []Finding{{Fail, check, fmt.Sprintf("dns: lookup of %s at %s by %s failed: %v", name.Name, server, transport, err), "run ironvip dns query " + name.Name}}
				case !slices.Equal(got, []string{addr.String()}):
					return []Finding{{Fail, check, fmt.Sprintf("dns: %s at %s by %s is %s, want %s", name.Name, server, transport, strings.Join(got, ", "), addr), "run ironvip dns query " + name.Name}}
				}
			}
		}
	}
	return []Finding{{OK, check, fmt.Sprintf("dns: %s is %s", name.Name, text.Join(name.Addrs, ", ", netip.Addr.String)), ""}}
}

// queryTimeout bounds one query.
const queryTimeout = time.Second

// query returns the data of the records of a name and type. No record is an error.
func query(transport string, server netip.AddrPort, name string, kind uint16) (out []string, err error) {
	reply, err := exchange(transport, server, name, kind)
	if err != nil {
		return nil, err
	}
	for _, r := range reply.Answer {
		if r.Header().Rrtype == kind {
			out = append(out, strings.TrimPrefix(r.String(), r.Header().String()))
		}
	}
	if out == nil {
		return nil, errors.New("no record")
	}
	return out, nil
}

// exchange sends one query and returns the reply. It uses no resolver of this host, which could
// answer from a file. A reply with another code than NOERROR is an error.
func exchange(transport string, server netip.AddrPort, name string, kind uint16) (*dns.Msg, error) {
	query := new(dns.Msg)
	query.SetQuestion(dns.Fqdn(name), kind)
	query.SetEdns0(zone.MaxUDP, false)
	reply, _, err := (&dns.Client{Net: transport, Timeout: queryTimeout}).Exchange(query, server.String())
	switch {
	case err != nil:
		return nil, failed(err)
	case reply.Rcode != dns.RcodeSuccess:
		return nil, errors.New(dns.RcodeToString[reply.Rcode])
	}
	return reply, nil
}

// failed shortens the error of a connection.
func failed(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("no answer within %s", queryTimeout)
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		return errors.New("nothing listens there")
	}
	return err
}

// bind opens a socket at an address and closes it.
func bind(transport string, server netip.AddrPort) error {
	if transport == "tcp" {
		l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", server.String())
		if err != nil {
			return err
		}
		return l.Close()
	}
	c, err := (&net.ListenConfig{}).ListenPacket(context.Background(), "udp", server.String())
	if err != nil {
		return err
	}
	return c.Close()
}
