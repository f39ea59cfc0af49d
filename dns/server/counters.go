package server

import (
	"iter"
	"sync/atomic"
	"time"

	"github.com/ironvip/ironvip/dns/message"
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
var types = [...]message.Type{message.A, message.AAAA, message.SRV, message.PTR, message.TXT, message.SOA, message.NS, message.HTTPS, message.ANY}

// typeIndex returns the place of a type in Counters.
func typeIndex(t message.Type) int {
	for i, o := range types {
		if o == t {
			return i
		}
	}
	return len(types)
}

// codeIndex returns the place of a code in Counters.
func codeIndex(c message.Code) int {
	if c <= message.Refused {
		return int(c)
	}
	return int(message.Refused) + 1
}

// Buckets are the upper bounds of the histogram of durations.
var Buckets = [...]time.Duration{4 * time.Microsecond, 16 * time.Microsecond, 64 * time.Microsecond, 256 * time.Microsecond,
	time.Millisecond, 4 * time.Millisecond, 16 * time.Millisecond, 64 * time.Millisecond, 256 * time.Millisecond}

// Counters counts queries and connections of all listeners. Its methods may be called concurrently.
type Counters struct {
	queries     [2][len(types) + 1][int(message.Refused) + 2]atomic.Uint64
	dropped     [reasons]atomic.Uint64
	connections atomic.Int64
	durations   [len(Buckets) + 1]atomic.Uint64
	sum         atomic.Int64 // nanoseconds
}

// malformed is the outcome of a query that is too long to be read.
var malformed = zone.Outcome{Code: message.FormErr}

func (c *Counters) answered(t Transport, o zone.Outcome) {
	c.queries[t][typeIndex(o.Type)][codeIndex(o.Code)].Add(1)
}

func (c *Counters) drop(r Reason) { c.dropped[r].Add(1) }

// took adds n queries to the histogram. Those of one batch have the same duration: from its receipt to
// the last reply.
func (c *Counters) took(d time.Duration, n int) {
	i := 0
	for i < len(Buckets) && d > Buckets[i] {
		i++
	}
	c.durations[i].Add(uint64(n))
	c.sum.Add(int64(d) * int64(n))
}

// QueryCount is the number of answered queries of a kind.
type QueryCount struct {
	Transport Transport
	Type      string // "other" for a type that is not counted alone
	Code      message.Code
	Count     uint64
}

// Queries yields the counts that are not 0.
func (c *Counters) Queries() iter.Seq[QueryCount] {
	return func(yield func(QueryCount) bool) {
		for _, t := range Transports {
			for i := range c.queries[t] {
				name := "other"
				if i < len(types) {
					name = types[i].String()
				}
				for j := range c.queries[t][i] {
					n := c.queries[t][i][j].Load()
					if n > 0 && !yield(QueryCount{t, name, message.Codes[j], n}) {
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

// Durations returns the histogram from the receipt of a query to its reply: the number of queries up
// to each bound in Buckets, as Prometheus counts them, the number of all, and the sum.
func (c *Counters) Durations() (upTo [len(Buckets)]uint64, count uint64, sum time.Duration) {
	for i := range c.durations {
		count += c.durations[i].Load()
		if i < len(upTo) {
			upTo[i] = count
		}
	}
	return upTo, count, time.Duration(c.sum.Load())
}
