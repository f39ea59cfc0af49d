package nodes

import (
	"cmp"
	"context"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/api/request"
	"github.com/ironvip/ironvip/api/server"
	v1 "github.com/ironvip/ironvip/api/v1"
)

var addrOrder = request.Order[netip.Addr]{List: "announcements", Compare: netip.Addr.Compare}

func (h *handlers) listAnnouncements(_ context.Context, in *request.Paging) (out v1.AnnouncementList, err error) {
	// A row has a part of each of these tables.
	out.Revision, out.Stale = max(h.Announcements.Revision(), h.Announced.Revision(), h.Peers.Revision()), h.Stale()
	places := h.places()
	out.Items, out.Next, err = request.Page(*in, addrOrder, request.Keys(h.Announcements.All(), request.All), func(addr netip.Addr) (v1.Announcement, bool) { return h.announcement(addr, places) })
	return out, err
}

// places returns the results of all announcements by VIP.
func (h *handlers) places() map[netip.Addr][]announce.Announced {
	out := map[netip.Addr][]announce.Announced{}
	for _, r := range h.Announced.All() {
		out[r.Addr] = append(out[r.Addr], r)
	}
	return out
}

func (h *handlers) announcement(addr netip.Addr, places map[netip.Addr][]announce.Announced) (v1.Announcement, bool) {
	n, rev, ok := h.Announcements.Get(addr)
	if !ok {
		return v1.Announcement{}, false
	}
	out := v1.Announcement{VIP: addr, Mode: n.Mode.String(), Here: n.Here, Owner: n.Owner, Why: n.Why, Policy: n.Route.Policy.Policy().From, Services: n.Services, Since: n.Since.UTC(), Places: []v1.AnnouncementPlace{}, Revision: rev}
	if n.Ranking != "" {
		out.Ranking = strings.Split(n.Ranking, "; ")
	}
	if m, _, moved := h.Moves.Get(addr); moved {
		out.Move = &v1.Move{Node: m.Node, Pin: m.Pin, Since: m.Since, Author: m.Author}
	}
	results, routes := places[addr], map[string][]v1.AnnouncementRoute{}
	if n.Mode == announce.BGP && n.Here {
		for key, p := range h.Peers.All() {
			if key.Kind == announce.BGPSession {
				r, sent := p.Result(&n)
				results, routes[r.At] = append(results, r), routesOf(sent)
			}
		}
	}
	for _, p := range results {
		out.Places = append(out.Places, v1.AnnouncementPlace{At: p.At, State: p.State, Reason: p.Reason, Since: p.Since.UTC(), Negotiated: p.Negotiated, Routes: routes[p.At]})
	}
	slices.SortFunc(out.Places, func(a, b v1.AnnouncementPlace) int { return cmp.Compare(a.At, b.At) })
	switch {
	case n.Here:
		out.State, out.Reason = announce.Outcome(n.Mode, results)
	case n.Mode != announce.L2:
		out.State = v1.NotAnnounced
	case n.Owner != "":
		out.State = v1.AnnouncedElsewhere
	default:
		out.State = v1.AnnouncedNowhere
	}
	return out, true
}

func routesOf(sent []announce.SentRoute) (out []v1.AnnouncementRoute) {
	for _, r := range sent {
		out = append(out, v1.AnnouncementRoute{Prefix: r.Prefix, Policy: r.From, Communities: r.Communities, MED: r.MED, LocalPref: r.LocalPref,
			Prepend: r.Prepend, LinkBandwidth: r.LinkBandwidth})
	}
	return out
}

func (h *handlers) getAnnouncement(_ context.Context, in *request.AddressPath) (v1.Announcement, error) {
	addr, err := in.Address()
	if err != nil {
		return v1.Announcement{}, err
	}
	return h.known(addr)
}

// known returns the announcement of a VIP, or the error of a request about an address that has none.
func (h *handlers) known(addr netip.Addr) (v1.Announcement, error) {
	out, ok := h.announcement(addr, h.places())
	if !ok {
		return v1.Announcement{}, server.Refuse(http.StatusNotFound, v1.CodeNotFound, addr.String()+" is not announced: it is not a VIP of a service in a pool with announce",
			"list announcements: ironvip announce list")
	}
	return out, nil
}

// peerOrder orders the peers by kind, other hosts before routers, and then by name.
var peerOrder = request.Order[announce.PeerKey]{List: "peers", Compare: func(a, b announce.PeerKey) int {
	return cmp.Or(-cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
}}

func (h *handlers) listAnnouncePeers(_ context.Context, in *request.Paging) (out v1.AnnouncePeerList, err error) {
	out.Stale = h.Stale()
	out.Items, out.Next, err = request.Page(*in, peerOrder, request.Keys(h.Peers.All(), request.All), func(k announce.PeerKey) (v1.AnnouncePeer, bool) {
		p, _, ok := h.Peers.Get(k)
		return v1.AnnouncePeer{Kind: string(p.Kind), Name: p.Name, Address: p.Address, State: p.State, Up: p.Up, Since: p.Since.UTC(), Reason: p.Reason, Hint: p.Hint,
			Draining: p.Draining, Weight: p.Weight, Eligible: p.Eligible, Owned: p.Owned, Lost: p.Lost, Negotiated: p.Negotiated}, ok
	})
	return out, err
}
