// Package control names the tables that the agent and the announcer show each other on a unix socket: the agent
// publishes its settings and what this host may announce, the announcer what it announces and its peers. Package
// internal/mirror carries them.
package control

import (
	"net/netip"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/internal/mirror"
	"github.com/ironvip/ironvip/internal/table"
)

// DefaultSocket is the default path of the socket.
const DefaultSocket = "/run/ironvip-announcer/control.sock"

// Publish returns what the agent publishes.
func Publish(settings table.Reader[struct{}, announce.Settings], eligible table.Reader[netip.Addr, announce.Eligible]) []mirror.Published {
	return []mirror.Published{mirror.Publish("settings", settings), mirror.Publish("eligible", eligible)}
}

// Mirror returns what the announcer mirrors.
func Mirror(settings func(*announce.Settings), eligible mirror.Store[netip.Addr, announce.Eligible]) []mirror.Mirrored {
	return []mirror.Mirrored{mirror.IntoOne("settings", settings), mirror.Into("eligible", eligible)}
}

// NewSettings returns an empty table of settings, which has one row.
func NewSettings(clock *table.Clock) *table.Table[struct{}, announce.Settings] {
	return table.New(clock, keyOfOne[announce.Settings], announce.Settings.Equal)
}

// Tables are what the announcer publishes, and what the agent mirrors of it.
type Tables struct {
	Announcements *table.Table[netip.Addr, announce.Announcement]
	Announced     *table.Table[announce.Place, announce.Announced]
	Peers         *table.Table[announce.PeerKey, announce.Peer]
	Stats         *table.Table[struct{}, Stats] // one row
}

// NewTables returns empty tables.
func NewTables(clock *table.Clock) Tables {
	return Tables{
		Announcements: table.New(clock, announce.KeyOfAnnouncement, func(a, b announce.Announcement) bool { return a == b }),
		Announced:     table.New(clock, announce.KeyOfAnnounced, func(a, b announce.Announced) bool { return a == b }),
		Peers:         table.New(clock, announce.KeyOfPeer, announce.SamePeer),
		Stats:         table.New(clock, keyOfOne[Stats], func(a, b Stats) bool { return a == b }),
	}
}

// Publish returns what the announcer publishes.
func (t *Tables) Publish() []mirror.Published {
	return []mirror.Published{mirror.Publish("announcements", t.Announcements), mirror.Publish("announced", t.Announced),
		mirror.Publish("peers", t.Peers), mirror.Publish("stats", t.Stats)}
}

// Mirror returns what the agent mirrors.
func (t *Tables) Mirror() []mirror.Mirrored {
	return []mirror.Mirrored{mirror.Into("announcements", t.Announcements), mirror.Into("announced", t.Announced),
		mirror.Into("peers", t.Peers), mirror.Into("stats", t.Stats)}
}

func keyOfOne[V any](*V) struct{} { return struct{}{} }

// Stats are counters since the start of the announcer.
type Stats struct {
	Transitions uint64 // VIPs that this host began or ceased to announce
	Conflicts   uint64 // addresses found on another station
	Restored    uint64 // times that another program had changed the kernel gate
	Pauses      uint64 // times without a processor for longer than a dead host's silence
	Unsent      uint64 // packets that the kernel had no room for (ENOBUFS); the important ones are repeated

	Sent       uint64 // heartbeats, as are the following
	Received   uint64
	Forged     uint64
	Replayed   uint64
	Malformed  uint64
	Duplicates uint64

	// Problem is what keeps the announcer from its work, such as a missing capability.
	Problem string
}
