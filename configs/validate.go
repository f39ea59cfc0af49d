package configs

import (
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// Bounds of ironvip.toml.
const (
	MinResyncInterval = time.Second
	MaxResyncInterval = 24 * time.Hour
	MaxReuseDelay     = 7 * 24 * time.Hour
	MaxShrinkGuard    = 24 * time.Hour
	minOrphanGrace    = time.Second
	maxSocketPath     = 107 // bytes; sockaddr_un holds 108 with the closing zero
	maxDevice         = 15  // bytes; IFNAMSIZ is 16 with the closing zero
)

// validator checks a decoded configuration, fills in what depends on the host
// and collects what is wrong.
type validator struct {
	config    *Config
	at        positions
	path      string
	undecoded []vip.Problem
	problems  []vip.Problem
}

// bad notes a problem, unless decoding has told one of the same field already.
func (v *validator) bad(field, hint, format string, args ...any) {
	v.add(vip.Problem{Code: vip.CodeInvalid, Field: field, Message: fmt.Sprintf(format, args...), Hint: hint})
}

func (v *validator) add(p vip.Problem) {
	v.problems = append(v.problems, spec.Merge(v.undecoded, []vip.Problem{p})[len(v.undecoded):]...)
}

// where names the place of a field in a message.
func (v *validator) where(field string) string { return lineOf(v.path, v.at.line(field)) }

func (v *validator) validate() {
	v.node()
	v.api()
	v.dataplane()
	v.ipam()
	v.consul()
	v.pools()
	v.sources()
	v.choice("log.level", v.config.Log.Level, "debug", "info", "warn", "error")
	v.choice("log.format", v.config.Log.Format, "text", "json")
}

func (v *validator) choice(field, value string, use ...string) {
	if slices.Contains(use, value) {
		return
	}
	hint := "use " + strings.Join(use, ", ")
	if near := strict.Nearest(value, use); near != "" {
		hint = fmt.Sprintf("did you mean %q? %s", near, hint)
	}
	v.bad(field, hint, "%s is not a known value", strict.Quote(value))
}

// word checks a name that appears in messages and metrics.
func (v *validator) word(field, s string) {
	if len(s) > 253 || strings.ContainsFunc(s, func(r rune) bool { return r == ' ' || !unicode.IsPrint(r) }) {
		v.bad(field, "", "wants up to 253 printable characters without spaces")
	}
}

func (v *validator) absolute(field, path string) {
	if !filepath.IsAbs(path) || strings.ContainsFunc(path, unicode.IsControl) {
		v.bad(field, "write the path from the root: /...", "%s is not an absolute path", strict.Quote(path))
	}
}

func (v *validator) node() {
	n := &v.config.Node
	if n.Name == "" {
		n.Name = hostName()
	}
	v.word("node.name", n.Name)
	v.word("node.zone", n.Zone)
	v.absolute("node.state_dir", n.StateDir)
}

func (v *validator) api() {
	a := &v.config.API
	if a.Socket == "" && a.Listen == "" {
		v.bad("api", "set api.socket, or api.listen to 127.0.0.1:7480", "has neither a socket nor an address: nothing could reach the agent")
	}
	if a.Socket != "" {
		v.absolute("api.socket", a.Socket)
		if len(a.Socket) > maxSocketPath {
			v.bad("api.socket", "use a shorter path", "has %d bytes, a socket's path has up to %d", len(a.Socket), maxSocketPath)
		}
	}
	if a.Listen != "" {
		v.listen(a.Listen)
	}
}

// listen allows loopback only, as long as there is neither TLS nor a token.
func (v *validator) listen(text string) {
	const field, hint = "api.listen", `write a loopback address and a port: "127.0.0.1:7480"`
	host, portText, err := net.SplitHostPort(text)
	if err != nil {
		v.bad(field, hint, "%s is not an address with a port", strict.Quote(text))
		return
	}
	if _, err := strconv.ParseUint(portText, 10, 16); err != nil {
		v.bad(field, hint, "%s is not a port", strict.Quote(portText))
	}
	if host == "localhost" {
		return
	}
	a, err := netip.ParseAddr(host)
	switch {
	case err != nil && host != "":
		v.bad(field, hint, "%s is not an address", strict.Quote(host))
	case !a.IsLoopback():
		v.add(vip.Problem{Code: vip.CodeUnsupported, Field: field, Hint: hint,
			Message: fmt.Sprintf("%s can be reached from other hosts, which needs TLS, which this version does not support", text)})
	}
}

func (v *validator) dataplane() {
	d := &v.config.Dataplane
	v.choice("dataplane.mode", d.Mode, ModeAuto, ModeIPVS, ModeProxy)
	v.choice("dataplane.role", d.Role, RoleDirector, RoleRealServer)
	if d.Role == RoleRealServer && d.Mode == ModeProxy {
		v.bad("dataplane.role", `set dataplane.mode to "auto" or "ipvs"`, "a real server needs the kernel: dataplane.mode %q has no part in direct routing and tunnels", d.Mode)
	}
	if r := time.Duration(d.ResyncInterval); r < MinResyncInterval || r > MaxResyncInterval {
		v.bad("dataplane.resync_interval", `use "1s" to "24h"`, "%s is out of bounds", d.ResyncInterval)
	}
	if d.Device == "" || len(d.Device) > maxDevice || d.Device == "." || d.Device == ".." ||
		strings.ContainsFunc(d.Device, func(r rune) bool { return r == '/' || r == ':' || r == '%' || r <= ' ' || r > '~' }) {
		v.bad("dataplane.device", fmt.Sprintf("use %q", DefaultDevice), "%s is not a name for an interface: 1 to %d characters without / : %% and spaces", strict.Quote(d.Device), maxDevice)
	} else if d.Device == "lo" {
		v.bad("dataplane.device", fmt.Sprintf("use %q", DefaultDevice), `"lo" is the host's own; ironvip wants a device to itself`)
	}
}

func (v *validator) ipam() {
	i := &v.config.IPAM
	v.choice("ipam.store", i.Store, StoreBolt, StoreConsul)
	if d := time.Duration(i.ReuseDelay); d < 0 || d > MaxReuseDelay {
		v.bad("ipam.reuse_delay", `use "0s" to "168h"`, "%s is out of bounds", i.ReuseDelay)
	}
	if d := time.Duration(i.OrphanGrace); d < minOrphanGrace || d > MaxReuseDelay {
		v.bad("ipam.orphan_grace", `use "1s" to "168h"`, "%s is out of bounds", i.OrphanGrace)
	}
	for n, p := range i.PodCIDRs {
		v.prefix(strict.Index("ipam.pod_cidrs", n), p)
	}
}

// prefix refuses ranges that no unicast address is in.
func (v *validator) prefix(field string, p netip.Prefix) {
	a := p.Addr()
	switch {
	case !p.IsValid(): // told by decoding
	case a.Is4In6():
		v.bad(field, "write it in IPv4 form", "%s is an IPv4 range in IPv6 form", p)
	case p.Bits() == 0, a.IsUnspecified(), a.IsMulticast(), a.Is6() && a.IsLinkLocalUnicast(), a.Is4() && a.As4()[0] >= 224:
		v.bad(field, "use a range of unicast addresses", "%s has addresses that no pod can have", p)
	}
}

// pools lets the allocator judge them. What it only remarks on is shown with
// the pool, and is not in the way of starting.
func (v *validator) pools() {
	for _, p := range ipam.CheckPools(v.config.ipamPools(), v.config.IPAM.PodCIDRs) {
		if ipam.IsWarning(p) {
			continue
		}
		p.Message = poolPath.ReplaceAllStringFunc(p.Message, v.where)
		v.add(p)
	}
}

// poolPath is how the allocator speaks of a pool that has no name of its own.
var poolPath = regexp.MustCompile(`pool\[\d+\]`)

func (v *validator) sources() {
	if len(v.config.Sources) == 0 {
		v.config.Sources = defaultSources(v.path)
		return
	}
	names, paths := map[string]int{}, map[string]int{}
	for i := range v.config.Sources {
		s, field := &v.config.Sources[i], strict.Index("source", i)
		if s.Type == "" {
			v.bad(field+".type", `add type = "static"`, "a source needs a type")
			continue
		}
		if s.Type == SourceKubernetes && !withKubernetes {
			p := vip.Unsupported("this build", field+".type", "the kubernetes source")
			p.Hint = "it was made with -tags nokubernetes: install one made without, or remove this [[source]]"
			v.add(p)
			continue
		}
		if !slices.Contains(sourceTypes, s.Type) {
			v.choice(field+".type", s.Type, sourceTypes...)
			continue
		}
		if s.Name == "" {
			s.Name = s.Type
		}
		if err := vip.CheckLabel(s.Name); err != nil {
			v.bad(field+".name", `use 1 to 63 of a-z, 0-9 and inner "-"`, "%s", err)
		} else if s.Name == "rest" {
			v.bad(field+".name", "use another name", `"rest" is the name of the API's own source`)
		} else if j, twice := names[s.Name]; twice {
			v.bad(field+".name", "give each source a name of its own", "%q is the name of the source at %s, too", s.Name, v.where(strict.Index("source", j)))
		} else {
			names[s.Name] = i
		}
		v.othersKeys(field, s)
		switch s.Type {
		case SourceConsul:
			v.consulSource(field, s)
			continue
		case SourceKubernetes:
			v.kubernetesSource(field, s)
			continue
		}
		if s.Path == "" {
			v.bad(field+".path", `add path = "/etc/ironvip/services.d"`, "a static source needs the directory of its files")
			continue
		}
		s.Path = v.fromFolder(s.Path)
		v.absolute(field+".path", s.Path)
		if j, twice := paths[s.Path]; twice {
			v.bad(field+".path", "remove one of the two sources", "%s is read by the source at %s, too", s.Path, v.where(strict.Index("source", j)))
		}
		paths[s.Path] = i
	}
}

// pool refuses a source's pool that is not there.
func (v *validator) pool(field, name string) {
	if name != "" && !slices.ContainsFunc(v.config.Pools, func(p Pool) bool { return p.Name == name }) {
		v.bad(field, "name one of the [[pool]] blocks, or leave it out", "there is no pool %s", strict.Quote(name))
	}
}

func (v *validator) shrinkGuard(field string, s *Source) {
	if at := strict.Join(field, "shrink_guard"); v.at.lines[at] == 0 {
		s.ShrinkGuard = spec.Duration(DefaultShrinkGuard)
	} else if d := time.Duration(s.ShrinkGuard); d < 0 || d > MaxShrinkGuard {
		v.bad(at, `use "0s" (not at all) to "24h"`, "%s is out of bounds", s.ShrinkGuard)
	}
}

// sourceTypes are the types of sources.
var sourceTypes = []string{SourceStatic, SourceConsul, SourceKubernetes}

// typeKeys are the keys that only mean something in sources of one type, or two.
var typeKeys = map[string][]string{
	SourceStatic: {"path"},
	SourceConsul: append(strict.Keys(ConsulServer{}),
		"tag", "services", "pool", "service_namespace", "tagged_address", "allow_stale", "shrink_guard"),
	SourceKubernetes: append(strict.Keys(KubernetesCluster{}), "pool", "shrink_guard"),
}

// othersKeys refuses the keys of a source that mean nothing in one of its type.
func (v *validator) othersKeys(field string, s *Source) {
	for _, key := range strict.Keys(Source{}) {
		var types []string
		for _, typ := range sourceTypes {
			if slices.Contains(typeKeys[typ], key) {
				types = append(types, strconv.Quote(typ))
			}
		}
		at := strict.Join(field, key)
		if v.at.lines[at] > 0 && len(types) > 0 && !slices.Contains(types, strconv.Quote(s.Type)) {
			v.bad(at, "remove it", "is for sources of type %s, and this one is of type %q", strings.Join(types, " or "), s.Type)
		}
	}
}
