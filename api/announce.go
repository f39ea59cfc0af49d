package api

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/ironvip/ironvip/api/request"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/announce/nodes"
	"github.com/ironvip/ironvip/api/server"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/fleet/roster"
	"github.com/ironvip/ironvip/internal/access"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/vip"
)

// Announcing is what the API shows of announcements, and the drains of nodes.
type Announcing struct {
	Announcements table.Reader[netip.Addr, announce.Announcement]
	Announced     table.Reader[announce.Place, announce.Announced]
	Peers         table.Reader[announce.PeerKey, announce.Peer]
	Stale         func() string // why these tables may be outdated; "" if they are not
	Drains        func() map[string]nodes.Drain
	SetDrain      func(ctx context.Context, node string, drain bool, author string) error
}

func (s *Server) announceRoutes() {
	server.HandleJSON(s.http, server.Route{Path: v1.PathAnnouncements, Need: access.View, ID: "list-announcements", Tag: "announce", Summary: "List announcements of VIPs",
		Description: "The VIPs of pools that are announced (announce.mode), with the host that announces each and why."}, s.listAnnouncements)
	server.HandleJSON(s.http, server.Route{Path: v1.PathAnnouncements + "/{ip}", Need: access.View, ID: "get-announcement", Tag: "announce", Summary: "Get the announcement of a VIP"}, s.getAnnouncement)
	server.HandleJSON(s.http, server.Route{Path: v1.PathAnnouncePeers, Need: access.View, ID: "list-announce-peers", Tag: "announce", Summary: "List the hosts and routers that the announcer is in touch with"}, s.listAnnouncePeers)
	const drain = v1.PathNodes + "/{name}/drain"
	server.HandleJSON(s.http, server.Route{Path: drain, Need: access.View, ID: "get-node-drain", Tag: "node", Summary: "Show whether a node drains"}, s.getNodeDrain)
	server.HandleJSON(s.http, server.Route{Method: http.MethodPut, Path: drain, Need: access.Operate, ID: "drain-node", Tag: "node", Summary: "Drain a node",
		Description: "Other hosts announce its VIPs. It survives restarts. Answers when the drain is stored; vips of a GET shows what is left."}, s.drainNode)
	server.HandleJSON(s.http, server.Route{Method: http.MethodDelete, Path: drain, Need: access.Operate, ID: "undrain-node", Tag: "node", Summary: "End the drain of a node"}, s.undrainNode)
}

var addrOrder = request.Order[netip.Addr]{List: "announcements", Compare: netip.Addr.Compare}

func (s *Server) listAnnouncements(_ context.Context, in *request.Paging) (out v1.AnnouncementList, err error) {
	a := s.Announcing
	// A row has a part of each of these tables.
	out.Revision, out.Stale = max(a.Announcements.Revision(), a.Announced.Revision(), a.Peers.Revision()), a.Stale()
	places := s.places()
	out.Items, out.Next, err = request.Page(*in, addrOrder, request.Keys(a.Announcements.All(), request.All), func(addr netip.Addr) (v1.Announcement, bool) { return s.announcement(addr, places) })
	return out, err
}

// places returns the results of all announcements by VIP.
func (s *Server) places() map[netip.Addr][]announce.Announced {
	out := map[netip.Addr][]announce.Announced{}
	for _, r := range s.Announcing.Announced.All() {
		out[r.Addr] = append(out[r.Addr], r)
	}
	return out
}

