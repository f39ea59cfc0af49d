package message

// Codes and subcodes of NOTIFICATION messages (RFC 4271, 4.5; RFC 4486; RFC 5492; RFC 9384; RFC
// 9687).
const (
	CodeHeader       = 1
	CodeOpen         = 2
	CodeUpdate       = 3
	CodeHoldTimer    = 4
	CodeFSM          = 5
	CodeCease        = 6
	CodeRouteRefresh = 7
	CodeSendHold     = 8

	FSMOpenSent    = 1 // RFC 6608
	FSMOpenConfirm = 2
	FSMEstablished = 3

	HeaderNotSynchronized = 1
	HeaderBadLength       = 2
	HeaderBadType         = 3

	OpenVersion       = 1
	OpenBadPeerAS     = 2
	OpenBadIdentifier = 3
	OpenParameter     = 4
	OpenHoldTime      = 6
	OpenCapability    = 7

	CeaseMaxPrefixes  = 1
	CeaseShutdown     = 2
	CeaseDeconfigured = 3
	CeaseReset        = 4
	CeaseRejected     = 5
	CeaseConfigChange = 6
	CeaseCollision    = 7
	CeaseResources    = 8
	CeaseHardReset    = 9
	CeaseBFD          = 10
)

// Notification is a NOTIFICATION message. As an error, it is the reason for which this host ends
// the session and the message to send.
type Notification struct {
	Code, Subcode uint8
	Data          []byte
	Text          string // the reason in words; "": that of the code
}

// Append appends the message.
func (n *Notification) Append(b []byte) []byte {
	at := len(b)
	b = append(begin(b, TypeNotification), n.Code, n.Subcode)
	b = append(b, n.Data...)
	end(b[at:])
	return b
}

// ParseNotification reads the body of a NOTIFICATION. A body that is too short has code 0.
func ParseNotification(b []byte) *Notification {
	if len(b) < 2 {
		return &Notification{}
	}
	return &Notification{Code: b[0], Subcode: b[1], Data: append([]byte(nil), b[2:]...)}
}

// Error describes a NOTIFICATION that this host sends.
func (n *Notification) Error() string {
	if n.Text != "" {
		return n.Text
	}
	return "the router sent an invalid message: " + n.name()
}
