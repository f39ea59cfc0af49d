package api

import (
	"context"
	"net/http"
	"net/netip"

	"github.com/ironvip/ironvip/api/request"

	"github.com/ironvip/ironvip/api/server"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/internal/access"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/vip"
)

func (s *Server) leaseRoutes() {
	server.HandleJSON(s.http, server.Route{Path: v1.PathVIPs, Need: access.View, ID: "list-vips", Tag: "addresses", Summary: "List leases",
		Description: "Addresses and node ports that are held, in cooldown or reserved."}, s.listVIPs)
	server.HandleJSON(s.http, server.Route{Path: v1.PathVIPs + "/{ip}", Need: access.View, ID: "get-vip", Tag: "addresses", Summary: "Get the lease on an address"}, s.getVIP)
	s.reservationRoutes()
	server.HandleJSON(s.http, server.Route{Path: v1.PathPools, Need: access.View, ID: "list-pools", Tag: "addresses", Summary: "List pools"}, s.listPools)
}

type listVIPsInput struct {
	request.Paging
	Kind string `query:"kind" enum:"address,node_port" doc:"leases of this kind only"`
}

func (s *Server) listVIPs(_ context.Context, in *listVIPsInput) (out v1.VIPList, err error) {
	out.Revision = s.Leases.Revision()
	wanted := request.Keys(s.Leases.All(), func(l **ipam.Lease) bool { return in.Kind == "" || in.Kind == kindOf((*l).Resource) })
	out.Items, out.Next, err = request.Page(in.Paging, resourceOrder, wanted, s.vip)
	return out, err
}

func kindOf(r ipam.Resource) string {
	if r.Addr.IsValid() {
		return v1.KindAddress
	}
	return v1.KindNodePort
}

var resourceOrder = request.Order[ipam.Resource]{List: "vips", Compare: ipam.Resource.Compare}

// vip returns one lease in the API's form.
func (s *Server) vip(r ipam.Resource) (v1.VIP, bool) {
	l, rev, ok := s.Leases.Get(r)
	if !ok {
		return v1.VIP{}, false
	}
	return vipView(l, rev), true
}

func vipView(l *ipam.Lease, rev uint64) v1.VIP {
	r := l.Resource
	out := v1.VIP{Kind: kindOf(r), Pool: l.Pool, State: l.State.String(), ShareKey: l.ShareKey,
		Holders: make([]v1.VIPHolder, 0, len(l.Holders)), Since: l.Since.Time(), Revision: rev}
	if l.Reservation != nil {
		out.Reservation = &v1.VIPReservation{Since: l.Reservation.Since.Time()}
		if k := l.Reservation.For; k != (vip.ServiceKey{}) {
			out.Reservation.For = k.String()
		}
	}
	if out.Kind == v1.KindAddress {
		out.Address = r.Addr.String()
	} else {
		out.NodePort, out.Protocol = r.NodePort, r.Protocol.String()
	}
	if l.State == ipam.Cooling {
		out.Until = request.When(l.Until.Time())
	}
	if l.State == ipam.Reserved {
		return out // its holder only repeats the reservation
	}
	for _, h := range l.Holders {
		holder := v1.VIPHolder{Service: h.Service.String(), Source: h.Source}
		if out.Kind == v1.KindNodePort {
			holder.Port = h.Port.String()
		}
		out.Holders = append(out.Holders, holder)
	}
	return out
}

type getVIPInput struct {
	IP string `path:"ip"`
}

func (s *Server) getVIP(_ context.Context, in *getVIPInput) (v1.VIP, error) {
	addr, err := in.address()
	if err != nil {
		return v1.VIP{}, err
	}
	row, ok := s.vip(ipam.Resource{Addr: addr})
	if !ok {
		return v1.VIP{}, server.Refuse(http.StatusNotFound, v1.CodeNotFound, "no lease for "+addr.String(), "list all leases: GET "+v1.PathVIPs)
	}
	return row, nil
}

func (in *getVIPInput) address() (netip.Addr, error) {
	addr, err := netip.ParseAddr(in.IP)
	if err != nil {
		return addr, server.BadRequest("\""+in.IP+"\" is not an address", "use an IPv4 or IPv6 address",
			vip.Problem{Code: vip.CodeInvalid, Field: "path.ip", Message: "is not an address"})
	}
	return addr.Unmap(), nil
}

// maxCount is the upper limit of counts: the largest integer that every JSON reader represents
// exactly.
const maxCount = 1<<53 - 1

func heldOutView(h ipam.HeldOut) v1.HeldOut {
	return v1.HeldOut{Prefix: h.Prefix, Reason: string(h.Reason), Message: h.Detail}
}

func (s *Server) listPools(_ context.Context, in *request.Paging) (out v1.PoolList, err error) {
	pools := request.Convert(s.Pools(), func(p ipam.PoolStatus) v1.Pool {
		return v1.Pool{Name: p.Name, Removed: p.Removed,
			CIDRs: append([]netip.Prefix{}, p.CIDRs...), Exclude: append([]netip.Prefix{}, p.Exclude...), AutoAssign: p.AutoAssign,
			Size: min(p.Size, maxCount), Used: min(p.Used, maxCount), Cooling: min(p.Cooling, maxCount), Reserved: min(p.Reserved, maxCount),
			HeldOut: min(p.HeldOut, maxCount), HeldRanges: request.Convert(p.HeldOutRanges, heldOutView), Free: min(p.Free, maxCount), Alarms: server.Problems(p.Alarms)}
	})
	out.Items, out.Next, err = request.List(*in, request.ByName.Of("pools"), pools, func(p *v1.Pool) string { return p.Name })
	return out, err
}

// leaseKind is what leases are counted by.
type leaseKind struct {
	of    string // v1.KindAddress or v1.KindNodePort
	state ipam.LeaseState
}

// leaseCounts makes the table maintain how many leases are of each kind, and returns a function that reads it.
func leaseCounts(leases table.Reader[ipam.Resource, *ipam.Lease]) func() map[leaseKind]int {
	return table.Counts(leases, func(l **ipam.Lease) leaseKind {
		if (*l).Resource.Addr.IsValid() {
			return leaseKind{v1.KindAddress, (*l).State}
		}
		return leaseKind{v1.KindNodePort, (*l).State}
	})
}
