package nodes

import (
	"context"
	"net/http"
	"time"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/api/request"
	"github.com/ironvip/ironvip/api/server"
	v1 "github.com/ironvip/ironvip/api/v1"
)

type moveInput struct {
	request.AddressPath
	Node string `path:"node"`
	Pin  bool   `query:"pin" doc:"the VIP returns to the host when the host has failed and is back"`
}

func (h *handlers) moveVIP(ctx context.Context, in *moveInput) (v1.Announcement, error) {
	addr, err := in.Address()
	if err != nil {
		return v1.Announcement{}, err
	}
	if _, err = h.known(addr); err == nil {
		err = h.checkNode(ctx, in.Node)
	}
	if err != nil {
		return v1.Announcement{}, err
	}
	n, _, _ := h.Announcements.Get(addr)
	_, drains := h.Drains()[in.Node]
	p, _, _ := h.Peers.Get(announce.PeerKey{Kind: announce.Neighbor, Name: in.Node})
	self := in.Node == h.http.Node
	switch {
	case n.Mode != announce.L2:
		return v1.Announcement{}, server.Refuse(http.StatusConflict, v1.CodeConflict, addr.String()+" has no owner to choose: with announce \""+n.Mode.String()+"\", every eligible host announces it",
			"drain the hosts that should not announce it: ironvip node drain")
	case in.Pin:
	case drains, p.Draining:
		return v1.Announcement{}, server.Refuse(http.StatusConflict, v1.CodeConflict, "node "+in.Node+" drains", "end its drain: ironvip node undrain "+in.Node)
	case !self && !p.Up:
		return v1.Announcement{}, server.Refuse(http.StatusConflict, v1.CodeConflict, "no heartbeats of node "+in.Node+" arrive here", "see ironvip announce peers")
	case self && n.Services == 0, !self && !n.Ranks(in.Node):
		return v1.Announcement{}, server.Refuse(http.StatusConflict, v1.CodeConflict, "node "+in.Node+" can't announce "+addr.String()+" now: "+n.Why, "see ironvip announce explain "+addr.String())
	}
	for _, p := range h.Peers.All() {
		if p.Differs {
			return v1.Announcement{}, server.Refuse(http.StatusConflict, v1.CodeConflict, "node "+p.Name+" would decide otherwise: "+p.Reason, "see ironvip announce peers, and upgrade all hosts")
		}
	}
	// The stamps of other hosts' moves may come from clocks that are ahead.
	err = h.SetMove(ctx, announce.Move{Addr: addr, Node: in.Node, Pin: in.Pin, Since: time.Unix(int64(n.Moved)+1, 0), Author: server.Caller(ctx)})
	if err != nil {
		return v1.Announcement{}, request.WriteFailed(err)
	}
	return h.known(addr)
}

func (h *handlers) endMove(ctx context.Context, in *request.AddressPath) (v1.Announcement, error) {
	addr, err := in.Address()
	if err != nil {
		return v1.Announcement{}, err
	}
	m, _, moved := h.Moves.Get(addr)
	if !moved {
		return v1.Announcement{}, server.Refuse(http.StatusNotFound, v1.CodeNotFound, "no move of "+addr.String()+" is known here", "see ironvip announce explain "+addr.String()+"; without a fleet, ask the host that has the VIP")
	}
	if err := h.EndMove(ctx, addr, m.Stamp()); err != nil {
		return v1.Announcement{}, request.WriteFailed(err)
	}
	if out, err := h.known(addr); err == nil {
		return out, nil
	}
	return v1.Announcement{VIP: addr, Mode: announce.Off.String(), State: v1.NotAnnounced, Why: "no service has this VIP", Places: []v1.AnnouncementPlace{}}, nil
}
