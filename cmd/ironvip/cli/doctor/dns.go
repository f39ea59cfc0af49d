package doctor

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/miekg/dns"

	"github.com/ironvip/ironvip/dns/resolved"
	"github.com/ironvip/ironvip/dns/zone"
)

// DNS is what the configuration needs for answering queries.
type DNS struct {
	Domain string
	Listen []netip.AddrPort // empty: off
	// Resolved is what the agent sets in systemd-resolved, if it is on.
	Resolved resolved.Settings
}

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
	for _, transport := range []string{"udp", "tcp"} {
		if err := h.Query(transport, server, versionOf(w.DNS)); err != nil {
			return Finding{Warn, check, fmt.Sprintf("dns: %s does not answer for %s by %s: %v", server, w.DNS.Domain, transport, err),
				fmt.Sprintf("run ironvip status; ss -lp 'sport = :%d' shows the program that has the port", server.Port())}
		}
	}
	return Finding{OK, check, fmt.Sprintf("dns: %s answers for %s by UDP and TCP", server, w.DNS.Domain), ""}
}

// versionOf returns the name of the TXT record that every zone has.
func versionOf(d DNS) string { return "dns-version." + d.Domain }

// queryTimeout bounds one query.
const queryTimeout = time.Second

// query looks up the TXT record of a name at a server. It uses no resolver of this host, which could answer from a file.
func query(transport string, server netip.AddrPort, name string) error {
	query := new(dns.Msg)
	query.SetQuestion(dns.Fqdn(name), dns.TypeTXT)
	query.SetEdns0(zone.MaxUDP, false)
	reply, _, err := (&dns.Client{Net: transport, Timeout: queryTimeout}).Exchange(query, server.String())
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("no answer within %s", queryTimeout)
	case errors.Is(err, syscall.ECONNREFUSED):
		return errors.New("nothing listens there")
	case err != nil:
		return err
	case reply.Rcode != dns.RcodeSuccess:
		return errors.New(dns.RcodeToString[reply.Rcode])
	case len(reply.Answer) == 0:
		return errors.New("no record")
	}
	return nil
}
