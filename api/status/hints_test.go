package status

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/vip"
)

// The hint of a refusal names the other dataplanes that can serve the frontend, and no other ones.
func TestHintsNameTheDataplanesThatCan(t *testing.T) {
	refusals := 0
	for name, change := range map[string]func(*vip.Frontend){
		"nothing special":   func(*vip.Frontend) {},
		"port range":        func(f *vip.Frontend) { f.Key.LastPort = 99 },
		"port range of UDP": func(f *vip.Frontend) { f.Key.LastPort, f.Key.Protocol = 99, vip.UDP },
		"range and one packet": func(f *vip.Frontend) {
			f.Key.LastPort, f.Key.Protocol, f.OnePacket, f.Forward = 99, vip.UDP, true, vip.ForwardDirect
			f.Backends[0].Addr = netip.AddrPortFrom(f.Backends[0].Addr.Addr(), 0) // the port of the client
		},
		"one packet":         func(f *vip.Frontend) { f.Key.Protocol, f.OnePacket, f.Forward = vip.UDP, true, vip.ForwardDirect },
		"SCTP":               func(f *vip.Frontend) { f.Key.Protocol = vip.SCTP },
		"SCTP and a flag":    func(f *vip.Frontend) { f.Key.Protocol, f.Scheduler = vip.SCTP, vip.NeverQueue },
		"inside":             func(f *vip.Frontend) { f.Key.Audience = vip.InternalClients },
		"masquerade never":   func(f *vip.Frontend) { f.Masquerade = vip.MasqueradeNever },
		"direct routing":     func(f *vip.Frontend) { f.Forward = vip.ForwardDirect },
		"tunnels":            func(f *vip.Frontend) { f.Forward = vip.ForwardTunnel },
		"limit of a backend": func(f *vip.Frontend) { f.Backends[0].MaxConnections = 1 },
		"PROXY protocol":     func(f *vip.Frontend) { f.Relay = &vip.ProxySettings{ProxyProtocol: 2} },
		"clients by proxies": func(f *vip.Frontend) {
			f.Relay = &vip.ProxySettings{AcceptProxyFrom: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}
		},
		"scheduler and tunnels": func(f *vip.Frontend) { f.Scheduler, f.Forward = vip.WeightedFailover, vip.ForwardTunnel },
	} {
		refusals += namesThatCan(t, name, change)
	}
	for _, s := range vip.Schedulers() {
		refusals += namesThatCan(t, s.String(), func(f *vip.Frontend) { f.Scheduler = s })
	}
	expect.AtLeast(t, refusals, 20, "only %d refusals", refusals)
}

func namesThatCan(t *testing.T, name string, change func(*vip.Frontend)) (refusals int) {
	t.Helper()
	f := vip.Frontend{Key: vip.FrontendKey{Addr: netip.MustParseAddr("192.0.2.1"), Port: 80, Protocol: vip.TCP}, Scheduler: vip.WeightedRoundRobin,
		Backends: []vip.Endpoint{{Addr: netip.MustParseAddrPort("10.0.0.1:80"), Weight: 1}}}
	change(&f)
	for _, mode := range configs.Modes() {
		problem := Unsupported(mode, &f)
		if problem == nil || mode == configs.ModeOff { // which refuses all
			continue
		}
		refusals++
		_, named, _ := strings.Cut(problem.Hint, "dataplane.mode ")
		for _, other := range configs.Modes() {
			if can := Unsupported(other, &f) == nil; can != strings.Contains(named, `"`+other+`"`) {
				t.Errorf("%s: %s refuses with the hint %q, and %s can serve it: %t", name, mode, problem.Hint, other, can)
			}
		}
	}
	return refusals
}
