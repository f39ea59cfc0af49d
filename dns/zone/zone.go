// Package zone has the names of services and answers queries about them.
//
// Its input is changes of services: VIPs, hostnames and named ports. Its outputs are replies to DNS
// queries, explanations of them, and the claims of names that another service has. It decides which
// service has a contested name; no other code does. It has no goroutines, reads no tables, and
// never recurses.
//
// Source code organization:
//
//	zone.go     the zone, its settings, and what is fixed in it
//	apply.go    a change of a service becomes changes of its names
//	claim.go    several services that claim one name
//	names.go    the names of a service in wire format
//	records.go  serialized records
//	lookup.go   a name and a type become an answer
//	reverse.go  names of addresses
//	answer.go   queries and replies
//	explain.go  names and answers for people
//
// # Cost
//
// Each name has its records serialized, relative to the question: their owner is a pointer to it.
// So the names of a service share the records of its addresses, and an answer is one search and one
// copy. A change writes only the names of its service. Readers search while nothing is written, and
// see each change of several services at once, so that a name that moves from one service to another
// is answered at any time.
package zone

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/ironvip/ironvip/dns/message"
	"github.com/ironvip/ironvip/vip"
)

// Version is the version of Kubernetes' DNS specification that the zone follows, and the content of
// the TXT record dns-version.
const Version = "1.1.0"

// MaxDomain bounds the domain, in characters: the longest canonical name, with two labels of 63
// characters, fits a name of 253.
const MaxDomain = message.MaxName - 2 - 64 - 64 - len("svc.")

// Settings are what the user configures.
type Settings struct {
	Domain string // lower case; a dot at its end is optional
	// TTL is that of records. NegativeTTL is for how long resolvers may store that a name or record
	// doesn't exist. Both are whole seconds.
	TTL, NegativeTTL time.Duration
	ShortNames       bool // services of the default namespace also have the name NAME.DOMAIN
	Reverse          bool // addresses inside Pools have names
	Pools            []netip.Prefix
	Servers          []netip.Addr // addresses of ns.dns.DOMAIN, where clients reach this server
}

// Service is what the zone knows of a service. Its slices are shared and immutable.
type Service struct {
	Key       vip.ServiceKey
	VIPs      []netip.Addr // at most one per family
	Since     vip.Instant  // when its oldest lease was created; zero: it has none
	Hostnames []string     // lower case, without a dot at the end
	Ports     []vip.Port
}

// Zone is the names of all services. Create one with New. Apply, Hold and SetSynced must not be called
// concurrently; every other method may be.
type Zone struct {
	domain     string // wire format
	domainText string // without a dot at the end
	services   string // svc.DOMAIN in wire format
	ttl        uint32
	shortNames bool
	pools      []netip.Prefix // empty without reverse names

	soa       string // as message.SOARecord
	ns        string // NS record for any name
	nsAddrs   string // the addresses of the name server, for an answer with ns at the apex
	nsAddrNum int

	mu     sync.RWMutex
	names  map[string]*node // by name in wire format
	synced bool
	held   map[string]vip.ServiceKey // see Hold; by name in wire format; nil when synced
	serial uint32
	count  int // names with an owner

	// Of the writer.
	rivals  map[*node][]*service // services that claim a name after its owner, oldest first
	buf     []byte               // the name in work
	out     []byte               // the records in work
	changed map[ConflictKey]bool // claims to report by Apply
	decided map[*node]bool       // names whose winner changed: Apply reports all of their claims
	written int                  // names whose records were written, for tests
	noted   int                  // claims noted for a change of the winner, for tests
}

// node is a name.
type node struct {
	name    string   // wire format, lower case
	records string   // see records.go
	owner   *service // the service that has it; nil: none
	below   int32    // names directly below it; a name with some exists, even without records
	apex    uint8    // where the name of its zone begins in name
	kind    Kind     // of the owner's claim
}

// aboveHostnames reports whether a name only has hostnames or the domain below it. It is in a zone only
// if it is below another hostname.
func (n *node) aboveHostnames() bool { return n.kind == Between && n.apex == 0 }

