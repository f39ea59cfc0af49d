package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/ironvip/ironvip/dns/resolved"
	"github.com/ironvip/ironvip/internal/text"
)

// DNS is what the configuration needs for answering queries.
type DNS struct {
	Domain string
	Listen []netip.AddrPort // empty: off
	// Resolved is what the agent sets in systemd-resolved; zero: nothing.
	Resolved resolved.Settings
}

// transports are how clients query a server.
var transports = []string{"udp", "tcp"}

// dns queries each address of dns.listen, by UDP and TCP, for the TXT record that every zone has.
func dns(h Host, w Want) []Finding {
	const check = "dns"
	if h.Query == nil {
		return nil
	}
	var out []Finding
	for _, server := range w.DNS.Listen {
		f := Finding{OK, check, fmt.Sprintf("dns: %s answers for %s by UDP and TCP", server, w.DNS.Domain), ""}
		for _, transport := range transports {
			err := h.Query(transport, server, "dns-version."+w.DNS.Domain)
			if err == nil {
				continue
			}
			what := fmt.Sprintf("dns: %s does not answer for %s by %s: %v", server, w.DNS.Domain, transport, err)
			if f = (Finding{Warn, check, what, "run ironvip status"}); h.taken(transport, server) {
				f.Level, f.Text = Fail, what+"; the port is in use"
				f.Fix = fmt.Sprintf("find the program and stop it, or change dns.listen: ss -lp 'sport = :%d'", server.Port())
			}
			break
		}
		out = append(out, f)
	}
	return out
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
	if h.Resolve == nil {
		return nil
	}
	for _, server := range w.DNS.Listen {
		for _, transport := range transports {
			for _, addr := range name.Addrs {
				got, err := h.Resolve(transport, server, name.Name, addr.Is4())
				switch {
				case err != nil:
					return []Finding{{Fail, check, fmt.Sprintf("dns: lookup of %s at %s by %s failed: %v", name.Name, server, transport, err), "run ironvip dns query " + name.Name}}
				case len(got) != 1 || got[0] != addr:
					return []Finding{{Fail, check, fmt.Sprintf("dns: %s at %s by %s is %s, want %s", name.Name, server, transport, text.Join(got, ", ", netip.Addr.String), addr), "run ironvip dns query " + name.Name}}
				}
			}
		}
	}
	return []Finding{{OK, check, fmt.Sprintf("dns: %s is %s", name.Name, text.Join(name.Addrs, ", ", netip.Addr.String)), ""}}
}

// queryTimeout bounds one query.
const queryTimeout = 5 * time.Second

// at calls f with a resolver that queries one server by one transport, and with the time for it.
func at(transport string, server netip.AddrPort, f func(context.Context, *net.Resolver) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), queryTimeout)
	defer cancel()
	err := f(ctx, &net.Resolver{PreferGo: true, StrictErrors: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, transport, server.String())
	}})
	var failed *net.DNSError
	if errors.As(err, &failed) { // its text names the server of /etc/resolv.conf, which was not asked
		return errors.New(failed.Err)
	}
	return err
}

// query looks a TXT record up.
func query(transport string, server netip.AddrPort, name string) error {
	return at(transport, server, func(ctx context.Context, r *net.Resolver) error {
		_, err := r.LookupTXT(ctx, name+".")
		return err
	})
}

// resolve looks the addresses of one family up.
func resolve(transport string, server netip.AddrPort, name string, four bool) (out []netip.Addr, err error) {
	family := "ip6"
	if four {
		family = "ip4"
	}
	err = at(transport, server, func(ctx context.Context, r *net.Resolver) (err error) {
		out, err = r.LookupNetIP(ctx, family, name+".")
		return err
	})
	for i := range out {
		out[i] = out[i].Unmap()
	}
	return out, err
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
