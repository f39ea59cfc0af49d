package configs

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/announce/bgp/message"
	"github.com/ironvip/ironvip/announce/control"
	"github.com/ironvip/ironvip/internal/tomlfile"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// Announce is [announce]: whether and how this host announces VIPs to the network.
type Announce struct {
	Mode       string        `toml:"mode" values:"off|l2|bgp|routes"` // the name of an announce.Mode; a pool may differ
	Interfaces []string      `toml:"interfaces"`                      // L2; empty: those with an address in the range of a pool. A pool may differ
	Peers      []PeerAddress `toml:"peers"`                           // of other hosts; this host's own addresses are ignored
	Listen     string        `toml:"listen"`                          // UDP address of the heartbeats
	KeyFile    string        `toml:"key_file"`                        // the shared secrets, one a line; the first one signs
	Weight     int           `toml:"weight" values:"1..1000"`         // this host's share of the VIPs
	Priority   int           `toml:"priority" values:"0..255"`        // L2: the host with the highest one owns; a pool may differ, as in the next two
	Standby    bool          `toml:"standby"`                         // L2: this host owns only what no other host can
	// MinBackends is how many backends of a service must be usable.
	MinBackends Least         `toml:"min_backends"`
	Heartbeat   spec.Duration `toml:"heartbeat" values:"10ms..10s"`
	Missed      int           `toml:"missed" values:"2..100"` // heartbeats in a row without which a host is dead
	Settle      spec.Duration `toml:"settle" values:"0s..1h"`
	Hold        spec.Duration `toml:"hold" values:"0s..24h"`
	Socket      string        `toml:"socket"` // of the announcer
	BGP         []BGPPeer     `toml:"bgp"`
}

// BGPPeer is [[announce.bgp]]: a router.
type BGPPeer struct {
	Peer         *netip.Addr  `toml:"peer"`
	Interface    string       `toml:"interface"`  // unnumbered: instead of peer
	PeerRange    netip.Prefix `toml:"peer_range"` // routers that connect: instead of peer
	PeerLimit    *int         `toml:"peer_limit" values:"1..1000"`
	Passive      bool         `toml:"passive"`
	Source       *netip.Addr  `toml:"source"`
	VRF          string       `toml:"vrf"`
	Port         *int         `toml:"port" values:"1..65535"`
	ASN          int          `toml:"asn" values:"1..4294967295"`
	LocalASN     int          `toml:"local_asn" values:"1..4294967295"`
	PasswordFile string       `toml:"password_file"`
	BFD          string       `toml:"bfd"` // "3x100ms"; "": off
	BGPRoute                  // the defaults of pools
	Multihop     int          `toml:"multihop" values:"0..255"`
	TTLSecurity  bool         `toml:"ttl_security"`

	bfdInterval   time.Duration
	bfdMultiplier int
}

// DefaultAnnouncePort is the UDP port of the heartbeats.
const DefaultAnnouncePort = 7481

// PeerAddress is an address with an optional port, "10.0.0.2" or "[2001:db8::2]:7481".
type PeerAddress struct{ netip.AddrPort }

// UnmarshalText implements encoding.TextUnmarshaler.
func (p *PeerAddress) UnmarshalText(text []byte) error {
	const hint = `write "10.0.0.2", or "10.0.0.2:7481" for another port`
	s := string(text)
	a, err := netip.ParseAddr(s)
	if err == nil {
		p.AddrPort = netip.AddrPortFrom(a.Unmap(), DefaultAnnouncePort)
	} else if p.AddrPort, err = netip.ParseAddrPort(s); err == nil {
		p.AddrPort = netip.AddrPortFrom(p.Addr().Unmap(), p.Port())
	}
	if err != nil || p.Port() == 0 || p.Addr().IsUnspecified() || p.Addr().IsMulticast() {
		return vip.Problem{Code: vip.CodeInvalid, Message: strict.Quote(s) + " is not the address of a host", Hint: hint}
	}
	return nil
}

const minSecret = 16 // bytes

