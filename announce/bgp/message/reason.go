package message

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Code names, for the messages without an explanation of their own.
var (
	codeNames = [...]string{CodeHeader: "message header error", CodeOpen: "OPEN message error", CodeUpdate: "UPDATE message error",
		CodeHoldTimer: "hold timer expired", CodeFSM: "finite state machine error", CodeCease: "cease",
		CodeRouteRefresh: "ROUTE-REFRESH message error", CodeSendHold: "send hold timer expired"}
	subcodeNames = map[[2]uint8]string{
		{CodeHeader, HeaderNotSynchronized}: "connection not synchronized", {CodeHeader, HeaderBadLength}: "bad message length",
		{CodeHeader, HeaderBadType}: "bad message type",
		{CodeOpen, OpenVersion}:     "unsupported version number", {CodeOpen, OpenBadPeerAS}: "bad peer AS", {CodeOpen, OpenBadIdentifier}: "bad BGP identifier",
		{CodeOpen, OpenParameter}: "unsupported optional parameter", {CodeOpen, OpenHoldTime}: "unacceptable hold time",
		{CodeOpen, OpenCapability}: "unsupported capability",
		{CodeUpdate, 1}:            "malformed attribute list", {CodeUpdate, 2}: "unrecognized well-known attribute", {CodeUpdate, 3}: "missing well-known attribute",
		{CodeUpdate, 4}: "attribute flags error", {CodeUpdate, 5}: "attribute length error", {CodeUpdate, 6}: "invalid ORIGIN attribute",
		{CodeUpdate, 8}: "invalid NEXT_HOP attribute", {CodeUpdate, 9}: "optional attribute error", {CodeUpdate, 10}: "invalid network field",
		{CodeUpdate, 11}: "malformed AS_PATH",
	}
)

func (n *Notification) name() string {
	name := fmt.Sprintf("code %d", n.Code)
	if int(n.Code) < len(codeNames) && codeNames[n.Code] != "" {
		name = codeNames[n.Code]
	}
	if sub := subcodeNames[[2]uint8{n.Code, n.Subcode}]; sub != "" {
		return name + ": " + sub
	}
	if n.Subcode != 0 {
		return fmt.Sprintf("%s, subcode %d", name, n.Subcode)
	}
	return name
}

// Explain explains a NOTIFICATION of the router to an operator of this host, which has the given ASN
// and router ID.
func (n *Notification) Explain(asn uint32, routerID netip.Addr) string {
	switch n.Code {
	case CodeOpen:
		switch n.Subcode {
		case OpenBadPeerAS:
			return fmt.Sprintf("ASN wrong: the router expects another ASN than %d from this host", asn)
		case OpenBadIdentifier:
			return fmt.Sprintf("router ID wrong: the router rejects %s, which is its own or not valid", routerID)
		case OpenHoldTime:
			return "hold time rejected by the router"
		}
	case CodeHoldTimer:
		return "hold timer expired: the router received nothing from this host within the hold time"
	case CodeCease:
		return n.cease()
	}
	return "the router ended the session: " + n.name()
}

func (n *Notification) cease() string {
	switch n.Subcode {
	case CeaseMaxPrefixes:
		if len(n.Data) >= 7 { // RFC 4486, section 4
			if f, ok := parseFamily(binary.BigEndian.Uint16(n.Data), n.Data[2]); ok {
				return fmt.Sprintf("maximum prefixes exceeded: the router accepts %d %s prefixes", binary.BigEndian.Uint32(n.Data[3:]), f)
			}
		}
		return "maximum prefixes exceeded: this host announces more than the router accepts"
	case CeaseShutdown:
		return "the router has shut the session down" + n.communication()
	case CeaseDeconfigured:
		return "the router no longer has this host as a neighbor"
	case CeaseReset:
		return "the router has reset the session" + n.communication()
	case CeaseRejected:
		return "connection rejected by the router: it has no matching neighbor, or the neighbor is disabled"
	case CeaseConfigChange:
		return "the router's configuration has changed"
	case CeaseCollision:
		return "connection collision: the router has another connection with this host"
	case CeaseResources:
		return "the router is out of resources"
	case CeaseHardReset:
		return "the router has reset the session (hard reset)"
	case CeaseBFD:
		return "the router ended the session: its BFD session is down"
	}
	return "the router ended the session: " + n.name()
}

// communication returns the text that the router's operator sent along (RFC 9003), without control
// characters.
func (n *Notification) communication() string {
	if len(n.Data) < 2 || int(n.Data[0]) > len(n.Data)-1 || n.Data[0] == 0 {
		return ""
	}
	text := n.Data[1 : 1+int(n.Data[0])]
	if !utf8.Valid(text) {
		return ""
	}
	clean := strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, string(text))
	return fmt.Sprintf(": %q", clean)
}
