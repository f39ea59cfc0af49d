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
//	names.go    the names of a service
//	records.go  the records of a name
//	lookup.go   a name and a type become an answer
//	reverse.go  names of addresses
//	answer.go   queries and replies
//	explain.go  names and answers for people
//
// # Cost
//
// An answer is one search, and its records are made from the service. A change writes only the names of its
// service. Readers search while nothing is written, and see each change of several services at once, so
// that a name that moves from one service to another is answered at any time.
package zone

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/ironvip/ironvip/vip"
)

// Version is the version of Kubernetes' DNS specification that the zone follows, and the content of
// the TXT record dns-version.
const Version = "1.1.0"

// MaxDomain bounds the domain, in characters: the longest canonical name, with two labels of 63
// characters, fits a name of 253.
const MaxDomain = maxName - 64 - 64 - len("svc.")

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
	Waiting   bool         // it has none of VIPs, and nobody knows yet whether it gets some
	Since     vip.Instant  // when its oldest lease was created; zero: it has none
	Hostnames []string     // lower case, without a dot at the end
	Ports     []vip.Port
}

// Zone is the names of all services. Create one with New. Apply, Hold and SetSynced must not be called
// concurrently; every other method may be.
type Zone struct {
	// Names, as all names that the zone stores, are in lower case and without a dot at the end.
	domain      string
	services    string // svc.DOMAIN
	server      string // ns.dns.DOMAIN
	version     string // dns-version.DOMAIN
	servers     []netip.Addr
	ttl         uint32 // seconds
	negativeTTL uint32 // seconds
	shortNames  bool
	pools       []netip.Prefix // empty without reverse names

	mu     sync.RWMutex
	names  map[string]*node
	rivals map[*node][]*Service // services that claim a name after its owner, oldest first
	synced bool
	held   map[string]vip.ServiceKey // see Hold; nil when synced
	serial uint32
	count  int // names with an owner

	// Of the writer.
	changed map[ConflictKey]bool // claims to report by Apply
	decided map[*node]bool       // names whose winner changed: Apply reports all of their claims
	noted   int                  // claims noted for a change of the winner, for tests
}

// node is a name.
type node struct {
	name  string
	owner *Service // the service that has it; nil: none
	below int32    // names directly below it; a name with some exists, even without records
	kind  Kind     // of the owner's claim
}

// New returns a zone without services. Before SetSynced, it answers SERVFAIL for unknown names.
func New(s Settings) (*Zone, error) {
	domain := canonical(s.Domain)
	_, valid := dns.IsDomainName(domain)
	switch {
	case domain == "":
		return nil, errors.New("domain: the root is not ironvip's")
	case !valid:
		return nil, fmt.Errorf("domain: %q is no name", s.Domain)
	case len(domain) > MaxDomain:
		return nil, fmt.Errorf("domain: %q is longer than %d characters", s.Domain, MaxDomain)
	}
	z := &Zone{
		domain: domain, services: "svc." + domain, server: "ns.dns." + domain, version: "dns-version." + domain,
		servers: slices.Clone(s.Servers), ttl: uint32(s.TTL / time.Second), negativeTTL: uint32(s.NegativeTTL / time.Second),
		shortNames: s.ShortNames,
		names:      make(map[string]*node),
		rivals:     make(map[*node][]*Service),
		changed:    make(map[ConflictKey]bool),
		decided:    make(map[*node]bool),
	}
	if s.Reverse {
		z.pools = slices.Clone(s.Pools)
	}
	for _, name := range []string{z.domain, z.services, z.server, z.version} {
		z.add(name, Reserved)
	}
	return z, nil
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
