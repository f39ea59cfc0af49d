package bgp

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Defaults of the settings.
const (
	DefaultHoldTime    = 90 * time.Second // RFC 4271, section 10
	DefaultRestartTime = 120 * time.Second
	DefaultLocalPref   = 100
	DefaultPort        = 179
)

// Limits of the settings.
const (
	MinHoldTime    = 3 * time.Second // RFC 4271, section 4.2
	MaxHoldTime    = (1<<16 - 1) * time.Second
	MaxRestartTime = (1<<12 - 1) * time.Second // RFC 4724, section 3
	MaxPassword    = 80                        // bytes; the kernel's TCP_MD5SIG_MAXKEYLEN
	maxCommunities = 64
)

// Config are the settings of a Speaker.
type Config struct {
	RouterID netip.Addr // an IPv4 address, unique in the AS
	Peers    []Peer
	// RestartTime is how long peers keep the routes while this process restarts, in whole seconds
	// (RFC 4724). 0 is DefaultRestartTime, negative: no graceful restart.
	RestartTime time.Duration
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
	Source    netip.Addr // of the connection; the zero value: the kernel's choice
	HoldTime  time.Duration
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
	Communities []Community
	MED         uint32 // 0: not sent, which means the same
	LocalPref   uint32 // iBGP only; 0: DefaultLocalPref
}

// Community is a community of RFC 1997.
type Community uint32

// GracefulShutdown asks routers to prefer other paths (RFC 8326).
const GracefulShutdown Community = 0xffff0000

var wellKnown = map[string]Community{"graceful-shutdown": GracefulShutdown, "no-export": 0xffffff01, "no-advertise": 0xffffff02,
	"no-export-subconfed": 0xffffff03, "no-peer": 0xffffff04, "blackhole": 0xffff029a}

// ParseCommunity reads "65010:100", or a name of the registry such as "no-export".
func ParseCommunity(s string) (Community, error) {
	if c, ok := wellKnown[s]; ok {
		return c, nil
	}
	high, low, ok := strings.Cut(s, ":")
	h, err1 := strconv.ParseUint(high, 10, 16)
	l, err2 := strconv.ParseUint(low, 10, 16)
	if !ok || err1 != nil || err2 != nil {
		return 0, fmt.Errorf("invalid community %q: must be two numbers of at most 65535, such as 65010:100", s)
	}
	return Community(h<<16 | l), nil
}

func (c Community) String() string { return fmt.Sprintf("%d:%d", c>>16, c&0xffff) }

// Name identifies the peer: its address, or its interface if it is unnumbered.
func (p *Peer) Name() string {
	if p.Interface != "" {
		return p.Interface
	}
	return p.Address.String()
}

// internal reports whether the session is iBGP.
func (p *Peer) internal() bool { return p.ASN == p.LocalASN }

// sameSession reports whether q differs from p in its Attributes at most.
func (p *Peer) sameSession(q *Peer) bool {
	return p.Address == q.Address && p.Interface == q.Interface && p.Port == q.Port && p.ASN == q.ASN && p.LocalASN == q.LocalASN &&
		p.Password == q.Password && p.Source == q.Source && p.HoldTime == q.HoldTime && p.Multihop == q.Multihop &&
		p.TTLSecurity == q.TTLSecurity && p.NextHop4 == q.NextHop4 && p.NextHop6 == q.NextHop6
}

func (a *Attributes) same(b *Attributes) bool {
	return slices.Equal(a.Communities, b.Communities) && a.MED == b.MED && a.LocalPref == b.LocalPref
}

// Validate returns every error of the settings, joined.
func (c *Config) Validate() error {
	var errs []error
	if !c.RouterID.Is4() || c.RouterID.IsUnspecified() {
		errs = append(errs, fmt.Errorf("router ID %s invalid: must be an IPv4 address other than 0.0.0.0", c.RouterID))
	}
	if c.RestartTime > MaxRestartTime || c.RestartTime%time.Second != 0 {
		errs = append(errs, fmt.Errorf("restart time %s invalid: must be whole seconds up to %s", c.RestartTime, MaxRestartTime))
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
	hold := cmp.Or(p.HoldTime, DefaultHoldTime)
	link := p.Address.Is6() && p.Address.IsLinkLocalUnicast()
	for _, c := range []struct {
		bad  bool
		text string
	}{
		{(p.Interface == "") == !p.Address.IsValid(), "needs either an address or an interface"},
		{p.Address.IsValid() && (p.Address.IsUnspecified() || p.Address.IsMulticast() || p.Address.Is4In6()), "address must be a unicast address"},
		{link && p.Address.Zone() == "", "a link-local address needs a zone, such as fe80::1%eth0"},
		{p.ASN == 0 || p.LocalASN == 0, "asn and local_asn must be 1 to 4294967295"},
		{p.ASN == asTrans || p.LocalASN == asTrans, "asn 23456 is reserved (RFC 6793)"},
		{len(p.Password) > MaxPassword, fmt.Sprintf("password must be at most %d bytes", MaxPassword)},
		{p.Source.IsValid() && p.Interface == "" && p.Source.Is4() != p.Address.Is4(), "the source address has the other address family"},
		{hold < MinHoldTime || hold > MaxHoldTime || hold%time.Second != 0, fmt.Sprintf("hold time must be whole seconds from %s to %s", MinHoldTime, MaxHoldTime)},
		{p.Multihop > 1 && (link || p.Interface != ""), "multihop needs an address that is not link-local"},
		{p.NextHop4.IsValid() && !p.NextHop4.Is4(), "the IPv4 next hop must be an IPv4 address"},
		{p.NextHop6.IsValid() && !p.NextHop6.Is6(), "the IPv6 next hop must be an IPv6 address"},
		{p.LocalPref != 0 && !p.internal(), "local preference is for iBGP only: asn and local_asn differ"},
		{len(p.Communities) > maxCommunities, fmt.Sprintf("at most %d communities", maxCommunities)},
	} {
		if c.bad {
			return errors.New(c.text)
		}
	}
	return nil
}
