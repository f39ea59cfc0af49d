package v1

import (
	"net/netip"
	"net/url"
	"time"
)

// The states of an announcement. Other states at layer 2 are those of its places.
const (
	AnnouncedHere      = "announced" // by this host
	AnnouncedElsewhere = "elsewhere" // layer 2: by another host
	AnnouncedNowhere   = "no owner"  // layer 2
	NotAnnounced       = "withdrawn" // BGP and routes: not by this host

	AnnouncementWaiting  = "waiting"  // no session with a router carries it, or no interface is usable
	AnnouncementConflict = "conflict" // layer 2: another station has the VIP
)

// Announcement is a VIP that this host may announce to the network, and what becomes of it.
type Announcement struct {
	VIP      netip.Addr          `json:"vip"`
	Mode     string              `json:"mode" enum:"l2,bgp,routes,off"`
	Here     bool                `json:"here" doc:"this host is to announce it; state tells whether it does"`
	Owner    string              `json:"owner,omitempty" doc:"of mode l2: the host that announces it"`
	State    string              `json:"state" doc:"\"announced\", \"elsewhere\", \"no owner\", \"withdrawn\"; also \"waiting\", and at layer 2 \"probing\" and \"conflict\""`
	Reason   string              `json:"reason,omitempty" doc:"why this host does not announce it although it is to"`
	Why      string              `json:"why" doc:"the reason of the decision"`
	Ranking  []string            `json:"ranking,omitempty" doc:"of mode l2, with two hosts and more that could announce it: these, best first, each with what ranks it below the one before"`
	Policy   string              `json:"policy,omitempty" doc:"of mode bgp: the pool or the rule of a pool in ironvip.toml that says what the routes carry; absent: the routers' own keys"`
	Move     *Move               `json:"move,omitempty" doc:"of mode l2: the operator's move of the VIP, if this host has it: without a fleet, each host has the moves to itself"`
	Services int                 `json:"services" doc:"services of the VIP that this host serves; 0: it must not announce the VIP"`
	Since    time.Time           `json:"since" doc:"of owner and here"`
	Places   []AnnouncementPlace `json:"places" doc:"where this host announces it"`
	Revision uint64              `json:"revision"`
}

// AnnouncementPlace is the result at one interface or router.
type AnnouncementPlace struct {
	At     string    `json:"at"`
	State  string    `json:"state" doc:"as that of the announcement; also \"excluded\": the policy does not announce the VIP at this router"`
	Reason string    `json:"reason,omitempty"`
	Since  time.Time `json:"since"`

	Negotiated string              `json:"negotiated,omitempty" doc:"of a BGP session: what was negotiated of graceful restart"`
	Routes     []AnnouncementRoute `json:"routes,omitempty" doc:"of a BGP session: what the router gets for the VIP"`
}

// AnnouncementRoute is a route that a router gets.
type AnnouncementRoute struct {
	Prefix        netip.Prefix `json:"prefix" doc:"the VIP, or the aggregate that it is in"`
	Policy        string       `json:"policy,omitempty" doc:"as that of the announcement, or that of the aggregate"`
	Communities   []string     `json:"communities,omitempty" doc:"standard and large ones, and names"`
	MED           uint32       `json:"med,omitempty"`
	LocalPref     uint32       `json:"local_pref,omitempty" doc:"of a router of the same AS"`
	Prepend       int          `json:"prepend,omitempty" doc:"how often the ASN of this host is in the AS path once more"`
	LinkBandwidth int          `json:"link_bandwidth,omitempty" doc:"in bytes per second"`
}

// Move is an operator's choice of the host that announces a VIP at layer 2.
type Move struct {
	Node   string    `json:"node"`
	Pin    bool      `json:"pin" doc:"it stays when the host fails; false: it ends when the host fails, drains or is not eligible"`
	Since  time.Time `json:"since"`
	Author string    `json:"author,omitempty"`
}

// AnnouncementList is a page of announcements, ordered by VIP.
type AnnouncementList struct {
	Items    []Announcement `json:"items"`
	Next     string         `json:"next,omitempty" doc:"cursor of the next page; absent on the last"`
	Stale    string         `json:"stale,omitempty" doc:"why the list may be outdated: the announcer is not reachable"`
	Revision uint64         `json:"revision"`
}

// AnnouncePeer is another host or a router that the announcer is in touch with.
type AnnouncePeer struct {
	Kind     string    `json:"kind" enum:"host,bgp,bfd,range"`
	Name     string    `json:"name"`
	Address  string    `json:"address,omitempty"`
	State    string    `json:"state" doc:"of hosts: alive, dead, one-way, unknown; of BGP and BFD the states of the protocol"`
	Up       bool      `json:"up"`
	Since    time.Time `json:"since"`
	Reason   string    `json:"reason,omitempty" doc:"why it is not up, or what should be changed"`
	Hint     string    `json:"hint,omitempty" doc:"what to do about the reason"`
	Draining bool      `json:"draining,omitempty"`
	Weight   int       `json:"weight,omitempty"`
	Eligible int       `json:"eligible,omitempty" doc:"VIPs that it could announce"`
	Owned    int       `json:"owned,omitempty" doc:"VIPs that it announces"`
	Lost     uint64    `json:"lost,omitempty" doc:"heartbeats that did not arrive"`

	Negotiated string `json:"negotiated,omitempty" doc:"of a BGP session: what was negotiated of graceful restart"`
}

// AnnouncePeerList is every peer, ordered by kind and name.
type AnnouncePeerList struct {
	Items []AnnouncePeer `json:"items"`
	Next  string         `json:"next,omitempty" doc:"cursor of the next page; absent on the last"`
	Stale string         `json:"stale,omitempty" doc:"why the list may be outdated: the announcer is not reachable"`
}

// NodeForgotten is a node that has left the list of nodes.
type NodeForgotten struct {
	Node string `json:"node"`
}

// NodeDrain is whether a node drains.
type NodeDrain struct {
	Node     string     `json:"node"`
	Draining bool       `json:"draining"`
	Since    *time.Time `json:"since,omitempty"`
	Author   string     `json:"author,omitempty" doc:"who has started the drain"`
	// VIPs is nil if the node is not known to this host's announcer.
	VIPs *int `json:"vips,omitempty" doc:"that the node still announces; absent if this host does not know"`
}

// The paths of announcements.
const (
	PathAnnouncements = "/v1/announcements"
	PathAnnouncePeers = "/v1/announce/peers"
)

// AnnouncementPath is the path of one VIP's announcement: GET.
func AnnouncementPath(address string) string {
	return PathAnnouncements + "/" + url.PathEscape(address)
}

// AnnouncementMovePath is the path of a VIP's move: DELETE ends it. With a node, PUT moves the VIP there.
func AnnouncementMovePath(address, node string) string {
	path := AnnouncementPath(address) + "/move"
	if node != "" {
		path += "/" + url.PathEscape(node)
	}
	return path
}

// NodePath is the path of a node: DELETE forgets a lost one.
func NodePath(node string) string { return PathNodes + "/" + url.PathEscape(node) }

// NodeDrainPath is the path of a node's drain: GET, PUT, DELETE.
func NodeDrainPath(node string) string { return NodePath(node) + "/drain" }
