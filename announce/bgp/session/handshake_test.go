package session

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/announce/bgp/message"
)

func TestCheckOpen(t *testing.T) {
	id := netip.MustParseAddr("10.0.0.9")
	for _, c := range []struct {
		name   string
		o      message.Open
		asn    uint32
		sub    uint8
		reason string
	}{
		{"fine", message.Open{ASN: 1, RouterID: id, HoldTime: 90 * time.Second}, 1, 0, ""},
		{"no hold timer", message.Open{ASN: 1, RouterID: id}, 1, 0, ""},
		{"ASN", message.Open{ASN: 2, RouterID: id}, 1, message.OpenBadPeerAS, "ASN wrong: the router has ASN 2, the configuration has 1"},
		{"router ID 0", message.Open{ASN: 1, RouterID: netip.IPv4Unspecified()}, 1, message.OpenBadIdentifier, "router ID wrong"},
		{"our router ID in another AS", message.Open{ASN: 1, RouterID: netip.MustParseAddr("10.0.0.2")}, 1, 0, ""},
		{"our router ID in our AS", message.Open{ASN: 65010, RouterID: netip.MustParseAddr("10.0.0.2")}, 65010, message.OpenBadIdentifier, "router ID wrong"},
		{"hold time", message.Open{ASN: 1, RouterID: id, HoldTime: 2 * time.Second}, 1, message.OpenHoldTime, "unacceptable hold time"},
	} {
		settings := Settings{BGPPeer: announce.BGPPeer{ASN: c.asn, LocalASN: 65010}, RouterID: netip.MustParseAddr("10.0.0.2")}
		err := settings.check(&c.o)
		var n *message.Notification
		if (err != nil) != (c.sub != 0) || err != nil && (!errors.As(err, &n) || n.Subcode != c.sub || !strings.Contains(err.Error(), c.reason)) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