func newAnnounce() Announce {
	return Announce{Mode: announce.Off.String(), Listen: ":" + strconv.Itoa(DefaultAnnouncePort), Weight: 1, Priority: announce.DefaultPriority, MinBackends: Least{announce.Least{Number: 1}}, Heartbeat: spec.Duration(100 * time.Millisecond), Missed: 3,
		Settle: spec.Duration(10 * time.Second), Hold: spec.Duration(5 * time.Minute), Socket: control.DefaultSocket}
}

// AnnounceMode returns how a pool's VIPs are announced.
func (c *Config) AnnounceMode(p *Pool) announce.Mode {
	name := c.Announce.Mode
	if p.Announce != "" {
		name = p.Announce
	}
	var m announce.Mode
	_ = m.UnmarshalText([]byte(name)) // check has refused others
	return m
}

// AnnouncePool returns how this host announces a pool's VIPs.
func (c *Config) AnnouncePool(p *Pool) announce.Pool {
	a := &c.Announce
	priority, standby, least := a.Priority, a.Standby, a.MinBackends
	if p.Priority != nil {
		priority = *p.Priority
	}
	if p.Standby != nil {
		standby = *p.Standby
	}
	if p.MinBackends != nil {
		least = *p.MinBackends
	}
	standby = standby || p.AnnounceZone != "" && p.AnnounceZone != c.Node.Zone
	return announce.Pool{Name: p.Name, Mode: c.AnnounceMode(p), CIDRs: p.CIDRs,
		Policy: announce.Policy{Above: int16(priority - announce.DefaultPriority), Standby: standby}, MinBackends: least.Least, Routes: c.poolRoutes(p)}
}

// Announces reports whether any pool is announced by one of the modes; without modes, by any.
func (c *Config) Announces(modes ...announce.Mode) bool {
	return slices.ContainsFunc(c.Pools, func(p Pool) bool {
		m := c.AnnounceMode(&p)
		return m != announce.Off && (len(modes) == 0 || slices.Contains(modes, m))
	})
}

func (c *Config) checkAnnounce(doc *tomlfile.Checker) {
	a, t := &c.Announce, doc.In("announce")
	for i := range c.Pools {
		p, t := &c.Pools[i], doc.In(strict.Index("pool", i))
		c.checkInterfaces(t, "announce_interfaces", p.Interfaces)
	}
	c.checkInterfaces(t, "interfaces", a.Interfaces)
	checkUDP(t, a.Listen)
	t.File("key_file", &a.KeyFile)
	t.Socket("socket", a.Socket)
	seen := map[string]int{} // by the router
	for i := range a.BGP {
		b, t := &a.BGP[i], t.In(strict.Index("bgp", i))
		b.check(t)
		r := b.router()
		if first, twice := seen[r.Name()]; twice {
			t.Bad("", "remove one of them", "is the same router as announce.bgp[%d]", first)
		} else {
			seen[r.Name()] = i
		}
	}
	c.checkPoolRoutes(doc)
	if !c.Announces() {
		return
	}
	if c.Dataplane.Role == RoleRealServer {
		t.Bad("mode", `set announce.mode to "off"`, "a real server announces no VIPs: its directors do")
	}
	if len(a.Peers) > 0 && a.KeyFile == "" && c.IPAM.Store == StoreBolt {
		t.Bad("key_file", "write a secret to a file that only ironvip can read, the same on all hosts: head -c 32 /dev/urandom | base64", "is required with peers")
	}
	if c.Announces(announce.BGP) && len(a.BGP) == 0 {
		t.Bad("bgp", "add [[announce.bgp]] with peer, asn and local_asn", "mode bgp needs a router")
	}
}

// checkInterfaces checks where VIPs are announced at layer 2.
func (c *Config) checkInterfaces(t *tomlfile.Checker, key string, names []string) {
	t.List(key, names, func(key, name string) {
		if !isInterface(name) {
			t.Bad(key, `write a name such as "eth0"`, "%s is not a name for an interface", strict.Quote(name))
		} else if name == c.Dataplane.Device {
			t.Bad(key, "write the interface of the network where the clients are", "%s has the VIPs, and no network", strict.Quote(name))
		}
	})
}

// checkUDP requires a local address and a port.
func checkUDP(t *tomlfile.Checker, text string) {
	host, port, err := net.SplitHostPort(text)
	n, portErr := strconv.ParseUint(port, 10, 16)
	_, addrErr := netip.ParseAddr(host)
	if err != nil || portErr != nil || n == 0 || host != "" && addrErr != nil {
		t.Bad("listen", `write ":7481", or "10.0.0.1:7481" for one address`, "%s is not an address with a port", strict.Quote(text))
	}
}

