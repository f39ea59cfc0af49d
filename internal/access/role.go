package access

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// Role is what a caller may do. Each role may do all that the roles before it may.
type Role uint8

// The roles. The zero Role may do nothing but what is public.
const (
	None      Role = iota
	Viewer         // read
	Registrar      // also write services and backends of its namespaces
	Operator       // also write those of all namespaces, drain, reload and repair
	Admin          // also manage tokens, and read the whole store
)

var roles = [...]string{"none", "viewer", "registrar", "operator", "admin"}

// String returns the role's name.
func (r Role) String() string { return roles[r] }

// Roles returns the names of the roles that can be given to a caller.
func Roles() []string { return roles[1:] }

// ParseRole reads the name of a role that can be given to a caller.
func ParseRole(name string) (Role, error) {
	if i := slices.Index(roles[1:], name); i >= 0 {
		return Role(i + 1), nil
	}
	return None, fmt.Errorf("%q is not a role: use %s", name, strings.Join(roles[1:], ", "))
}

// UnmarshalText is ParseRole for package strict.
func (r *Role) UnmarshalText(text []byte) (err error) {
	if *r, err = ParseRole(string(text)); err != nil {
		err = vip.Problem{Code: vip.CodeInvalid, Message: strict.Quote(string(text)) + " is not a role", Hint: strict.OneOf(string(text), Roles()...)}
	}
	return err
}

// Grant is a role. A registrar's is limited to namespaces, DNS names and addresses of backends.
type Grant struct {
	Role       Role     `toml:"role"`
	Namespaces []string `toml:"namespaces"` // of a registrar only; immutable
	// Hostnames are the names besides their own that a registrar's services may have: "www.shop.example", or
	// "*.shop.example" for all names below it. Immutable.
	Hostnames []string `toml:"hostnames"`
	// Backends are the ranges of the addresses that a registrar's backends may have. None: all. Only a range inside of
	// loopback or link-local addresses allows those. Immutable.
	Backends []netip.Prefix `toml:"backends"`
}

// Check returns why a grant is not valid, or nil.
func (g Grant) Check() error {
	switch {
	case g.Role == Registrar && len(g.Namespaces) == 0:
		return fmt.Errorf("a registrar needs at least one namespace")
	case g.Role != Registrar && len(g.Namespaces) > 0:
		return fmt.Errorf("only a registrar is limited to namespaces, and the role is %s", g.Role)
	case g.Role != Registrar && len(g.Backends) > 0:
		return fmt.Errorf("only a registrar is limited to backends, and the role is %s", g.Role)
	case g.Role != Registrar && len(g.Hostnames) > 0:
		return fmt.Errorf("only a registrar is limited to hostnames, and the role is %s", g.Role)
	}
	return nil
}

// CheckHostname returns why a pattern of Hostnames is not valid, or nil.
func CheckHostname(pattern string) error {
	name, _ := strings.CutPrefix(pattern, "*.")
	return vip.CheckHostname(name)
}

// AllowsHostname reports whether a service that the caller writes may have a hostname.
func (g Grant) AllowsHostname(name string) bool {
	return g.Role > Registrar || slices.ContainsFunc(g.Hostnames, func(pattern string) bool {
		below, wild := strings.CutPrefix(pattern, "*")
		return pattern == name || wild && len(name) > len(below) && strings.HasSuffix(name, below)
	})
}

// AllowsBackend reports whether a service that the caller writes may have a backend with an address. One on a loopback
// or link-local address would open what only processes of the dataplane's host may reach to every client of the VIP.
func (g Grant) AllowsBackend(a netip.Addr) bool {
	return g.Role > Registrar || len(g.Backends) == 0 && !onlyOnHost(a) || slices.ContainsFunc(g.Backends, func(p netip.Prefix) bool {
		return p.Contains(a) && (!onlyOnHost(a) || onlyOnHost(p.Masked().Addr()))
	})
}

func onlyOnHost(a netip.Addr) bool { return a.IsLoopback() || a.IsLinkLocalUnicast() }

// Need is what a route needs.
type Need uint8

// The needs of routes. The zero Need is not stated: no caller has it.
const (
	unstated   Need = iota
	Public          // nothing
	View            // a viewer
	Register        // a registrar of the namespace
	Operate         // an operator
	Administer      // an admin
)

// least is the lowest role that has a need.
var least = [...]Role{Public: None, View: Viewer, Register: Registrar, Operate: Operator, Administer: Admin}

// Stated reports whether a route states what it needs.
func (n Need) Stated() bool { return n > unstated && int(n) < len(least) }

// Role returns the lowest role that has the need.
func (n Need) Role() Role { return least[n] }

// Allows reports whether a caller with the grant has what a route needs. namespace is that of the
// service that the request names. Without one, a registrar passes: the route then has to ask for the
// namespace of each service in the request.
func (g Grant) Allows(n Need, namespace string) bool {
	if !n.Stated() || g.Role < n.Role() {
		return false
	}
	if n == Register && g.Role == Registrar && namespace != "" {
		return slices.Contains(g.Namespaces, namespace)
	}
	return true
}

// with returns a grant that allows what either of them allows.
func (g Grant) with(other Grant) Grant {
	switch {
	case g.Role > other.Role:
		return g
	case g.Role < other.Role:
		return other
	case g.Role != Registrar:
		return g
	}
	both := func(a, b []string) []string { return slices.Compact(slices.Sorted(slices.Values(slices.Concat(a, b)))) }
	out := Grant{Role: Registrar, Namespaces: both(g.Namespaces, other.Namespaces), Hostnames: both(g.Hostnames, other.Hostnames)}
	if len(g.Backends)+len(other.Backends) > 0 {
		out.Backends = slices.Concat(g.ranges(), other.ranges())
	}
	return out
}

// ranges returns Backends, and all addresses if it has none.
func (g Grant) ranges() []netip.Prefix {
	if len(g.Backends) == 0 {
		return []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)}
	}
	return g.Backends
}

// String returns "operator", or "registrar of shop, web".
func (g Grant) String() string {
	if g.Role == Registrar {
		return "registrar of " + strings.Join(g.Namespaces, ", ")
	}
	return g.Role.String()
}

// Caller is who sent a request.
type Caller struct {
	Name string // for logs: "root", "token deploy", "certificate deploy.example", "tcp 127.0.0.1"; "": unknown
	Grant
}
