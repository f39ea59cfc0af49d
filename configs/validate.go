package configs

import (
	"fmt"
	"math"
	"net/netip"
	"path"
	"regexp"
	"strings"

	"github.com/ironvip/ironvip/hook"
	"github.com/ironvip/ironvip/internal/tomlfile"
	"github.com/ironvip/ironvip/ipam/pool"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// Bounds of ironvip.toml.
const (
	maxPatterns = 100
	maxDevice   = 15 // bytes; IFNAMSIZ is 16 with the terminating zero
)

// check validates a decoded configuration and fills in what depends on the host.
func (c *Config) check(doc *tomlfile.Checker) {
	c.checkNode(doc.In("node"))
	c.checkAPI(doc.In("api"))
	c.checkDataplane(doc.In("dataplane"))
	c.checkIPAM(doc.In("ipam"))
	c.checkMetrics(doc.In("metrics"))
	c.checkConsul(doc)
	c.checkEtcd(doc)
	c.checkPools(doc)
	c.checkAnnounce(doc)
	c.checkDNS(doc.In("dns"))
	c.checkSources(doc)
	hook.Check(doc, c.Hooks)
}

func (c *Config) checkNode(t *tomlfile.Checker) {
	n := &c.Node
	if n.Name == "" {
		n.Name = hostName()
	}
	t.Word("name", n.Name)
	t.Absolute("state_dir", n.StateDir)
}

func (c *Config) checkDataplane(t *tomlfile.Checker) {
	d := &c.Dataplane
	if k := DataplaneOf(d.Mode); d.Role == RoleRealServer && k != nil && !k.RealServer {
		t.Bad("role", `set dataplane.mode to "auto" or "ipvs"`, "a real server needs the kernel: dataplane.mode %q has no part in direct routing and tunnels", d.Mode)
	}
	t.List("namespaces", d.Namespaces, t.Label)
	checkLabels(t, d.Labels)
	if d.Role == RoleRealServer && d.Connect == ConnectOn {
		t.Bad("connect", `set dataplane.connect to "off"`, "a real server balances nothing")
	}
	if d.Mode == ModeOff && d.Connect != ConnectOff {
		t.Bad("connect", `set dataplane.connect to "off"`, "a host with dataplane.mode %q balances nothing", ModeOff)
	}
	if d.ProxySocket != "" {
		t.Socket("proxy_socket", d.ProxySocket)
	}
	if !isInterface(d.Device) {
		t.Bad("device", fmt.Sprintf("use %q", DefaultDevice), "%s is not a name for an interface: 1 to %d characters without / : %% and spaces", strict.Quote(d.Device), maxDevice)
	} else if d.Device == "lo" {
		t.Bad("device", fmt.Sprintf("use %q", DefaultDevice), `"lo" is the host's own; ironvip wants a device to itself`)
	}
}

// checkLabels requires labels that select services.
func checkLabels(t *tomlfile.Checker, labels []string) {
	t.List("labels", labels, func(key, label string) {
		if name, _, _ := strings.Cut(label, "="); name == "" {
			t.Bad(key, `write "tier=web", or "tier" for any value`, "%s is not a label", strict.Quote(label))
		}
	})
}

func (c *Config) checkIPAM(t *tomlfile.Checker) {
	for n, p := range c.IPAM.PodCIDRs {
		checkPrefix(t, strict.Index("pod_cidrs", n), p)
	}
}

func (c *Config) checkMetrics(t *tomlfile.Checker) {
	if n := len(c.Metrics.Backends); n > maxPatterns {
		t.Bad("backends", "use wildcards, such as \"shop/*\"", "%d patterns are more than %d", n, maxPatterns)
	}
	t.List("backends", c.Metrics.Backends, func(key, pattern string) {
		if _, err := path.Match(pattern, ""); err != nil || !isPattern.MatchString(pattern) {
			t.Bad(key, `write "shop/web", "shop/*" for a namespace, or "*/*" for every service`, "%s is not a namespace and a name", strict.Quote(pattern))
		}
	})
}

// isPattern matches the characters of a namespace and a name, and those of patterns.
var isPattern = regexp.MustCompile(`^[a-z0-9*?[\]-]+/[a-z0-9*?[\]-]+$`)

// checkPrefix refuses ranges without unicast addresses.
func checkPrefix(t *tomlfile.Checker, key string, p netip.Prefix) {
	a := p.Addr()
	switch {
	case !p.IsValid(): // decoding has reported it
	case a.Is4In6():
		t.Bad(key, "write it in IPv4 form", "%s is an IPv4 range in IPv6 form", p)
	case p.Bits() == 0, a.IsUnspecified(), a.IsMulticast(), a.Is6() && a.IsLinkLocalUnicast(), a.Is4() && a.As4()[0] >= 224:
		t.Bad(key, "use a range of unicast addresses", "%s has addresses that no pod can have", p)
	}
}

// checkPools reports the allocator's problems with the pools. Its warnings don't prevent a start;
// they are displayed with the pool.
func (c *Config) checkPools(doc *tomlfile.Checker) {
	for _, p := range pool.Check(c.IPAMConfig().Pools, c.IPAM.PodCIDRs) {
		if pool.IsWarning(p) {
			continue
		}
		p.Message = poolPath.ReplaceAllStringFunc(p.Message, doc.Place)
		doc.Add(p.Field, p)
	}
	for i := range c.Pools {
		doc.In(strict.Index("pool", i)).List("namespaces", c.Pools[i].Namespaces, doc.Label)
	}
	first := map[string]string{}
	for i := range c.Quotas {
		q, key := &c.Quotas[i], strict.Index("quota", i)
		t := doc.In(key)
		t.Label("namespace", q.Namespace)
		if other, twice := first[q.Namespace]; twice {
			t.Bad("namespace", "keep one of the two", "%s has a quota in %s, too", strict.Quote(q.Namespace), doc.Place(other))
		}
		first[q.Namespace] = key
		if q.Addresses == math.MaxInt32 && q.Services == math.MaxInt32 {
			t.Bad("addresses", "state addresses, services, or both", "the quota bounds nothing")
		}
	}
}

// poolPath is the allocator's name for a pool without a name.
var poolPath = regexp.MustCompile(`pool\[\d+\]`)
