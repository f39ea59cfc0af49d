package bgp

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"

	"github.com/ironvip/ironvip/announce/bgp/message"
	"github.com/ironvip/ironvip/announce/bgp/session"
	"github.com/ironvip/ironvip/announce/bgp/transport"
)

// Defaults of the settings.
const (
	DefaultLocalPref = 100
	DefaultPort      = 179
)

// Limits of the settings.
const (
	MaxPassword    = 80 // bytes; the kernel's TCP_MD5SIG_MAXKEYLEN
	maxCommunities = 64
)

// Config are the settings of a Speaker.
type Config struct {
	RouterID netip.Addr // an IPv4 address, unique in the AS
	Peers    []Peer
	// Record is the file that remembers the peers over a restart. It must not survive a reboot: use
	// the runtime folder. "": restarts are not recognized.
	Record string

	Log *slog.Logger
	// Report is called when the state of a session or its reason changes, in the order of the
	// changes of a peer. It must not block. May be nil.
	Report func(Session)
}

// Peer are the settings of one router. Two peers never have the same Address and Interface.
type Peer struct {
	Address   netip.Addr // with a zone if it is link-local; or the zero value with Interface
	Interface string     // unnumbered: the router at the other end of this interface
	Port      uint16     // 0: DefaultPort
	ASN       uint32     // of the router
	LocalASN  uint32     // of this host; the same as ASN: iBGP
	Password  string     // of TCP MD5 signatures (RFC 2385); "": none
	// Multihop is the largest number of hops to the router. 0: a router of another AS must be
	// directly connected.
	Multihop uint8
	// TTLSecurity accepts only packets that have passed at most Multihop routers (RFC 5082). The
	// router needs the same setting.
	TTLSecurity bool
	// NextHop4 and NextHop6 are the next hops of the routes. The zero value is the address of the
	// connection, or an address of its interface if the family differs.
	NextHop4, NextHop6 netip.Addr

	Attributes
}

// Attributes are the attributes of the routes announced to a peer. A change of them alone keeps the
// session.
type Attributes struct {
	Communities []message.Community
	MED         uint32 // 0: not sent, which means the same
	LocalPref   uint32 // iBGP only; 0: DefaultLocalPref
}

// Name identifies the peer: its address, or its interface if it is unnumbered.
func (p *Peer) Name() string {
	if p.Interface != "" {
		return p.Interface
	}
	return p.Address.String()
}

// ibgp reports whether the router is in the same AS.
func (p *Peer) ibgp() bool { return p.ASN == p.LocalASN }

// transport returns how to connect to the router.
func (p *Peer) transport() transport.Settings {
	return transport.Settings{Port: p.Port, Password: p.Password, IBGP: p.ibgp(), Multihop: p.Multihop, TTLSecurity: p.TTLSecurity}
}

// session returns the settings of a session with the router.
func (p *Peer) session(c *Config) session.Settings {
	return session.Settings{ASN: p.ASN, LocalASN: p.LocalASN, RouterID: c.RouterID, NextHop: [message.Families]netip.Addr{p.NextHop4, p.NextHop6}}
}

// path returns the attributes of the routes that the router receives.
func (p *Peer) path(a *Attributes, draining bool) message.PathAttributes {
	path := message.PathAttributes{ASN: p.LocalASN, IBGP: p.ibgp(), MED: a.MED, LocalPref: cmp.Or(a.LocalPref, DefaultLocalPref), Communities: a.Communities}
	if draining { // RFC 8326, 4.2: the lowest preference, inside the AS
		path.LocalPref = 0
		path.Communities = append(slices.Clip(path.Communities), message.GracefulShutdown)
	}
	return path
}

// sameSession reports whether q differs from p in its Attributes at most.
func (p *Peer) sameSession(q *Peer) bool {
	var same Config // what else a session depends on
	return p.Address == q.Address && p.Interface == q.Interface && p.transport() == q.transport() && p.session(&same) == q.session(&same)
}

// Validate returns every error of the settings, joined.
func (c *Config) Validate() error {
	var errs []error
	if !c.RouterID.Is4() || c.RouterID.IsUnspecified() {
		errs = append(errs, fmt.Errorf("router ID %s invalid: must be an IPv4 address other than 0.0.0.0", c.RouterID))
	}
	seen := map[string]bool{}
	for i := range c.Peers {
		p := &c.Peers[i]
		if err := p.validate(); err != nil {
			errs = append(errs, fmt.Errorf("bgp peer %s: %w", p.Name(), err))
		}
		if seen[p.Name()] {
			errs = append(errs, fmt.Errorf("bgp peer %s is defined more than once", p.Name()))
		}
		seen[p.Name()] = true
	}
	return errors.Join(errs...)
}

func (p *Peer) validate() error {
	link := p.Address.Is6() && p.Address.IsLinkLocalUnicast()
	for _, c := range []struct {
		bad  bool
		text string
	}{
		{(p.Interface == "") == !p.Address.IsValid(), "needs either an address or an interface"},
		{p.Address.IsValid() && (p.Address.IsUnspecified() || p.Address.IsMulticast() || p.Address.Is4In6()), "address must be a unicast address"},
		{link && p.Address.Zone() == "", "a link-local address needs a zone, such as fe80::1%eth0"},
		{p.ASN == 0 || p.LocalASN == 0, "asn and local_asn must be 1 to 4294967295"},
		{p.ASN == message.ASTrans || p.LocalASN == message.ASTrans, "asn 23456 is reserved (RFC 6793)"},
		{len(p.Password) > MaxPassword, fmt.Sprintf("password must be at most %d bytes", MaxPassword)},
		{p.Multihop > 1 && (link || p.Interface != ""), "multihop needs an address that is not link-local"},
		{p.NextHop4.IsValid() && !p.NextHop4.Is4(), "the IPv4 next hop must be an IPv4 address"},
		{p.NextHop6.IsValid() && !p.NextHop6.Is6(), "the IPv6 next hop must be an IPv6 address"},
		{p.LocalPref != 0 && !p.ibgp(), "local preference is for iBGP only: asn and local_asn differ"},
		{len(p.Communities) > maxCommunities, fmt.Sprintf("at most %d communities", maxCommunities)},
	} {
		if c.bad {
			return errors.New(c.text)
		}
	}
	return nil
}
