// Package httpstop ends an HTTP server without waiting for connections that have sent nothing.
//
// Its input is the states of a server's connections. http.Server.Shutdown counts a connection
// without any byte of a request as busy for 5 s, because it could be about to send one. Clients
// that connect in advance would delay the stop by this time. The request of a connection that is new
// may be on its way, so such a connection has Patience. It doesn't touch other connections.
package httpstop

import (
	"net"
	"net/http"
	"sync"
	"time"
)

// Patience is how long after its start a connection may send the first byte of a request during a stop.
const Patience = 200 * time.Millisecond

// Silent has the connections of a server that have sent nothing yet. The zero value is ready. Its
// methods may be called concurrently.
type Silent struct {
	mu      sync.Mutex
	conns   map[net.Conn]time.Time // and when they began
	stopped bool
}

// Track is the server's ConnState hook.
func (s *Silent) Track(c net.Conn, state http.ConnState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if state != http.StateNew {
		delete(s.conns, c)
		return
	}
	if s.conns == nil {
		s.conns = make(map[net.Conn]time.Time)
	}
	s.conns[c] = time.Now()
	if s.stopped {
		s.closeAfter(c, Patience)
	}
}

// Stop closes these connections, and from now on each new one, once they have had Patience. Call it
// before the server's Shutdown, which waits for them.
func (s *Silent) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	for c, began := range s.conns {
		s.closeAfter(c, time.Until(began.Add(Patience)))
	}
}

// closeAfter closes a connection that has sent nothing until then. The caller holds mu.
func (s *Silent) closeAfter(c net.Conn, wait time.Duration) {
	if wait <= 0 {
		delete(s.conns, c)
		c.Close()
		return
	}
	time.AfterFunc(wait, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if _, silent := s.conns[c]; silent {
			s.closeAfter(c, 0)
		}
	})
}