func (s *Server) announcement(addr netip.Addr, places map[netip.Addr][]announce.Announced) (v1.Announcement, bool) {
	n, rev, ok := s.Announcing.Announcements.Get(addr)
	if !ok {
		return v1.Announcement{}, false
	}
	out := v1.Announcement{VIP: addr, Mode: n.Mode.String(), Here: n.Here, Owner: n.Owner, Why: n.Why, Services: n.Services, Since: n.Since.UTC(), Places: []v1.AnnouncementPlace{}, Revision: rev}
	if n.Ranking != "" {
		out.Ranking = strings.Split(n.Ranking, "; ")
	}
	results := places[addr]
	if n.Mode == announce.BGP && n.Here {
		for key, p := range s.Announcing.Peers.All() {
			if key.Kind == announce.BGPSession {
				results = append(results, p.Result(&n))
			}
		}
	}
	for _, p := range results {
		out.Places = append(out.Places, v1.AnnouncementPlace{At: p.At, State: p.State, Reason: p.Reason, Since: p.Since.UTC(), Negotiated: p.Negotiated})
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

func (s *Server) getAnnouncement(_ context.Context, in *getVIPInput) (v1.Announcement, error) {
	addr, err := in.address()
	if err != nil {
		return v1.Announcement{}, err
	}
	out, ok := s.announcement(addr, s.places())
	if !ok {
		return v1.Announcement{}, server.Refuse(http.StatusNotFound, v1.CodeNotFound, addr.String()+" is not announced: it is not a VIP of a service in a pool with announce",
			"list announcements: GET "+v1.PathAnnouncements)
	}
	return out, nil
}

// peerOrder orders the peers by kind, other hosts before routers, and then by name.
var peerOrder = request.Order[announce.PeerKey]{List: "peers", Compare: func(a, b announce.PeerKey) int {
	return cmp.Or(-cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
}}

func (s *Server) listAnnouncePeers(_ context.Context, in *request.Paging) (out v1.AnnouncePeerList, err error) {
	out.Stale = s.Announcing.Stale()
	out.Items, out.Next, err = request.Page(*in, peerOrder, request.Keys(s.Announcing.Peers.All(), request.All), func(k announce.PeerKey) (v1.AnnouncePeer, bool) {
		p, _, ok := s.Announcing.Peers.Get(k)
		return v1.AnnouncePeer{Kind: string(p.Kind), Name: p.Name, Address: p.Address, State: p.State, Up: p.Up, Since: p.Since.UTC(), Reason: p.Reason, Hint: p.Hint,
			Draining: p.Draining, Weight: p.Weight, Eligible: p.Eligible, Owned: p.Owned, Lost: p.Lost, Negotiated: p.Negotiated}, ok
	})
	return out, err
}

// forgetNode removes a lost node.
func (s *Server) forgetNode(ctx context.Context, in *nodeInput) (v1.NodeForgotten, error) {
	err := s.ForgetNode(ctx, in.Name)
	switch {
	case errors.Is(err, roster.ErrUnknown):
		return v1.NodeForgotten{}, server.Refuse(http.StatusNotFound, v1.CodeNotFound, "no node \""+in.Name+"\"", "list nodes: GET "+v1.PathNodes)
	case errors.Is(err, roster.ErrPresent):
		return v1.NodeForgotten{}, server.Refuse(http.StatusConflict, v1.CodeConflict, err.Error(), "only a lost node can be forgotten: stop its agent, and wait until it is lost")
	case err != nil:
		return v1.NodeForgotten{}, request.WriteFailed(vip.BackendKey{}, err)
	}
	return v1.NodeForgotten{Node: in.Name}, nil
}

type nodeInput struct {
	Name string `path:"name"`
}

func (s *Server) nodeDrain(node string) v1.NodeDrain {
	d, draining := s.Announcing.Drains()[node]
	out := v1.NodeDrain{Node: node, Draining: draining, Author: d.Author}
	if draining {
		out.Since = request.When(d.Since)
	}
	vips := 0
	if node == s.Node {
		for _, n := range s.Announcing.Announcements.All() {
			if n.Here {
				vips++
			}
		}
	} else if p, _, ok := s.Announcing.Peers.Get(announce.PeerKey{Kind: announce.Neighbor, Name: node}); ok && p.Up {
		vips = p.Owned
	} else {
		return out
	}
	out.VIPs = &vips
	return out
}

func (s *Server) getNodeDrain(_ context.Context, in *nodeInput) (v1.NodeDrain, error) {
	return s.nodeDrain(in.Name), nil
}

func (s *Server) drainNode(ctx context.Context, in *nodeInput) (v1.NodeDrain, error) {
	return s.setNodeDrain(ctx, in.Name, true)
}

func (s *Server) undrainNode(ctx context.Context, in *nodeInput) (v1.NodeDrain, error) {
	return s.setNodeDrain(ctx, in.Name, false)
}

func (s *Server) setNodeDrain(ctx context.Context, node string, drain bool) (v1.NodeDrain, error) {
	if drain {
		if err := s.checkNode(ctx, node); err != nil {
			return v1.NodeDrain{}, err
		}
	}
	if err := s.Announcing.SetDrain(ctx, node, drain, server.Caller(ctx)); err != nil {
		return v1.NodeDrain{}, request.WriteFailed(vip.BackendKey{}, err)
	}
	return s.nodeDrain(node), nil
}

// checkNode refuses to drain a node that does not exist: the name is mistyped.
func (s *Server) checkNode(ctx context.Context, node string) error {
	if node == s.Node {
		return nil
	}
	list, err := s.Nodes(ctx)
	if err != nil {
		return request.WriteFailed(vip.BackendKey{}, err)
	}
	fleet := list.Store != configs.StoreBolt // else the drain of another host would have no effect there
	if slices.ContainsFunc(list.Items, func(n v1.Node) bool { return fleet && n.Name == node }) {
		return nil
	}
	return server.Refuse(http.StatusNotFound, v1.CodeNotFound, "no node \""+node+"\"", "list nodes: GET "+v1.PathNodes+"; without a fleet, drain a host through its own agent")
}
