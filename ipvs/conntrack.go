package ipvs

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/ironvip/ironvip/vip"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// flows says which connection tracking entries of UDP clients have become
// wrong. UDP has no end of a connection that would make them go by themselves:
// a client that keeps sending would be sent to a backend that has left for as
// long as it does. It is a netlink.CustomConntrackFilter.
type flows struct {
	frontends map[vip.FrontendKey]struct{} // every entry of these
	backends  map[backendFlows]struct{}    // those that went to one backend
}

type backendFlows struct {
	frontend vip.FrontendKey
	backend  netip.AddrPort
}

func (f *flows) frontend(k vip.FrontendKey) {
	if k.Protocol != vip.UDP {
		return
	}
	if f.frontends == nil {
		f.frontends = map[vip.FrontendKey]struct{}{}
	}
	f.frontends[k] = struct{}{}
}

func (f *flows) backend(k vip.FrontendKey, b netip.AddrPort) {
	if k.Protocol != vip.UDP {
		return
	}
	if f.backends == nil {
		f.backends = map[backendFlows]struct{}{}
	}
	f.backends[backendFlows{k, b}] = struct{}{}
}

// MatchConntrackFlow implements netlink.CustomConntrackFilter.
func (f *flows) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	if flow.Forward.Protocol != unix.IPPROTO_UDP {
		return false
	}
	dst, ok := netip.AddrFromSlice(flow.Forward.DstIP)
	if !ok {
		return false
	}
	k := vip.FrontendKey{Addr: dst.Unmap(), Port: flow.Forward.DstPort, Protocol: vip.UDP}
	if _, ok := f.frontends[k]; ok {
		return true
	}
	src, _ := netip.AddrFromSlice(flow.Reverse.SrcIP)
	_, ok = f.backends[backendFlows{k, netip.AddrPortFrom(src.Unmap(), flow.Reverse.SrcPort)}]
	return ok
}

// deleteFlows deletes the entries. It reads the families' whole connection
// tracking tables, once for a batch, and only when UDP backends went.
func deleteFlows(f *flows, stats *counters) error {
	var v4, v6 bool
	note := func(a netip.Addr) { v4, v6 = v4 || a.Is4(), v6 || a.Is6() }
	for k := range f.frontends {
		note(k.Addr)
	}
	for b := range f.backends {
		note(b.frontend.Addr)
	}
	if !v4 && !v6 {
		return nil
	}
	h, err := netlink.NewHandle(unix.NETLINK_NETFILTER)
	if err != nil {
		return fmt.Errorf("open the connection tracking table: %w", err)
	}
	defer h.Close()
	var errs []error
	for family, wanted := range map[netlink.InetFamily]bool{unix.AF_INET: v4, unix.AF_INET6: v6} {
		if !wanted {
			continue
		}
		n, err := h.ConntrackDeleteFilters(netlink.ConntrackTable, family, f)
		stats.conntrack.Add(uint64(n))
		if err != nil {
			errs = append(errs, fmt.Errorf("delete connection tracking entries of udp backends that left: %w", err))
		}
	}
	return errors.Join(errs...)
}
