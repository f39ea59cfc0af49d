// Package nodes serves the routes of the nodes of a fleet: who they are, what each finds of backends, which VIPs each announces,
// and drains.
//
// Its input is requests. Its output is rows of the announcer's tables and of what the nodes share. It owns no table.
//
// Files:
//
//	nodes.go          the list of nodes, lost nodes, drains
//	announcements.go  announcements of VIPs, and the announcer's peers
//	moves.go          moves of VIPs
package nodes

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"slices"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/announce/nodes"
	"github.com/ironvip/ironvip/api/request"
	"github.com/ironvip/ironvip/api/server"
	"github.com/ironvip/ironvip/api/status"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/fleet"
	"github.com/ironvip/ironvip/fleet/roster"
	"github.com/ironvip/ironvip/internal/access"
	"github.com/ironvip/ironvip/internal/table"
)

// Deps contains what the handlers read and call, beside the tables of statuses.
type Deps struct {
	// List lists the fleet. With an error that is fleet.ErrUnavailable, the caller may retry.
	List func(context.Context) (v1.NodeList, error)
	// Forget removes a lost node from the list. Its errors are those of roster.Forget.
	Forget        func(ctx context.Context, node string) error
	Announcements table.Reader[netip.Addr, announce.Announcement]
	Announced     table.Reader[announce.Place, announce.Announced]
	Peers         table.Reader[announce.PeerKey, announce.Peer]
	Stale         func() string // why Announcements, Announced and Peers may be outdated; "" if they are not
	Drains        func() map[string]nodes.Drain
	SetDrain      func(ctx context.Context, node string, drain bool, author string) error
	Moves         table.Reader[netip.Addr, announce.Move]
	// SetMove moves a VIP, and EndMove ends the move with a stamp.
	SetMove func(context.Context, announce.Move) error
	EndMove func(ctx context.Context, addr netip.Addr, stamp uint32) error
}

type handlers struct {
	Deps
	*status.Tables
	http *server.Server
}

// AddRoutes adds the routes to a server.
func AddRoutes(s *server.Server, t *status.Tables, d Deps) {
	h := &handlers{d, t, s}
	server.HandleJSON(s, server.Route{Path: v1.PathNodes, Need: access.View, ID: "list-nodes", Tag: "node", Summary: "List the nodes of the fleet",
		Description: "Nodes that are lost included. Without a shared store, the node that answers and the peers of its announcer. 503 while the shared store is unavailable."}, h.listNodes)
	server.HandleJSON(s, server.Route{Method: http.MethodDelete, Path: v1.PathNodes + "/{name}", Need: access.Operate, ID: "forget-node", Tag: "node", Summary: "Forget a lost node",
		Description: "Removes a node that will not return from the list, and its drain. 409 if the node is present."}, h.forgetNode)
	server.HandleJSON(s, server.Route{Path: v1.PathAnnouncements, Need: access.View, ID: "list-announcements", Tag: "announce", Summary: "List announcements of VIPs",
		Description: "The VIPs of pools that are announced (announce.mode), with the host that announces each and why."}, h.listAnnouncements)
	server.HandleJSON(s, server.Route{Path: v1.PathAnnouncements + "/{ip}", Need: access.View, ID: "get-announcement", Tag: "announce", Summary: "Get the announcement of a VIP"}, h.getAnnouncement)
	server.HandleJSON(s, server.Route{Path: v1.PathAnnouncePeers, Need: access.View, ID: "list-announce-peers", Tag: "announce", Summary: "List the hosts and routers that the announcer is in touch with"}, h.listAnnouncePeers)
	const move = v1.PathAnnouncements + "/{ip}/move"
	server.HandleJSON(s, server.Route{Method: http.MethodPut, Path: move + "/{node}", Need: access.Operate, ID: "move-vip", Tag: "announce", Summary: "Move a VIP to a host",
		Description: "The host announces the VIP at layer 2 until it fails, drains or is not eligible; with pin=true, whenever it can. A later move replaces it. " +
			"Without a fleet, ask the host itself. Answers when the move is stored; owner of a GET shows the result. 409 if the move would have no effect."}, h.moveVIP)
	server.HandleJSON(s, server.Route{Method: http.MethodDelete, Path: move, Need: access.Operate, ID: "end-move", Tag: "announce", Summary: "End the move of a VIP"}, h.endMove)
	const drain = v1.PathNodes + "/{name}/drain"
	server.HandleJSON(s, server.Route{Path: drain, Need: access.View, ID: "get-node-drain", Tag: "node", Summary: "Show whether a node drains"}, h.getNodeDrain)
	server.HandleJSON(s, server.Route{Method: http.MethodPut, Path: drain, Need: access.Operate, ID: "drain-node", Tag: "node", Summary: "Drain a node",
		Description: "Other hosts announce its VIPs. It survives restarts. Answers when the drain is stored; vips of a GET shows what is left."}, h.drainNode)
	server.HandleJSON(s, server.Route{Method: http.MethodDelete, Path: drain, Need: access.Operate, ID: "undrain-node", Tag: "node", Summary: "End the drain of a node"}, h.undrainNode)
}

