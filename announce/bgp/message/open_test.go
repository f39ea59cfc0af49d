package message_test

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/ironvip/ironvip/announce/bgp/message"
	"github.com/ironvip/ironvip/test/expect"
)

var sampleOpen = message.Open{ASN: 4200000000, HoldTime: 90 * time.Second, RouterID: netip.MustParseAddr("10.0.0.2"), Capabilities: message.Capabilities{
	Families: [message.Families]bool{true, true}, RouteRefresh: true, ExtendedNextHop: true, GracefulRestart: true, Restarted: true, RestartTime: 120 * time.Second}}

func TestOpen(t *testing.T) {
	b := sampleOpen.Append(nil)
	// RFC 4271, 4.2; the capabilities by their RFCs.
	const want = "\x04\x5b\xa0\x00\x5a\x0a\x00\x00\x02\x2a\x02\x28" + "\x01\x04\x00\x01\x00\x01" + "\x01\x04\x00\x02\x00\x01" + "\x02\x00" +
		"\x05\x06\x00\x01\x00\x01\x00\x02" + "\x41\x04\xfa\x56\xea\x00" + "\x40\x0a\x80\x78\x00\x01\x01\x80\x00\x02\x01\x80"
	got := string(b[message.HeaderSize:])
	expect.Equal(t, got, want, "OPEN\n%x", got)
	expect.Equal(t, int(binary.BigEndian.Uint16(b[16:])), len(b), "wrong length")
	o, err := message.ParseOpen(b[message.HeaderSize:])
	parsed := sampleOpen
	parsed.Multiprotocol, parsed.AS4 = true, true
	if err != nil || o != parsed {
		t.Errorf("parsed %+v, %v", o, err)
	}
}

func TestParseOpenVariants(t *testing.T) {
	const head = "\x04\xfd\xe8\x00\x5a\x0a\x00\x00\x01"
	for _, c := range []struct {
		name, in string
		sub      int // of the notification, -1: none
		check    func(message.Open) bool
	}{
		{"no capabilities", head + "\x00", -1, func(o message.Open) bool {
			return o.Families == [message.Families]bool{true, false} && o.ASN == 65000 && !o.AS4
		}},
		{"IPv6 only", head + "\x08\x02\x06\x01\x04\x00\x02\x00\x01", -1, func(o message.Open) bool { return o.Families == [message.Families]bool{false, true} }},
		{"foreign family", head + "\x08\x02\x06\x01\x04\x40\x04\x00\x47", -1, func(o message.Open) bool { return o.Families == [message.Families]bool{} }},
		{"two parameters", head + "\x08\x02\x02\x02\x00\x02\x02\x46\x00", -1, func(o message.Open) bool { return o.RouteRefresh }},
		{"extended length", head + "\xff\xff\x00\x05\x02\x00\x02\x02\x00", -1, func(o message.Open) bool { return o.RouteRefresh }},
		{"restart without families", head + "\x06\x02\x04\x40\x02\x00\x78", -1, func(o message.Open) bool { return o.GracefulRestart && !o.Restarted && o.RestartTime == 2*time.Minute }},
		{"version 3", "\x03" + head[1:] + "\x00", message.OpenVersion, nil},
		{"cut", head, 0, nil},
		{"length of the parameters", head + "\x01", 0, nil},
		{"parameter too long", head + "\x02\x02\x01", 0, nil},
		{"capability too long", head + "\x04\x02\x02\x02\x01", 0, nil},
		{"family of 3 bytes", head + "\x07\x02\x05\x01\x03\x00\x02\x00", 0, nil},
		{"ASN of 2 bytes", head + "\x06\x02\x04\x41\x02\x00\x01", 0, nil},
		{"restart of 1 byte", head + "\x05\x02\x03\x40\x01\x00", 0, nil},
		{"next hop of 5 bytes", head + "\x09\x02\x07\x05\x05\x00\x01\x00\x01\x00", 0, nil},
		{"unknown parameter", head + "\x02\x01\x00", message.OpenParameter, nil},
	} {
		o, err := message.ParseOpen([]byte(c.in))
		var n *message.Notification
		if c.sub < 0 {
			if err != nil || !c.check(o) {
				t.Errorf("%s: %+v, %v", c.name, o, err)
			}
		} else if !errors.As(err, &n) || n.Code != message.CodeOpen || int(n.Subcode) != c.sub {
			t.Errorf("%s: %v, want a notification %d/%d", c.name, err, message.CodeOpen, c.sub)
		}
	}
}
