package addresses

import (
	"context"
	"maps"
	"net/http"
	"net/netip"
	"slices"

	"github.com/ironvip/ironvip/api/request"
	"github.com/ironvip/ironvip/api/server"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/internal/access"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/vip"
)

func (h *handlers) leaseRoutes() {
	server.HandleJSON(h.http, server.Route{Path: v1.PathVIPs, Need: access.View, ID: "list-vips", Tag: "addresses", Summary: "List leases",
		Description: "Addresses and node ports that are held, in cooldown or reserved."}, h.listVIPs)
	server.HandleJSON(h.http, server.Route{Path: v1.PathVIPs + "/{ip}", Need: access.View, ID: "get-vip", Tag: "addresses", Summary: "Get the lease on an address"}, h.getVIP)
	server.HandleJSON(h.http, server.Route{Path: v1.PathPools, Need: access.View, ID: "list-pools", Tag: "addresses", Summary: "List pools"}, h.listPools)
}

type listVIPsInput struct {
	request.Paging
	Kind string `query:"kind" enum:"address,node_port" doc:"leases of this kind only"`
}

func (h *handlers) listVIPs(_ context.Context, in *listVIPsInput) (out v1.VIPList, err error) {
	out.Revision = h.Leases.Revision()
	wanted := request.Keys(h.Leases.All(), func(l **ipam.Lease) bool { return in.Kind == "" || in.Kind == KindOf((*l).Resource) })
	out.Items, out.Next, err = request.Page(in.Paging, resourceOrder, wanted, h.vip)
	return out, err
}

// KindOf returns the kind of a resource: v1.KindAddress or v1.KindNodePort.
func KindOf(r ipam.Resource) string {
	if r.Addr.IsValid() {
		return v1.KindAddress
	}
	return v1.KindNodePort
}

var resourceOrder = request.Order[ipam.Resource]{List: "vips", Compare: ipam.Resource.Compare}

// vip returns one lease in the API's form.
func (h *handlers) vip(r ipam.Resource) (v1.VIP, bool) {
	l, rev, ok := h.Leases.Get(r)
	if !ok {
		return v1.VIP{}, false
	}
	return vipView(l, rev), true
}

func vipView(l *ipam.Lease, rev uint64) v1.VIP {
	r := l.Resource
	out := v1.VIP{Kind: KindOf(r), Pool: l.Pool, State: l.State.String(), ShareKey: l.ShareKey,
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

func (h *handlers) getVIP(_ context.Context, in *request.AddressPath) (v1.VIP, error) {
	addr, err := in.Address()
	if err != nil {
		return v1.VIP{}, err
	}
	row, ok := h.vip(ipam.Resource{Addr: addr})
	if !ok {
		return v1.VIP{}, server.Refuse(http.StatusNotFound, v1.CodeNotFound, "no lease for "+addr.String(), "list all leases: ironvip vip list")
	}
	return row, nil
}

// MaxCount is the upper limit of counts: the largest integer that every JSON reader represents
// exactly.
const MaxCount = 1<<53 - 1

func heldOutView(h ipam.HeldOut) v1.HeldOut {
	return v1.HeldOut{Prefix: h.Prefix, Reason: string(h.Reason), Message: h.Detail}
}

// usedBy returns the use of a pool by namespace, in order.
func usedBy(of map[string]uint64) (out []v1.NamespaceUse) {
	for _, namespace := range slices.Sorted(maps.Keys(of)) {
		out = append(out, v1.NamespaceUse{Namespace: namespace, Addresses: min(of[namespace], MaxCount)})
	}
	return out
}

func (h *handlers) listPools(_ context.Context, in *request.Paging) (out v1.PoolList, err error) {
	pools := request.Convert(h.Pools(), func(p ipam.PoolStatus) v1.Pool {
		return v1.Pool{Name: p.Name, Removed: p.Removed,
			CIDRs: append([]netip.Prefix{}, p.CIDRs...), Exclude: append([]netip.Prefix{}, p.Exclude...), AutoAssign: p.AutoAssign, Namespaces: p.Namespaces, UsedBy: usedBy(p.UsedBy),
			Size: min(p.Size, MaxCount), Used: min(p.Used, MaxCount), Cooling: min(p.Cooling, MaxCount), Reserved: min(p.Reserved, MaxCount),
			HeldOut: min(p.HeldOut, MaxCount), HeldRanges: request.Convert(p.HeldOutRanges, heldOutView), Free: min(p.Free, MaxCount), Alarms: server.Problems(p.Alarms)}
	})
	out.Items, out.Next, err = request.List(*in, request.ByName.Of("pools"), pools, func(p *v1.Pool) string { return p.Name })
	return out, err
}
