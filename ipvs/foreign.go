package ipvs

import (
	"context"
	"encoding/binary"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/ironvip/ironvip/ipvs/internal/kernel"
	"github.com/ironvip/ironvip/vip"
)

// Foreign returns what others have in IPVS, as the commands of ipvsadm that make it: each service by key, then its destinations
// in the order in which they were added. A service by mark is ours, too, if probes reports its mark.
func (t *Target) Foreign(ctx context.Context, probes func(mark uint32) bool) (commands [][]string, err error) {
	ours, err := t.readKernel(ctx)
	if err != nil {
		return nil, err
	}
	all, err := t.kernel.Services(ctx)
	slices.SortFunc(all, func(a, b kernel.Service) int { return vip.CompareFrontendKeys(a.Key, b.Key) })
	for i := range all {
		s := &all[i]
		if key, known := t.frontendOf(s); known && ours.states[key] != nil || s.Mark != 0 && probes(s.Mark) {
			continue
		}
		commands = append(commands, serviceCommand(s))
		var dests []kernel.DestStatus
		if dests, err = t.kernel.Destinations(ctx, s.Key, s.Mark); err != nil {
			break
		}
		for _, d := range slices.Backward(dests) {
			commands = append(commands, destCommand(s, &d.Dest))
		}
	}
	return commands, err
}

// serviceWords name a service in a command of ipvsadm.
func serviceWords(verb string, s *kernel.Service) []string {
	switch {
	case s.Mark != 0 && s.Key.Addr.Is6():
		return []string{verb, "-f", strconv.Itoa(int(s.Mark)), "-6"}
	case s.Mark != 0:
		return []string{verb, "-f", strconv.Itoa(int(s.Mark))}
	}
	option := map[vip.Protocol]string{vip.TCP: "-t", vip.UDP: "-u", vip.SCTP: "--sctp-service"}[s.Key.Protocol]
	return []string{verb, option, s.Key.AddrPort().String()}
}

func serviceCommand(s *kernel.Service) []string {
	out := append(serviceWords("-A", s), "-s", s.Scheduler)
	if s.Flags&kernel.FlagPersistent != 0 {
		out = append(out, "-p", strconv.Itoa(int(s.Timeout)))
		var mask [4]byte // in network order
		binary.NativeEndian.PutUint32(mask[:], s.Netmask)
		switch {
		case s.Key.Addr.Is6() && s.Netmask != kernel.Netmask6:
			out = append(out, "-M", strconv.Itoa(int(s.Netmask)))
		case s.Key.Addr.Is4() && s.Netmask != kernel.Netmask4:
			out = append(out, "-M", netip.AddrFrom4(mask).String())
		}
	}
	if s.PE != "" {
		out = append(out, "--pe", s.PE)
	}
	if s.Flags&kernel.FlagOnePacket != 0 {
		out = append(out, "-o")
	}
	var flags []string
	for n, flag := range []uint32{kernel.FlagSched1, kernel.FlagSched2, kernel.FlagSched3} {
		if s.Flags&flag != 0 {
			flags = append(flags, "flag-"+strconv.Itoa(n+1))
		}
	}
	if len(flags) > 0 {
		out = append(out, "-b", strings.Join(flags, ","))
	}
	return out
}

func destCommand(s *kernel.Service, d *kernel.Dest) []string {
	method := "-g"
	switch d.Forward {
	case kernel.ForwardNAT:
		method = "-m"
	case kernel.ForwardTunnel:
		method = "-i"
	}
	out := append(serviceWords("-a", s), "-r", d.Addr.String(), method, "-w", strconv.Itoa(int(d.Weight)))
	if d.Upper != 0 {
		out = append(out, "-x", strconv.Itoa(int(d.Upper)))
	}
	if d.Lower != 0 {
		out = append(out, "-y", strconv.Itoa(int(d.Lower)))
	}
	if kind := []string{"ipip", "gue", "gre"}; d.Tunnel.Type > 0 && int(d.Tunnel.Type) < len(kind) {
		out = append(out, "--tun-type", kind[d.Tunnel.Type])
	}
	return out
}