func (b *BGPPeer) check(t *tomlfile.Checker) {
	onLink := b.Peer != nil && b.Peer.Is6() && b.Peer.IsLinkLocalUnicast()
	ranged := b.PeerRange.IsValid()
	switch {
	case b.Peer == nil && b.Interface == "" && !ranged:
		t.Bad("", "add peer, the router's address, interface for an unnumbered session, or peer_range for routers that connect", "names no router")
	case b.Peer != nil && b.Interface != "":
		t.Bad("interface", "keep one of them", "peer and interface exclude each other")
	case ranged && (b.Peer != nil || b.Interface != ""):
		t.Bad("peer_range", "keep one of them", "peer, interface and peer_range exclude each other")
	case ranged && b.PeerRange.Addr().Is4In6():
		t.Bad("peer_range", "write an IPv4 prefix", "%s is an IPv4 range in IPv6", b.PeerRange)
	case b.Peer != nil && (b.Peer.IsUnspecified() || b.Peer.IsMulticast() || b.Peer.Is4In6()):
		t.Bad("peer", "write the router's address", "%s is not the address of a router", b.Peer)
	case onLink && b.Peer.Zone() == "":
		t.Bad("peer", `add the interface, as "fe80::1%eth1"`, "%s is link-local and has no zone", b.Peer)
	case b.Interface != "" && !isInterface(b.Interface):
		t.Bad("interface", `write a name such as "eth1"`, "%s is not a name for an interface", strict.Quote(b.Interface))
	}
	b.checkSocket(t, onLink)
	checkASN(t, "asn", b.ASN)
	checkASN(t, "local_asn", b.LocalASN)
	b.BGPRoute.check(t, b.ASN == b.LocalASN, b.ASN != b.LocalASN)
	if b.Multihop > 1 && (onLink || b.Interface != "") {
		t.Bad("multihop", "remove it, or write an address that is not link-local", "the router is on the same link")
	}
	t.File("password_file", &b.PasswordFile)
	if b.BFD != "" {
		n, interval, ok := strings.Cut(b.BFD, "x")
		var err error
		if b.bfdMultiplier, err = strconv.Atoi(strings.TrimSpace(n)); err == nil {
			b.bfdInterval, err = time.ParseDuration(strings.TrimSpace(interval))
		}
		if !ok || err != nil || b.bfdMultiplier < 1 || b.bfdMultiplier > 255 || b.bfdInterval < 10*time.Millisecond || b.bfdInterval > 10*time.Second {
			t.Bad("bfd", `write "3x100ms": a multiplier of 1 to 255 and an interval of 10ms to 10s`, "%s is not the detection of a session", strict.Quote(b.BFD))
		}
	}
}

// checkSocket checks the keys of the connections.
func (b *BGPPeer) checkSocket(t *tomlfile.Checker, onLink bool) {
	ranged := b.PeerRange.IsValid()
	if b.Passive && b.Interface != "" {
		t.Bad("passive", "remove it, or write peer or peer_range", "an unnumbered session is opened by this host")
	}
	if b.PeerLimit != nil && !ranged {
		t.Bad("peer_limit", "remove it", "is for peer_range")
	}
	switch {
	case b.VRF != "" && !isInterface(b.VRF):
		t.Bad("vrf", `write a name such as "red"`, "%s is not a name for an interface", strict.Quote(b.VRF))
	case b.VRF != "" && (onLink || b.Interface != ""):
		t.Bad("vrf", "remove it", "a session of link-local addresses is bound to its interface")
	}
	if b.Source == nil {
		return
	}
	switch s := *b.Source; {
	case onLink || b.Interface != "":
		t.Bad("source", "remove it", "a session of link-local addresses has that of its interface")
	case s.IsUnspecified() || s.IsMulticast() || s.Is4In6() || s.Zone() != "":
		t.Bad("source", "write an address of this host", "%s is not the address of a host", s)
	case b.Peer != nil && b.Peer.Is4() != s.Is4(), ranged && b.PeerRange.Addr().Is4() != s.Is4():
		t.Bad("source", "write an address of the router's family", "%s is of another family than the router", s)
	}
}

