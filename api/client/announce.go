package client

import (
	"context"
	"net/http"
	"net/url"

	v1 "github.com/ironvip/ironvip/api/v1"
)

// Announcements lists the announcements of VIPs.
func (c *Client) Announcements(ctx context.Context) (v1.AnnouncementList, error) {
	return fetchAll(ctx, c, call{path: v1.PathAnnouncements, query: largePages()}, func(l *v1.AnnouncementList) (*[]v1.Announcement, *string) { return &l.Items, &l.Next })
}

// Announcement returns the announcement of one VIP.
func (c *Client) Announcement(ctx context.Context, address string) (v1.Announcement, error) {
	return fetch[v1.Announcement](ctx, c, call{path: v1.AnnouncementPath(address)})
}

// MoveVIP moves a VIP to a node; with pin, the VIP returns there whenever the node can have it.
func (c *Client) MoveVIP(ctx context.Context, address, node string, pin bool) (v1.Announcement, error) {
	q := url.Values{}
	if pin {
		q.Set("pin", "true")
	}
	return fetch[v1.Announcement](ctx, c, call{method: http.MethodPut, path: v1.AnnouncementMovePath(address, node), query: q})
}

// EndMove ends the move of a VIP.
func (c *Client) EndMove(ctx context.Context, address string) (v1.Announcement, error) {
	return fetch[v1.Announcement](ctx, c, call{method: http.MethodDelete, path: v1.AnnouncementMovePath(address, "")})
}

// AnnouncePeers lists the hosts and routers that the announcer is in touch with.
func (c *Client) AnnouncePeers(ctx context.Context) (v1.AnnouncePeerList, error) {
	return fetchAll(ctx, c, call{path: v1.PathAnnouncePeers}, func(l *v1.AnnouncePeerList) (*[]v1.AnnouncePeer, *string) { return &l.Items, &l.Next })
}

// ForgetNode removes a lost node from the list of nodes.
func (c *Client) ForgetNode(ctx context.Context, node string) (v1.NodeForgotten, error) {
	return fetch[v1.NodeForgotten](ctx, c, call{method: http.MethodDelete, path: v1.NodePath(node)})
}

// NodeDrain returns whether a node drains.
func (c *Client) NodeDrain(ctx context.Context, node string) (v1.NodeDrain, error) {
	return fetch[v1.NodeDrain](ctx, c, call{path: v1.NodeDrainPath(node)})
}

// SetNodeDrain starts or ends the drain of a node.
func (c *Client) SetNodeDrain(ctx context.Context, node string, drain bool) (v1.NodeDrain, error) {
	method := http.MethodDelete
	if drain {
		method = http.MethodPut
	}
	return fetch[v1.NodeDrain](ctx, c, call{method: method, path: v1.NodeDrainPath(node)})
}