// service is a Service in the zone, with one pointer to it for each name. Its key is in its canonical
// name, so a service without hostnames and named ports takes 48 bytes.
type service struct {
	node  *node // its canonical name, with the records of its VIPs
	vips  []netip.Addr
	since vip.Instant
	more  *more // nil: nothing
}

// more is what few services have.
type more struct {
	hostnames []string
	ports     []vip.Port // some with a name
}

// key returns the first two labels of the canonical name.
func (s *service) key() vip.ServiceKey {
	name := s.node.name
	ns := 1 + int(name[0])
	return vip.ServiceKey{Namespace: name[1+ns : 1+ns+int(name[ns])], Name: name[1:ns]}
}

// content returns what the service was set to, without its ports if none of them has a name.
func (s *service) content() Service {
	c := Service{Key: s.key(), VIPs: s.vips, Since: s.since}
	if s.more != nil {
		c.Hostnames, c.Ports = s.more.hostnames, s.more.ports
	}
	return c
}

// set replaces everything except the key.
func (s *service) set(c *Service) {
	s.vips, s.since = c.VIPs, c.Since
	ports := c.Ports
	if !slices.ContainsFunc(ports, func(p vip.Port) bool { return named(&p) }) {
		ports = nil
	}
	switch {
	case len(c.Hostnames) == 0 && len(ports) == 0:
		s.more = nil
	case s.more == nil:
		s.more = &more{c.Hostnames, ports}
	default:
		*s.more = more{c.Hostnames, ports}
	}
}

// New returns a zone without services. Before SetSynced, it answers SERVFAIL for unknown names.
func New(s Settings) (*Zone, error) {
	domain, err := message.PackName(nil, s.Domain)
	switch {
	case err != nil:
		return nil, fmt.Errorf("domain: %w", err)
	case len(domain) == 1:
		return nil, errors.New("domain: the root is not ironvip's")
	case len(domain) > MaxDomain+2:
		return nil, fmt.Errorf("domain: %q is longer than %d characters", s.Domain, MaxDomain)
	}
	server := append([]byte("\x02ns\x03dns"), domain...)
	mailbox := append([]byte("\x0ahostmaster"), domain...)
	z := &Zone{
		domain:     string(domain),
		domainText: message.NameString(domain),
		services:   "\x03svc" + string(domain),
		ttl:        uint32(s.TTL / time.Second),
		shortNames: s.ShortNames,
		names:      make(map[string]*node),
		rivals:     make(map[*node][]*service),
		changed:    make(map[ConflictKey]bool),
		decided:    make(map[*node]bool),
	}
	if s.Reverse {
		z.pools = slices.Clone(s.Pools)
	}
	z.soa = message.SOARecord(server, mailbox, uint32(s.NegativeTTL/time.Second))
	ns := message.AppendName(nil, message.NS, z.ttl, server)
	z.ns = string(ns)

	// The name server's own name is the data of the NS record, which is the first record.
	at := message.Question + len(domain) + 4 + len(ns) - len(server)
	var extra []byte
	for _, a := range s.Servers {
		extra = message.AppendAddr(extra, at, z.ttl, a)
	}
	z.nsAddrs, z.nsAddrNum = string(extra), len(s.Servers)

	z.fix(z.domain, "")
	z.fix(z.services, "")
	z.fix(string(server), z.addressRecords(s.Servers))
	z.fix("\x0bdns-version"+z.domain, z.textRecord(Version))
	return z, nil
}

// fix adds a name that no service can have.
func (z *Zone) fix(name, records string) {
	z.buf = append(z.buf[:0], name...)
	n := z.add(Reserved)
	n.records = records
}

// SetSynced states that every source has listed its services: what is unknown doesn't exist, and a
// contested name is decided. It returns the claims that changed, and must not be called concurrently
// with Apply.
func (z *Zone) SetSynced() []ConflictChange {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.changeHeld()
	z.synced, z.held = true, nil
	return z.changedConflicts()
}

// Len returns the number of names that have a service. Names of ports and addresses count, too.
func (z *Zone) Len() int {
	z.mu.RLock()
	defer z.mu.RUnlock()
	return z.count
}
