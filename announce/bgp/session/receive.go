package session

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"github.com/ironvip/ironvip/announce/bgp/message"
)

// read reads a message. A NOTIFICATION is returned as an error.
func (s *Session) read() (message.Type, []byte, error) {
	typ, body, err := message.Read(s.reader)
	if err == nil && typ == message.TypeNotification {
		n := message.ParseNotification(body)
		return 0, nil, &NotificationReceived{n.Code, n.Subcode, n.Explain(s.LocalASN, s.RouterID)}
	}
	return typ, body, err
}

// readAll reads until the session ends. Routes of the router are skipped.
func (s *Session) readAll() error {
	for {
		if s.hold > 0 {
			s.conn.SetReadDeadline(time.Now().Add(s.hold))
		}
		if s.stopped.Load() {
			s.readErr = os.ErrDeadlineExceeded
			return s.readErr
		}
		typ, body, err := s.read()
		if err != nil {
			s.readErr = err
			return s.broken(err)
		}
		switch typ {
		case message.TypeOpen:
			return &message.Notification{Code: message.CodeFSM, Subcode: message.FSMEstablished, Text: "the router sent a second OPEN"}
		case message.TypeRouteRefresh:
			if f, ok := message.ParseRouteRefresh(body); ok {
				s.refreshed[f].Store(true)
				s.refresh.Set()
			}
		}
	}
}

// ErrNoOpen means that the router accepted a connection and closed it.
var ErrNoOpen = errors.New("the router closed the connection before its OPEN: it has no neighbor with this host's address, or it waits after an earlier error")

// broken explains an error of the connection.
func (s *Session) broken(err error) error {
	var n *message.Notification
	var received *NotificationReceived
	switch {
	case errors.As(err, &n), errors.As(err, &received):
		return err
	case errors.Is(err, os.ErrDeadlineExceeded) && s.state == Established:
		return &message.Notification{Code: message.CodeHoldTimer, Text: fmt.Sprintf("hold timer expired: nothing received from the router for %s", s.hold)}
	case errors.Is(err, os.ErrDeadlineExceeded):
		did := "accepted the connection"
		if s.Passive {
			did = "connected"
		}
		return &message.Notification{Code: message.CodeHoldTimer, Text: fmt.Sprintf("the router %s, but sent no OPEN or KEEPALIVE within %s", did, openTimeout)}
	case errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("the router closed the connection %w", err)
	case errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, io.ErrClosedPipe):
		if s.state == Established || s.state == OpenConfirm {
			return errors.New("the router closed the connection without a NOTIFICATION")
		} else if s.Passive {
			return errors.New("the router connected, and closed the connection before its OPEN")
		}
		return ErrNoOpen
	}
	return err
}
