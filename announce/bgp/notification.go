package bgp

import (
	"encoding/binary"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Codes and subcodes of NOTIFICATION messages (RFC 4271, 4.5; RFC 4486; RFC 5492; RFC 9384; RFC
// 9687).
const (
	codeHeader     = 1
	codeOpen       = 2
	codeUpdate     = 3
	codeHold       = 4
	codeFSM        = 5
	codeCease      = 6
	codeRefresh    = 7
	codeSendHold   = 8
	fsmOpenSent    = 1 // RFC 6608
	fsmOpenConfirm = 2
	fsmEstablished = 3

	headerNotSynchronized = 1
	headerBadLength       = 2
	headerBadType         = 3

	openVersion    = 1
	openBadAS      = 2
	openBadID      = 3
	openParameter  = 4
	openHoldTime   = 6
	openCapability = 7

	ceaseMaxPrefixes  = 1
	ceaseShutdown     = 2
	ceaseDeconfigured = 3
	ceaseReset        = 4
	ceaseRejected     = 5
	ceaseConfigChange = 6
	ceaseCollision    = 7
	ceaseResources    = 8
	ceaseHardReset    = 9
	ceaseBFD          = 10
)

// notification is a NOTIFICATION message. As an error, it is the reason for which this host ends
// the session and the message to send.
type notification struct {
	code, subcode uint8
	data          []byte
	text          string // the reason in words; "": that of the code
}

func (n *notification) append(b []byte) []byte {
	at := len(b)
	b = append(beginMessage(b, typeNotification), n.code, n.subcode)
	b = append(b, n.data...)
	endMessage(b[at:])
	return b
}

// parseNotification reads the body of a NOTIFICATION.
func parseNotification(b []byte) *notification {
	if len(b) < 2 {
		return &notification{}
	}
	return &notification{code: b[0], subcode: b[1], data: append([]byte(nil), b[2:]...)}
}

// Error describes a notification that this host sends.
func (n *notification) Error() string {
	if n.text != "" {
		return n.text
	}
	return "the router sent an invalid message: " + n.name()
}

// Code names, for the messages without an explanation of their own.
var (
	codeNames = [...]string{codeHeader: "message header error", codeOpen: "OPEN message error", codeUpdate: "UPDATE message error",
		codeHold: "hold timer expired", codeFSM: "finite state machine error", codeCease: "cease",
		codeRefresh: "ROUTE-REFRESH message error", codeSendHold: "send hold timer expired"}
	subcodeNames = map[[2]uint8]string{
		{codeHeader, headerNotSynchronized}: "connection not synchronized", {codeHeader, headerBadLength}: "bad message length",
		{codeHeader, headerBadType}: "bad message type",
		{codeOpen, openVersion}:     "unsupported version number", {codeOpen, openBadAS}: "bad peer AS", {codeOpen, openBadID}: "bad BGP identifier",
		{codeOpen, openParameter}: "unsupported optional parameter", {codeOpen, openHoldTime}: "unacceptable hold time",
		{codeOpen, openCapability}: "unsupported capability",
		{codeUpdate, 1}:            "malformed attribute list", {codeUpdate, 2}: "unrecognized well-known attribute", {codeUpdate, 3}: "missing well-known attribute",
		{codeUpdate, 4}: "attribute flags error", {codeUpdate, 5}: "attribute length error", {codeUpdate, 6}: "invalid ORIGIN attribute",
		{codeUpdate, 8}: "invalid NEXT_HOP attribute", {codeUpdate, 9}: "optional attribute error", {codeUpdate, 10}: "invalid network field",
		{codeUpdate, 11}: "malformed AS_PATH",
	}
)

func (n *notification) name() string {
	name := fmt.Sprintf("code %d", n.code)
	if int(n.code) < len(codeNames) && codeNames[n.code] != "" {
		name = codeNames[n.code]
	}
	if sub := subcodeNames[[2]uint8{n.code, n.subcode}]; sub != "" {
		return name + ": " + sub
	}
	if n.subcode != 0 {
		return fmt.Sprintf("%s, subcode %d", name, n.subcode)
	}
	return name
}

// received explains a notification of the router to an operator of this host.
func (n *notification) received(p *Peer, routerID string) string {
	switch n.code {
	case codeOpen:
		switch n.subcode {
		case openBadAS:
			return fmt.Sprintf("ASN wrong: the router expects another ASN than %d from this host", p.LocalASN)
		case openBadID:
			return fmt.Sprintf("router ID wrong: the router rejects %s, which is its own or not valid", routerID)
		case openHoldTime:
			return "hold time rejected by the router"
		}
	case codeHold:
		return "hold timer expired: the router received nothing from this host within the hold time"
	case codeCease:
		return n.cease()
	}
	return "the router ended the session: " + n.name()
}

func (n *notification) cease() string {
	switch n.subcode {
	case ceaseMaxPrefixes:
		if len(n.data) >= 7 { // RFC 4486, section 4
			if f, ok := familyOf(binary.BigEndian.Uint16(n.data), n.data[2]); ok {
				return fmt.Sprintf("maximum prefixes exceeded: the router accepts %d %s prefixes", binary.BigEndian.Uint32(n.data[3:]), f)
			}
		}
		return "maximum prefixes exceeded: this host announces more than the router accepts"
	case ceaseShutdown:
		return "the router has shut the session down" + n.communication()
	case ceaseDeconfigured:
		return "the router no longer has this host as a neighbor"
	case ceaseReset:
		return "the router has reset the session" + n.communication()
	case ceaseRejected:
		return "connection rejected by the router: it has no matching neighbor, or the neighbor is disabled"
	case ceaseConfigChange:
		return "the router's configuration has changed"
	case ceaseCollision:
		return "connection collision: the router has another connection with this host"
	case ceaseResources:
		return "the router is out of resources"
	case ceaseHardReset:
		return "the router has reset the session (hard reset)"
	case ceaseBFD:
		return "the router ended the session: its BFD session is down"
	}
	return "the router ended the session: " + n.name()
}

// communication returns the text that the router's operator sent along (RFC 9003), without control
// characters.
func (n *notification) communication() string {
	if len(n.data) < 2 || int(n.data[0]) > len(n.data)-1 || n.data[0] == 0 {
		return ""
	}
	text := n.data[1 : 1+int(n.data[0])]
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

func wrongASN(is, configured uint32) string {
	return fmt.Sprintf("ASN wrong: the router has ASN %d, the configuration has %d", is, configured)
}
