package ipvs

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"pgregory.net/rapid"

	"github.com/ironvip/ironvip/vip"
)

// The ranges of the tests' virtual addresses.
var (
	pool4 = netip.MustParsePrefix("10.96.0.0/16")
	pool6 = netip.MustParsePrefix("fd96::/64")
)

func owns(a netip.Addr) bool { return pool4.Contains(a) || pool6.Contains(a) }

// listener returns a frontend with the given backends, each "address:port" or
// "address:port*weight".
func listener(at string, p vip.Protocol, backends ...string) *vip.Frontend {
	ap := addrPort(at)
	f := &vip.Frontend{
		Key: vip.FrontendKey{Addr: ap.Addr(), Port: ap.Port(), Protocol: p}, Kind: vip.OnVIP,
		Scheduler: vip.WeightedRoundRobin, Forward: vip.ForwardNAT, Masquerade: vip.MasqueradeAuto,
	}
	if !owns(ap.Addr()) {
		f.Kind = vip.OnHost
	}
	for _, b := range backends {
		addr, weight, weighted := strings.Cut(b, "*")
		e := vip.Endpoint{Addr: addrPort(addr), Weight: 1}
		if weighted {
			fmt.Sscan(weight, &e.Weight)
		}
		f.Backends = append(f.Backends, e)
	}
	return f
}

// drawWish draws a frontend of any kind, at one of a few keys.
func drawWish(t *rapid.T) *vip.Frontend {
	keys := []struct {
		at string
		p  vip.Protocol
	}{
		{"10.96.0.8:80", vip.TCP}, {"10.96.0.9:80", vip.UDP}, {"[fd96::8]:80", vip.TCP}, // on this host as a real server
		{"10.96.0.1:80", vip.TCP}, {"10.96.0.1:53", vip.UDP}, {"10.96.0.2:80", vip.TCP}, {"10.96.0.3:80", vip.TCP},
		{"[fd96::1]:80", vip.TCP}, {"192.0.2.1:30080", vip.TCP}, {"192.0.2.1:30053", vip.UDP},
	}
	key := rapid.SampledFrom(keys).Draw(t, "key")
	draw := drawListener
	if strings.Contains(key.at, ".8:") || strings.Contains(key.at, ".9:") || strings.Contains(key.at, ":8]:") {
		draw = drawReal
	}
	f := draw(t, key.at, key.p)
	if f.Kind == vip.OnVIP && rapid.IntRange(0, 2).Draw(t, "marked") == 0 {
		f = drawMarked(t, f)
	}
	return f
}

// drawListener draws a frontend at a key. Its backends are in and out of the pod ranges and
// shared between frontends. Weights may be 0.
func drawListener(t *rapid.T, at string, p vip.Protocol) *vip.Frontend {
	f := listener(at, p)
	f.Scheduler = rapid.SampledFrom([]vip.Scheduler{vip.RoundRobin, vip.WeightedRoundRobin, vip.SourceHash, vip.MaglevHash}).Draw(t, "scheduler")
	f.Masquerade = rapid.SampledFrom([]vip.Masquerade{vip.MasqueradeAuto, vip.MasqueradeAlways, vip.MasqueradeNever, vip.MasqueradeOwn}).Draw(t, "masquerade")
	f.Affinity = rapid.SampledFrom([]time.Duration{0, time.Minute}).Draw(t, "affinity")
	if f.Kind == vip.OnVIP && rapid.Bool().Draw(t, "restricted") {
		f.SourceRanges = rapid.SliceOfNDistinct(rapid.SampledFrom(sourceRanges), 0, 3, rapid.ID[netip.Prefix]).Draw(t, "source ranges")
	}
	if f.Kind == vip.OnVIP && rapid.IntRange(0, 3).Draw(t, "direct") == 0 {
		f.Forward, f.Masquerade = vip.ForwardDirect, vip.MasqueradeNever
		f.OnePacket = p == vip.UDP && f.Affinity == 0
	}
	backends := []string{"10.1.0.1:80", "10.1.0.1:81", "10.1.0.2:80", "10.1.0.3:80", "10.9.0.1:80"}
	if f.Key.Addr.Is6() {
		backends = []string{"[fd01::1]:80", "[fd01::2]:80", "[fd09::1]:80"}
	}
	for _, b := range backends {
		if f.Forward == vip.ForwardDirect && addrPort(b).Port() != f.Key.Port {
			continue
		}
		if weight := rapid.IntRange(-2, 2).Draw(t, "weight"); weight >= 0 {
			f.Backends = append(f.Backends, vip.Endpoint{Addr: addrPort(b), Weight: uint16(weight),
				MaxConnections: rapid.SampledFrom([]uint32{0, 0, 5}).Draw(t, "limit")})
		}
	}
	return f
}

// drawMarked turns a frontend into one whose service is one by mark: for overlapping ranges of
// ports, or for an audience.
func drawMarked(t *rapid.T, f *vip.Frontend) *vip.Frontend {
	f.Key.Audience = rapid.SampledFrom([]vip.Audience{vip.Everyone, vip.InternalClients}).Draw(t, "audience")
	if f.Key.Audience == vip.Everyone || rapid.Bool().Draw(t, "ranged") {
		f.Key.Port = rapid.SampledFrom([]uint16{80, 90}).Draw(t, "first port")
		f.Key.LastPort = rapid.SampledFrom([]uint16{95, 100}).Draw(t, "last port")
		for i := range f.Backends {
			f.Backends[i].Addr = netip.AddrPortFrom(f.Backends[i].Addr.Addr(), 0)
		}
		f.Backends = slices.CompactFunc(f.Backends, func(a, b vip.Endpoint) bool { return a.Addr == b.Addr })
	}
	if Unsupported(f) != nil {
		f.Affinity = 0
	}
	return f
}

// drawReal draws a frontend of a real server at a key.
func drawReal(t *rapid.T, at string, p vip.Protocol) *vip.Frontend {
	f := listener(at, p)
	f.Kind, f.Masquerade = vip.OnRealServer, vip.MasqueradeNever
	f.Forward = rapid.SampledFrom([]vip.Forward{vip.ForwardDirect, vip.ForwardTunnel}).Draw(t, "forward")
	own := []string{"10.20.0.1:80", "10.20.0.2:80"}
	if f.Key.Addr.Is6() {
		own = []string{"[fd20::1]:80"}
	}
	for i, b := range own {
		if i == 0 || rapid.Bool().Draw(t, "second") {
			f.Backends = append(f.Backends, vip.Endpoint{Addr: addrPort(b), Weight: 1})
		}
	}
	return f
}
