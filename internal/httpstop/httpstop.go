// Package httpstop ends an HTTP server without waiting for connections that have sent nothing.
//
// Its input is the states of a server's connections. http.Server.Shutdown counts a connection
// without any byte of a request as busy for 5 s, because it could be about to send one. Clients
// that connect in advance would delay the stop by this time. It doesn't touch other connections.
package httpstop

import (
	"net"
	"net/http"
	"sync"
)

// Silent has the connections of a server that have sent nothing yet. The zero value is ready. Its
// methods may be called concurrently.
type Silent struct {
	mu      sync.Mutex
	conns   map[net.Conn]struct{}
	stopped bool
}

// Track is the server's ConnState hook.
func (s *Silent) Track(c net.Conn, state http.ConnState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case state != http.StateNew:
		delete(s.conns, c)
	case s.stopped:
		c.Close()
	default:
		if s.conns == nil {
			s.conns = make(map[net.Conn]struct{})
		}
		s.conns[c] = struct{}{}
	}
}

// Stop closes these connections, and from now on each new one. Call it before the server's
// Shutdown.
func (s *Silent) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	for c := range s.conns {
		c.Close()
	}
	clear(s.conns)
}
