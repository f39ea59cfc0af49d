package l2

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/ironvip/ironvip/announce/l2/frame"
	"github.com/ironvip/ironvip/announce/l2/wire"
)

// Holder is another station that says it has an address.
type Holder struct {
	Addr      netip.Addr
	MAC       frame.MAC
	Interface string
}

// Ask asks by ARP which other stations have IPv4 addresses, on each Ethernet interface with a subnet
// that contains them, in the network namespace of the calling thread. It waits for the answers, and
// returns one for each address, in the order of addrs. Its question changes no neighbor cache. It
// needs CAP_NET_RAW.
func Ask(ctx context.Context, addrs []netip.Addr, wait time.Duration) ([]Holder, error) {
	asked, own, err := neighborhoods(addrs)
	if err != nil || len(asked) == 0 {
		return nil, err
	}
	s, err := wire.Open(frame.TypeARP)
	if err != nil {
		return nil, err
	}
	found := map[netip.Addr]Holder{}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = s.Receive(func(index int, b []byte) { // until Close
			for _, c := range frame.ARPClaims(b) {
				at, is := asked[index]
				if c.Kind != frame.Holds || !is || !slices.Contains(at.addrs, c.Addr) || slices.Contains(own, c.From) {
					continue
				}
				if _, known := found[c.Addr]; !known {
					found[c.Addr] = Holder{c.Addr, c.From, at.name}
				}
			}
		})
	}()
	for index, at := range asked {
		for _, a := range at.addrs {
			if sent := s.Send(index, frame.AppendProbe(nil, at.mac, a)); sent != nil {
				err = sent
			}
		}
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
	s.Close()
	<-ended
	var out []Holder
	for _, a := range addrs {
		if h, ok := found[a]; ok {
			out = append(out, h)
		}
	}
	return out, err
}

// neighborhood is an interface, and the addresses to ask for on it.
type neighborhood struct {
	name  string
	mac   frame.MAC
	addrs []netip.Addr
}

// neighborhoods returns the interfaces with a subnet of the addresses, by index, and the MACs of this
// host.
func neighborhoods(addrs []netip.Addr) (asked map[int]neighborhood, own []frame.MAC, err error) {
	links, err := net.Interfaces()
	if err != nil {
		return nil, nil, err
	}
	asked = map[int]neighborhood{}
	for _, l := range links {
		if len(l.HardwareAddr) != len(frame.MAC{}) {
			continue
		}
		at := neighborhood{name: l.Name, mac: frame.MAC(l.HardwareAddr)}
		own = append(own, at.mac)
		const usable = net.FlagUp | net.FlagRunning | net.FlagBroadcast
		if l.Flags&usable != usable {
			continue
		}
		subnets, err := l.Addrs()
		if err != nil {
			continue // it has just gone
		}
		for _, s := range subnets {
			p, err := netip.ParsePrefix(s.String())
			if err != nil || p.IsSingleIP() {
				continue
			}
			for _, a := range addrs {
				if a.Is4() && p.Contains(a) && !slices.Contains(at.addrs, a) {
					at.addrs = append(at.addrs, a)
				}
			}
		}
		if len(at.addrs) > 0 {
			asked[l.Index] = at
		}
	}
	return asked, own, nil
}
