package api

import (
	"cmp"
	"context"
	"net/http"
	"net/netip"
	"strconv"
	"strings"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/vip"
)

func (s *Server) leaseRoutes() {
	register(s, operation{method: http.MethodGet, path: v1.PathVIPs, id: "list-vips", tag: "addresses", summary: "List leases",
		description: "Addresses and node ports that are held or in cooldown."}, s.listVIPs)
	register(s, operation{method: http.MethodGet, path: v1.PathVIPs + "/{ip}", id: "get-vip", tag: "addresses", summary: "Get the lease on an address"}, s.getVIP)
	register(s, operation{method: http.MethodGet, path: v1.PathPools, id: "list-pools", tag: "addresses", summary: "List pools"}, s.listPools)
}

type listVIPsInput struct {
	Paging
	Kind string `query:"kind" enum:"address,node_port" doc:"leases of this kind only"`
}

type listVIPsOutput struct{ Body v1.VIPList }

func (s *Server) listVIPs(_ context.Context, in *listVIPsInput) (*listVIPsOutput, error) {
	after, err := in.after()
	if err != nil {
		return nil, err
	}
	last := ipam.Resource{}
	if after != "" {
		if last, err = parseResource(after); err != nil {
			return nil, badCursor()
		}
	}
	out := &listVIPsOutput{}
	out.Body.Revision = s.Leases.Revision()
	var keys []ipam.Resource
	for r := range s.Leases.All() {
		isAddress := r.Addr.IsValid()
		if in.Kind != "" && isAddress != (in.Kind == v1.KindAddress) || after != "" && compareResources(r, last) <= 0 {
			continue
		}
		keys = append(keys, r)
	}
	items, last, more := page(keys, compareResources, in.Limit, s.vip)
	out.Body.Items = items
	if more {
		out.Body.Next = encodeCursor(resourceKey(last))
	}
	return out, nil
}

// compareResources orders addresses before node ports.
func compareResources(a, b ipam.Resource) int {
	if a.Addr.IsValid() != b.Addr.IsValid() {
		if a.Addr.IsValid() {
			return -1
		}
		return 1
	}
	return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.NodePort, b.NodePort), cmp.Compare(a.Protocol, b.Protocol))
}

// resourceKey returns "192.0.2.10", or "30080/tcp" for a node port.
func resourceKey(r ipam.Resource) string {
	if r.Addr.IsValid() {
		return r.Addr.String()
	}
	return vip.PortKey{Port: r.NodePort, Protocol: r.Protocol}.String()
}

func parseResource(s string) (r ipam.Resource, err error) {
	number, protocol, isPort := strings.Cut(s, "/")
	if !isPort {
		r.Addr, err = netip.ParseAddr(s)
		return r, err
	}
	n, err := strconv.ParseUint(number, 10, 16)
	if err != nil {
		return r, err
	}
	r.NodePort = uint16(n)
	return r, r.Protocol.UnmarshalText([]byte(protocol))
}

// vip returns one lease in the API's form.
func (s *Server) vip(r ipam.Resource) (v1.VIP, bool) {
	l, rev, ok := s.Leases.Get(r)
	if !ok {
		return v1.VIP{}, false
	}
	out := v1.VIP{Kind: v1.KindAddress, Address: r.String(), Pool: l.Pool, State: l.State.String(), ShareKey: l.ShareKey,
		Holders: make([]v1.VIPHolder, 0, len(l.Holders)), Since: l.Since.Time(), Revision: rev}
	if !r.Addr.IsValid() {
		out.Kind, out.Address, out.NodePort, out.Protocol = v1.KindNodePort, "", r.NodePort, r.Protocol.String()
	}
	if l.State == ipam.Cooling {
		out.Until = when(l.Until.Time())
	}
	for _, h := range l.Holders {
		holder := v1.VIPHolder{Service: h.Service.String(), Source: h.Source}
		if out.Kind == v1.KindNodePort {
			holder.Port = h.Port.String()
		}
		out.Holders = append(out.Holders, holder)
	}
	return out, true
}

type getVIPInput struct {
	IP string `path:"ip"`
}

type getVIPOutput struct{ Body v1.VIP }

func (s *Server) getVIP(_ context.Context, in *getVIPInput) (*getVIPOutput, error) {
	addr, err := netip.ParseAddr(in.IP)
	if err != nil {
		return nil, badRequest("\""+in.IP+"\" is not an address", "use an IPv4 or IPv6 address",
			vip.Problem{Code: vip.CodeInvalid, Field: "path.ip", Message: "is not an address"})
	}
	row, ok := s.vip(ipam.Resource{Addr: addr.Unmap()})
	if !ok {
		return nil, refuse(http.StatusNotFound, v1.CodeNotFound, "no lease for "+addr.String(), "list all leases: GET "+v1.PathVIPs)
	}
	return &getVIPOutput{Body: row}, nil
}

type listPoolsOutput struct{ Body v1.PoolList }

// maxCount is the upper limit of counts: the largest integer that every JSON reader represents
// exactly.
const maxCount = 1<<53 - 1

func (s *Server) listPools(context.Context, *struct{}) (*listPoolsOutput, error) {
	if s.Pools == nil {
		return nil, unavailable("pools")
	}
	out := &listPoolsOutput{Body: v1.PoolList{Items: []v1.Pool{}}}
	for _, p := range s.Pools() {
		out.Body.Items = append(out.Body.Items, v1.Pool{Name: p.Name, Removed: p.Removed,
			CIDRs: append([]netip.Prefix{}, p.CIDRs...), Exclude: append([]netip.Prefix{}, p.Exclude...), AutoAssign: p.AutoAssign,
			Size: min(p.Size, maxCount), Used: min(p.Used, maxCount), Cooling: min(p.Cooling, maxCount),
			HeldOut: min(p.HeldOut, maxCount), Free: min(p.Free, maxCount), Alarms: problems(p.Alarms)})
	}
	return out, nil
}
