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
	if i.Store == "consul" {
		p := vip.Unsupported("this version", "ipam.store", "the consul store")
		p.Hint = `use "bolt"`
		v.add(p)
	} else {
		v.choice("ipam.store", i.Store, "bolt")
	}
	if d := time.Duration(i.ReuseDelay); d < 0 || d > MaxReuseDelay {
		v.bad("ipam.reuse_delay", `use "0s" to "168h"`, "%s is out of bounds", i.ReuseDelay)
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
		if laterSources[s.Type] != "" { // told already
			continue
		}
		if s.Type != SourceStatic {
			if s.Type == "" {
				v.bad(field+".type", `add type = "static"`, "a source needs a type")
			} else {
				v.choice(field+".type", s.Type, SourceStatic)
			}
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
		if s.Path == "" {
			v.bad(field+".path", `add path = "/etc/ironvip/services.d"`, "a static source needs the directory of its files")
			continue
		}
		if !filepath.IsAbs(s.Path) {
			s.Path = filepath.Join(filepath.Dir(v.path), s.Path)
			if abs, err := filepath.Abs(s.Path); err == nil {
				s.Path = abs
			}
		}
		s.Path = filepath.Clean(s.Path)
		v.absolute(field+".path", s.Path)
		if j, twice := paths[s.Path]; twice {
			v.bad(field+".path", "remove one of the two sources", "%s is read by the source at %s, too", s.Path, v.where(strict.Index("source", j)))
		}
		paths[s.Path] = i
	}
}
