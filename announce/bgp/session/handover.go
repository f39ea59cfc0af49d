package session

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/ironvip/ironvip/announce/bgp/message"
	"github.com/ironvip/ironvip/internal/wake"
)

// ErrHandOver as the cause of the end of a context hands an established session over to the next process. A session that can't
// be handed over ends as for a restart.
var ErrHandOver = fmt.Errorf("handed over to the next process: %w", errRestart)

// Kept is an established session between two processes, without its connection.
type Kept struct {
	Remote   message.Open // the router's
	Hold     time.Duration
	Since    time.Time
	Prefixes []netip.Prefix // that the router has when it has Unsent
	Unsent   []byte         // messages
	Unread   []byte         // the begin of a message whose rest has not arrived
}

// Resume returns the session that an earlier process has handed over. Run goes on with it.
func Resume(settings Settings, c net.Conn, kept Kept, routes LocRIB, owner Owner) *Session {
	return &Session{Settings: settings, owner: owner, routes: routes, conn: c, refresh: wake.New(), resumed: &kept,
		reader: bufio.NewReaderSize(io.MultiReader(bytes.NewReader(kept.Unread), c), message.MaxSize),
		remote: kept.Remote, hold: kept.Hold}
}

// Cease ends a session that an earlier process has handed over.
func Cease(c net.Conn, text string) {
	s := &Session{conn: c}
	s.notify(&message.Notification{Code: message.CodeCease, Subcode: message.CeaseDeconfigured, Text: text})
	c.Close()
}

// handOver stops the reading and returns the state of the session, if both directions are between two messages.
func (s *Session) handOver() (kept Kept, ok bool) {
	if s.reading == nil {
		return kept, false
	}
	s.stopped.Store(true)
	s.conn.SetReadDeadline(time.Unix(1, 0))
	<-s.reading
	if s.torn || !errors.Is(s.readErr, os.ErrDeadlineExceeded) {
		return kept, false
	}
	unread, _ := s.reader.Peek(s.reader.Buffered())
	kept = Kept{Remote: s.remote, Hold: s.hold, Since: s.upSince, Unread: bytes.Clone(unread), Prefixes: slices.Collect(maps.Keys(s.out.sent)), Unsent: s.unsent}
	return kept, true
}
