package bgp

import (
	"errors"

	"github.com/ironvip/ironvip/announce/bgp/message"
	"github.com/ironvip/ironvip/announce/bgp/session"
	"github.com/ironvip/ironvip/announce/bgp/transport"
)

// reason is what can end a session, as a NOTIFICATION says it.
type reason struct {
	byRouter      bool // the router sent the NOTIFICATION, not this host
	code, subcode uint8
}

var hints = map[reason]string{
	{true, message.CodeCease, message.CeaseMaxPrefixes}:  "raise the router's limit of prefixes for this host (BIRD: import limit, FRR: maximum-prefix) or announce fewer VIPs, then enable the session on the router",
	{true, message.CodeCease, message.CeaseShutdown}:     "enable the session on the router",
	{true, message.CodeCease, message.CeaseRejected}:     neighborHint,
	{true, message.CodeCease, message.CeaseBFD}:          "allow UDP port 3784, or 4784 with multihop, in both directions",
	{true, message.CodeOpen, message.OpenBadPeerAS}:      "set local_asn to the ASN that the router expects of this host",
	{false, message.CodeOpen, message.OpenBadPeerAS}:     "set asn to the ASN of the router",
	{true, message.CodeOpen, message.OpenBadIdentifier}:  routerIDHint,
	{false, message.CodeOpen, message.OpenBadIdentifier}: routerIDHint,
}

const (
	neighborHint = "configure this host as a neighbor on the router, with its address and local_asn"
	routerIDHint = "give the router a router ID that no other router or host has"
)

// hint says what an operator can do about the end of a session, or "".
func hint(err error) string {
	var sent *message.Notification
	var received *session.NotificationReceived
	switch {
	case errors.As(err, &sent):
		return hints[reason{false, sent.Code, sent.Subcode}]
	case errors.As(err, &received):
		return hints[reason{true, received.Code, received.Subcode}]
	case errors.Is(err, transport.ErrRefused), errors.Is(err, session.ErrNoOpen):
		return neighborHint
	}
	return ""
}
