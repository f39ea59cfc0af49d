package server

import (
	"iter"
	"sync/atomic"

	"github.com/miekg/dns"

	"github.com/ironvip/ironvip/dns/zone"
)

// Reason is why a query or a connection was dropped without a reply.
type Reason uint8

// The reasons.
const (
	NotAllowed      Reason = iota // the client is not in Allow
	RateLimited                   // too many replies to its prefix
	Malformed                     // not a query: a response, for example
	ConnectionLimit               // too many connections
	Timeout                       // of a connection with half a query, or whose client doesn't read
	SendFailed                    // the kernel refused the reply
	reasons
)

// Reasons are all reasons.
var Reasons = []Reason{NotAllowed, RateLimited, Malformed, ConnectionLimit, Timeout, SendFailed}

var reasonNames = [...]string{"not_allowed", "rate_limited", "malformed", "connection_limit", "timeout", "send_failed"}

// String returns the reason as a metric's label.
func (r Reason) String() string { return reasonNames[r] }

// types are the types that are counted each. The last place is for all others.
var types = [...]uint16{dns.TypeA, dns.TypeAAAA, dns.TypeSRV, dns.TypePTR, dns.TypeTXT, dns.TypeSOA, dns.TypeNS, dns.TypeHTTPS, dns.TypeANY}

// typeIndex returns the place of a type in Counters.
func typeIndex(t uint16) int {
	for i, o := range types {
		if o == t {
			return i
		}
	}
	return len(types)
}

// codes are the names of the response codes that the server sends, in ascending order, as dig prints them.
var codes = [...]string{"NOERROR", "FORMERR", "SERVFAIL", "NXDOMAIN", "NOTIMP", "REFUSED", "BADVERS"}

// codeIndex returns the place of a code in Counters.
func codeIndex(code int) int { return min(code, len(codes)-1) }

// Counters counts queries and connections of all listeners. Its methods may be called concurrently.
type Counters struct {
	queries     [2][len(types) + 1][len(codes)]atomic.Uint64
	dropped     [reasons]atomic.Uint64
	connections atomic.Int64
}

func (c *Counters) answered(t Transport, o zone.Outcome) {
	c.queries[t][typeIndex(o.Type)][codeIndex(o.Code)].Add(1)
}

func (c *Counters) drop(r Reason) { c.dropped[r].Add(1) }

// QueryCount is the number of answered queries of a kind.
type QueryCount struct {
	Transport Transport
	Type      string // "other" for a type that is not counted alone
	Code      string
	Count     uint64
}

// Queries yields the counts that are not 0.
func (c *Counters) Queries() iter.Seq[QueryCount] {
	return func(yield func(QueryCount) bool) {
		for _, t := range Transports {
			for i := range c.queries[t] {
				name := "other"
				if i < len(types) {
					name = dns.TypeToString[types[i]]
				}
				for j := range c.queries[t][i] {
					n := c.queries[t][i][j].Load()
					if n > 0 && !yield(QueryCount{t, name, codes[j], n}) {
						return
					}
				}
			}
		}
	}
}

// Dropped returns the number of queries or connections that were dropped for a reason.
func (c *Counters) Dropped(r Reason) uint64 { return c.dropped[r].Load() }

// Connections returns the number of open TCP connections.
func (c *Counters) Connections() int { return int(c.connections.Load()) }
