package dns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// Bounds of queries.
const (
	timeout    = 2 * time.Second // of one query
	attempts   = 2               // of all servers
	maxQueries = 64              // of a source at a time
	maxAliases = 16              // CNAME records in a row
	resolvConf = "/etc/resolv.conf"
)

// absence is the error of a name that a server has answered without a record. Any other error is one of the servers.
type absence string

func (a absence) Error() string { return string(a) }

// exchange sends a query to a server.
type exchange func(ctx context.Context, query *dns.Msg, server string) (*dns.Msg, error)

// overNetwork is the exchange with real servers, which ends with ctx. It uses TCP, because Consul and others answer a query
// over UDP with a part of the records, without a word.
func overNetwork(ctx context.Context, query *dns.Msg, server string) (*dns.Msg, error) {
	client := &dns.Client{Net: "tcp", Timeout: timeout}
	conn, err := client.DialContext(ctx, server)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	reply, _, err := client.ExchangeWithConnContext(ctx, query, conn)
	return reply, err
}

// resolver asks recursive servers. It is safe for concurrent use.
type resolver struct {
	servers  []string // empty: those of resolv.conf, which can change
	exchange exchange
	slots    chan struct{} // has an element for each query that is under way
}

// records returns the records of a name with a type, and how long they are valid in seconds. Of a name that is an alias, they
// are those of the other name.
func (r *resolver) records(ctx context.Context, name string, kind uint16) ([]dns.RR, uint32, error) {
	select {
	case r.slots <- struct{}{}:
		defer func() { <-r.slots }()
	case <-ctx.Done():
		return nil, 0, ctx.Err()
	}
	servers := slices.Clone(r.servers)
	if len(servers) == 0 {
		conf, err := dns.ClientConfigFromFile(resolvConf)
		if err != nil {
			return nil, 0, err
		}
		for _, server := range conf.Servers {
			servers = append(servers, net.JoinHostPort(server, conf.Port))
		}
	}
	err := errors.New(resolvConf + " has no nameserver")
	for range attempts {
		for _, server := range servers {
			var reply *dns.Msg
			if reply, err = r.ask(ctx, name, kind, server); err == nil {
				return answerOf(reply, name, kind)
			}
			if ctx.Err() != nil {
				return nil, 0, ctx.Err()
			}
		}
	}
	return nil, 0, err
}

// ask sends a query to a server. The error has no text that changes from one attempt to the next.
func (r *resolver) ask(ctx context.Context, name string, kind uint16, server string) (*dns.Msg, error) {
	query := new(dns.Msg)
	query.SetQuestion(dns.Fqdn(name), kind)
	reply, err := r.exchange(ctx, query, server)
	switch failed, timed := errors.AsType[net.Error](err); {
	case timed && failed.Timeout():
		return nil, fmt.Errorf("%s does not answer within %s", server, timeout)
	case err != nil:
		if call, is := errors.AsType[*net.OpError](err); is {
			err = call.Err // without the port of this host
		}
		return nil, fmt.Errorf("%s: %w", server, err)
	case !reply.Response || reply.Truncated || len(reply.Question) != 1 || reply.Question[0].Qtype != kind || !strings.EqualFold(reply.Question[0].Name, query.Question[0].Name):
		return nil, fmt.Errorf("%s: the answer is not one to the question", server)
	case reply.Rcode != dns.RcodeSuccess && reply.Rcode != dns.RcodeNameError:
		return nil, fmt.Errorf("%s answers %s", server, dns.RcodeToString[reply.Rcode])
	case reply.Rcode == dns.RcodeSuccess && len(reply.Answer) == 0 && !reply.Authoritative && !reply.RecursionAvailable:
		return nil, fmt.Errorf("%s does not know the name, and asks no other server", server)
	}
	return reply, nil
}

// answerOf returns the records in a reply that answer a question, and the shortest time of validity.
func answerOf(reply *dns.Msg, name string, kind uint16) (found []dns.RR, ttl uint32, err error) {
	if reply.Rcode == dns.RcodeNameError {
		return nil, 0, absence("the name does not exist (NXDOMAIN)")
	}
	ttl = maxTTL
	owner := dns.CanonicalName(name)
	for range maxAliases {
		alias := ""
		for _, record := range reply.Answer {
			header := record.Header()
			if dns.CanonicalName(header.Name) != owner {
				continue
			}
			if to, is := record.(*dns.CNAME); is && header.Rrtype != kind {
				alias = dns.CanonicalName(to.Target)
				ttl = min(ttl, header.Ttl)
			} else if header.Rrtype == kind {
				found = append(found, record)
				ttl = min(ttl, header.Ttl)
			}
		}
		switch {
		case len(found) > 0:
			return found, ttl, nil
		case alias == "":
			return nil, 0, absence("the name has no " + dns.TypeToString[kind] + " record")
		}
		owner = alias
	}
	return nil, 0, absence(fmt.Sprintf("the name leads to more than %d others (CNAME)", maxAliases))
}