func checkASN(t *tomlfile.Checker, key string, asn int) {
	switch {
	case !t.Has(key):
		t.Bad(key, "write the AS number", "is required")
	case asn == message.ASTrans:
		t.Bad(key, "write the AS number itself", "%d is reserved (RFC 6793)", asn)
	}
}

const (
	maxPassword = 80 // bytes; the kernel's TCP_MD5SIG_MAXKEYLEN

	defaultPort      = 179
	defaultPeerLimit = 100
)

func isInterface(name string) bool {
	return name != "" && len(name) <= maxDevice && !slices.Contains([]string{".", "..", "all", "default"}, name) && // the last two are folders of sysctls
		!strings.ContainsFunc(name, func(r rune) bool { return r == '/' || r == ':' || r == '%' || r <= ' ' || r > '~' })
}

// Files returns the files that the keys name.
func (a *Announce) Files() []tomlfile.NamedFile {
	files := []tomlfile.NamedFile{{Key: "key_file", Path: a.KeyFile, Check: func(path string) *vip.Problem {
		if _, err := readKeys(path); err != nil {
			return &vip.Problem{Code: vip.CodeInvalid, Message: err.Error(), Hint: "write a secret: head -c 32 /dev/urandom | base64"}
		}
		return nil
	}}}
	for i, b := range a.BGP {
		files = append(files, tomlfile.NamedFile{Key: strict.Join(strict.Index("bgp", i), "password_file"), Path: b.PasswordFile})
	}
	return files
}

// Keys reads the secrets of the key file; none without a key file.
func (a *Announce) Keys() ([][]byte, error) {
	if a.KeyFile == "" {
		return nil, nil
	}
	path, err := tomlfile.ResolvePath(a.KeyFile)
	if err != nil {
		return nil, err
	}
	return readKeys(path)
}

func readKeys(path string) ([][]byte, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var out [][]byte
	for line := range bytes.Lines(text) {
		line = bytes.TrimSpace(line)
		switch {
		case len(line) == 0 || line[0] == '#':
		case len(line) < minSecret:
			return nil, fmt.Errorf("%s: a secret has %d bytes, fewer than %d", path, len(line), minSecret)
		default:
			out = append(out, line)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s: no secret", path)
	}
	return out, nil
}

// Routers returns the settings of the routers. It reads their passwords.
func (a *Announce) Routers() ([]announce.BGPPeer, error) {
	var out []announce.BGPPeer
	for i := range a.BGP {
		b := &a.BGP[i]
		r := b.router()
		if b.PasswordFile != "" {
			path, err := tomlfile.ResolvePath(b.PasswordFile)
			if err != nil {
				return nil, err
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return nil, err
			}
			if r.Password = strings.TrimRight(string(text), "\r\n"); len(r.Password) > maxPassword {
				return nil, fmt.Errorf("%s: a password has at most %d bytes", path, maxPassword)
			}
		}
		out = append(out, r)
	}
	return out, nil
}

// router returns the settings of the router, without its password.
func (b *BGPPeer) router() announce.BGPPeer {
	k := b.keys()
	r := announce.BGPPeer{Interface: b.Interface, PeerRange: b.PeerRange, VRF: b.VRF, Port: defaultPort, Passive: b.Passive || b.PeerRange.IsValid(), ASN: uint32(b.ASN), LocalASN: uint32(b.LocalASN),
		Communities: k.Communities, MED: k.MED, LocalPref: k.LocalPref, Prepend: k.Prepend, LinkBandwidth: k.LinkBandwidth,
		Multihop: b.Multihop, TTLSecurity: b.TTLSecurity, BFDInterval: b.bfdInterval, BFDMultiplier: b.bfdMultiplier}
	if b.Peer != nil {
		r.Peer = *b.Peer
	}
	if b.Source != nil {
		r.Source = *b.Source
	}
	if b.Port != nil {
		r.Port = uint16(*b.Port)
	}
	if b.PeerRange.IsValid() {
		if r.PeerLimit = defaultPeerLimit; b.PeerLimit != nil {
			r.PeerLimit = *b.PeerLimit
		}
	}
	return r
}
