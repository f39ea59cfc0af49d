package message_test

import (
	"net/netip"
	"testing"

	"github.com/ironvip/ironvip/announce/bgp/message"
	"github.com/ironvip/ironvip/test/expect"
)

// The reasons of NOTIFICATION messages in words.
func TestReasons(t *testing.T) {
	for _, c := range []struct{ body, want string }{
		{"\x02\x02", "ASN wrong: the router expects another ASN than 65010 from this host"},
		{"\x02\x03", "router ID wrong: the router rejects 10.0.0.2, which is its own or not valid"},
		{"\x02\x07\x01", "the router ended the session: OPEN message error: unsupported capability"},
		{"\x04\x00", "hold timer expired: the router received nothing from this host within the hold time"},
		{"\x06\x01\x00\x02\x01\x00\x00\x00\x64", "maximum prefixes exceeded: the router accepts 100 IPv6 prefixes"},
		{"\x06\x01", "maximum prefixes exceeded: this host announces more than the router accepts"},
		{"\x06\x02\x05hello", `the router has shut the session down: "hello"`},
		{"\x06\x02\x05he\x1b\x0ao", `the router has shut the session down: "he  o"`},
		{"\x06\x02\x06hello", "the router has shut the session down"},
		{"\x06\x02\x02\xff\xfe", "the router has shut the session down"},
		{"\x06\x03", "the router no longer has this host as a neighbor"},
		{"\x06\x05", "connection rejected by the router: it has no matching neighbor, or the neighbor is disabled"},
		{"\x06\x0a", "the router ended the session: its BFD session is down"},
		{"\x06\x63", "the router ended the session: cease, subcode 99"},
		{"\x03\x0b", "the router ended the session: UPDATE message error: malformed AS_PATH"},
		{"\x63\x01", "the router ended the session: code 99, subcode 1"},
		{"\x00\x00", "the router ended the session: code 0"},
	} {
		got := message.ParseNotification([]byte(c.body)).Explain(65010, netip.MustParseAddr("10.0.0.2"))
		expect.Equal(t, got, c.want, "%x", c.body)
	}
}
