package vip

import (
	"fmt"
	"slices"
	"strings"
)

// Limits of the hostnames of a service, as documented in docs/services.md.
const (
	MaxHostnames      = 16  // of one service
	MaxHostnameLength = 253 // bytes, as in DNS without the trailing dot
)

// Hostnames are the DNS names of a service besides those that follow from its key, for example
// "shop.example.com": valid for CheckHostname, sorted and distinct. Few services have any, so they
// take one word in each service. The zero Hostnames has none. A copy shares the names.
type Hostnames struct{ names *[]string }

// HostnamesOf returns the hostnames, which may be in any order and repeat.
func HostnamesOf(names ...string) Hostnames {
	if len(names) == 0 {
		return Hostnames{}
	}
	sorted := slices.Compact(slices.Sorted(slices.Values(names)))
	return Hostnames{&sorted}
}

// List returns the hostnames in order, or nil if there are none. The caller must not change the
// result.
func (h Hostnames) List() []string {
	if h.names == nil {
		return nil
	}
	return *h.names
}

// Equal reports whether h and o are the same hostnames.
func (h Hostnames) Equal(o Hostnames) bool {
	return h.names == o.names || slices.Equal(h.List(), o.List())
}

// CheckHostname returns an error that explains why s cannot be a hostname of a service, or nil. A
// hostname has two labels or more (see CheckLabel), is lower case, has no trailing dot, and is
// neither an address nor a name of the reverse zones.
func CheckHostname(s string) error {
	if s == "" {
		return fmt.Errorf("a name is needed")
	}
	if len(s) > MaxHostnameLength {
		return fmt.Errorf("%q... is longer than %d characters", s[:20], MaxHostnameLength)
	}
	last := ""
	for label := range strings.SplitSeq(s, ".") {
		if CheckLabel(label) != nil {
			return fmt.Errorf("%q is not a DNS name: use labels of a-z, 0-9 and inner \"-\" with dots between them", s)
		}
		last = label
	}
	switch {
	case last == s:
		return fmt.Errorf("%q has no domain", s)
	case strings.Trim(last, "0123456789") == "": // resolvers take it for an address
		return fmt.Errorf("%q ends in a number, as an address does", s)
	case last == "arpa":
		return fmt.Errorf("%q is a name of the reverse zones", s)
	}
	return nil
}
