// Package control is the protocol between the agent and the announcer on a unix socket.
//
// The agent sends the settings and what this host may announce: all of it, then Synced, then
// changes. The announcer sends what it announces and its peers in the same way. Each message is one
// line of JSON. Either side may end the connection at any time and lose nothing: the next one begins
// with everything.
//
// The connection says that the agent is alive. The announcer ends the connection of an agent that does
// not run and so sends no keepalives. An agent that runs, but makes no progress with its main work, ends
// it itself. An agent of a version without keepalives announces none, and may be silent.
//
// Server is the announcer's side. It accepts only its own user and root. Link is the agent's side: it
// reconnects, and mirrors the announcer's tables.
//
// Files:
//
//	control.go  the messages
//	conn.go     a connection
//	server.go   the announcer's side
//	link.go     the agent's side
//	mirror.go   the agent's copies of the announcer's tables
package control

import (
	"net/netip"
	"time"

	"github.com/ironvip/ironvip/announce"
)

// Protocol is the version of the protocol. Both sides name theirs first. An upgrade of the package does not
// restart the announcer; a release with another version must (packaging/scripts/postinst, decision 57).
const Protocol = 1

// DefaultSocket is the default path of the socket.
const DefaultSocket = "/run/ironvip-announcer/control.sock"

// Request is a message of the agent.
type Request struct {
	Protocol int `json:"protocol,omitempty"` // in the first message only
	// Keepalive is the longest time between two messages of this agent, which are empty if there is
	// nothing to say. It is in the first message only. 0: this agent sends no keepalives.
	Keepalive time.Duration `json:"keepalive,omitempty"`
	// Agent tells agents apart: the state directory. It is in the first message only. The announcer
	// refuses an agent while another one is connected. "": an agent of a version without it.
	Agent    string              `json:"agent,omitempty"`
	Settings *announce.Settings  `json:"settings,omitempty"`
	Eligible []announce.Eligible `json:"eligible,omitempty"` // added and changed
	Removed  []netip.Addr        `json:"removed,omitempty"`  // no longer VIPs of this host
	// Synced says that everything was sent: VIPs that this connection has not named are removed.
	Synced bool `json:"synced,omitempty"`
}

// Report is a message of the announcer. The fields are as in Request.
type Report struct {
	Protocol      int                                         `json:"protocol,omitempty"`
	Version       string                                      `json:"version,omitempty"` // of ironvip, in the first message
	Announcements Changes[announce.Announcement, netip.Addr]  `json:"announcements,omitzero"`
	Announced     Changes[announce.Announced, announce.Place] `json:"announced,omitzero"`
	Peers         Changes[announce.Peer, announce.PeerKey]    `json:"peers,omitzero"`
	Stats         *Stats                                      `json:"stats,omitempty"`
	Synced        bool                                        `json:"synced,omitempty"`
}

// Changes are changed rows of a table, and the keys of removed ones.
type Changes[V, K any] struct {
	Set     []V `json:"set,omitempty"`
	Removed []K `json:"removed,omitempty"`
}

// Stats are counters since the start of the announcer.
type Stats struct {
	Transitions uint64 `json:"transitions"` // VIPs that this host began or ceased to announce
	Conflicts   uint64 `json:"conflicts"`   // addresses found on another station
	Restored    uint64 `json:"restored"`    // times that another program had changed the kernel gate
	Pauses      uint64 `json:"pauses"`      // times without a processor for longer than a dead host's silence
	Unsent      uint64 `json:"unsent"`      // packets that the kernel had no room for (ENOBUFS); the important ones are repeated

	Sent       uint64 `json:"sent"` // heartbeats, as are the following
	Received   uint64 `json:"received"`
	Forged     uint64 `json:"forged"`
	Replayed   uint64 `json:"replayed"`
	Malformed  uint64 `json:"malformed"`
	Duplicates uint64 `json:"duplicates"`

	// Problem is what keeps the announcer from its work, such as a missing capability.
	Problem string `json:"problem,omitempty"`
}
