package v1

import (
	"net/netip"
	"time"
)

// The kinds of DNS names.
const (
	NameCanonical = "canonical" // NAME.NAMESPACE.svc.DOMAIN
	NameShort     = "short"     // NAME.DOMAIN, of namespace default
	NameHostname  = "hostname"  // of the service's field hostnames
)

// The states of DNS names.
const (
	NameAnswered  = "answered"
	NameConflict  = "conflict"  // another service has the name, or no service can
	NameUndecided = "undecided" // queries get SERVFAIL after a restart, until every source has been read
)

// DNSName is a DNS name that a service has or wants.
type DNSName struct {
	Name      string       `json:"name" doc:"without a trailing dot"`
	Kind      string       `json:"kind" enum:"canonical,short,hostname"`
	Service   string       `json:"service"`
	Addresses []netip.Addr `json:"addresses" doc:"the VIPs of the service; empty while it has none"`
	State     string       `json:"state" enum:"answered,conflict,undecided"`
	Winner    string       `json:"winner,omitempty" doc:"in a conflict, the service that has the name; queries get its VIPs. Absent: no service can have it. Of an undecided name, the service that had it before the restart, if known"`
	Since     *time.Time   `json:"since,omitempty" doc:"when the oldest lease of the service was created; in a conflict, the oldest wins"`
}

// DNSNameList is a page of names, ordered by name and service.
type DNSNameList struct {
	Items    []DNSName `json:"items"`
	Next     string    `json:"next,omitempty" doc:"cursor of the next page; absent on the last"`
	Domain   string    `json:"domain" doc:"the zone"`
	Listen   []string  `json:"listen" doc:"where queries are answered; empty: off"`
	Revision uint64    `json:"revision"`
}

// DNSRecord is a resource record in text form.
type DNSRecord struct {
	Name string `json:"name"`
	TTL  uint32 `json:"ttl"`
	Type string `json:"type"`
	Data string `json:"data"`
}

// DNSAnswer is the answer to a query, and why it is that.
type DNSAnswer struct {
	Name       string      `json:"name"`
	Type       string      `json:"type"`
	RCode      string      `json:"rcode" doc:"as in \"NOERROR\", \"NXDOMAIN\", \"SERVFAIL\", \"REFUSED\""`
	Answer     []DNSRecord `json:"answer"`
	Authority  []DNSRecord `json:"authority"`
	Additional []DNSRecord `json:"additional"`
	Why        string      `json:"why"`
	Service    string      `json:"service,omitempty" doc:"the service that has the name"`
	Conflicts  []DNSName   `json:"conflicts,omitempty" doc:"services that want the name and do not have it"`
}

// The paths of DNS names.
const (
	PathDNSNames = "/v1/dns/names"
	PathDNSQuery = "/v1/dns/query"
)