func (h *handlers) listNodes(ctx context.Context, in *request.Paging) (out v1.NodeList, err error) {
	out, err = h.List(ctx)
	switch {
	case errors.Is(err, fleet.ErrUnavailable):
		return out, request.StoreAway(err.Error(), "see ironvip status for this node alone; traffic is not affected")
	case err != nil:
		return out, err
	}
	out.Items, out.Next, err = request.List(*in, request.ByName.Of("nodes"), out.Items, func(n *v1.Node) string { return n.Name })
	return out, err
}

// forgetNode removes a lost node.
func (h *handlers) forgetNode(ctx context.Context, in *nodeInput) (v1.NodeForgotten, error) {
	err := h.Forget(ctx, in.Name)
	switch {
	case errors.Is(err, roster.ErrUnknown):
		return v1.NodeForgotten{}, server.Refuse(http.StatusNotFound, v1.CodeNotFound, "no node \""+in.Name+"\"", "list nodes: ironvip node list")
	case errors.Is(err, roster.ErrPresent):
		return v1.NodeForgotten{}, server.Refuse(http.StatusConflict, v1.CodeConflict, err.Error(), "only a lost node can be forgotten: stop its agent, and wait until it is lost")
	case err != nil:
		return v1.NodeForgotten{}, request.WriteFailed(err)
	}
	return v1.NodeForgotten{Node: in.Name}, nil
}

type nodeInput struct {
	Name string `path:"name"`
}

func (h *handlers) nodeDrain(node string) v1.NodeDrain {
	d, draining := h.Drains()[node]
	out := v1.NodeDrain{Node: node, Draining: draining, Author: d.Author}
	if draining {
		out.Since = request.When(d.Since)
	}
	vips := 0
	if node == h.http.Node {
		for _, n := range h.Announcements.All() {
			if n.Here {
				vips++
			}
		}
	} else if p, _, ok := h.Peers.Get(announce.PeerKey{Kind: announce.Neighbor, Name: node}); ok && p.Up {
		vips = p.Owned
	} else {
		return out
	}
	out.VIPs = &vips
	return out
}

func (h *handlers) getNodeDrain(_ context.Context, in *nodeInput) (v1.NodeDrain, error) {
	return h.nodeDrain(in.Name), nil
}

func (h *handlers) drainNode(ctx context.Context, in *nodeInput) (v1.NodeDrain, error) {
	return h.setNodeDrain(ctx, in.Name, true)
}

func (h *handlers) undrainNode(ctx context.Context, in *nodeInput) (v1.NodeDrain, error) {
	return h.setNodeDrain(ctx, in.Name, false)
}

func (h *handlers) setNodeDrain(ctx context.Context, node string, drain bool) (v1.NodeDrain, error) {
	if drain {
		if err := h.checkNode(ctx, node); err != nil {
			return v1.NodeDrain{}, err
		}
	}
	if err := h.SetDrain(ctx, node, drain, server.Caller(ctx)); err != nil {
		return v1.NodeDrain{}, request.WriteFailed(err)
	}
	return h.nodeDrain(node), nil
}

// checkNode refuses to drain a node, or to move a VIP there, that does not exist: the name is mistyped.
func (h *handlers) checkNode(ctx context.Context, node string) error {
	if node == h.http.Node {
		return nil
	}
	list, err := h.List(ctx)
	if err != nil {
		return request.WriteFailed(err)
	}
	fleet := list.Store != configs.StoreBolt // else this host can't tell another one
	if slices.ContainsFunc(list.Items, func(n v1.Node) bool { return fleet && n.Name == node }) {
		return nil
	}
	return server.Refuse(http.StatusNotFound, v1.CodeNotFound, "no node \""+node+"\"", "list nodes: ironvip node list; without a fleet, ask the host's own agent")
}
