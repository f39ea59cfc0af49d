// Package httpstop ends an HTTP server without losing a request and without waiting for connections
// that have sent nothing.
//
// Its input is the states of a server's connections. http.Server's Shutdown drops a request that it
// reads after its begin, and waits 5 s for a connection without any byte of a request. Clients that
// connect in advance would delay the stop by this time. Here, connections are answered until they
// end, and one that is new has Patience for its request.
package httpstop

import (
	"context"
	"net"
	"net/http"
	"sync"
	"time"
)

// Patience is how long after its start a connection may send the first byte of a request during a stop.
const Patience = 200 * time.Millisecond

// Conns has the open connections of a server. The zero value is ready. Its methods may be called
// concurrently.
type Conns struct {
	mu     sync.Mutex
	open   int
	silent map[net.Conn]time.Time // those that have sent nothing yet, and when they began
	none   chan struct{}          // closed when the last one has ended; nil before Stop
}

// Track is the server's ConnState hook.
func (s *Conns) Track(c net.Conn, state http.ConnState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch state {
	case http.StateNew:
		if s.silent == nil {
			s.silent = make(map[net.Conn]time.Time)
		}
		s.open++
		s.silent[c] = time.Now()
		if s.none != nil {
			s.closeAfter(c, Patience)
		}
		return
	case http.StateClosed, http.StateHijacked:
		s.open--
	}
	delete(s.silent, c)
	s.checkNone()
}

// Stop ends the server. Each connection ends with its answer, and those without a request at once, or
// after Patience. When ctx ends, the rest is cut off. Call it once, after the listeners were closed.
func (s *Conns) Stop(ctx context.Context, server *http.Server) {
	server.SetKeepAlivesEnabled(false) // also closes those that are idle
	s.mu.Lock()
	s.none = make(chan struct{})
	for c, began := range s.silent {
		s.closeAfter(c, time.Until(began.Add(Patience)))
	}
	s.checkNone()
	none := s.none
	s.mu.Unlock()
	select {
	case <-none:
	case <-ctx.Done():
	}
	_ = server.Close()
}

// checkNone closes none if no connection is open. The caller holds mu.
func (s *Conns) checkNone() {
	if s.none == nil || s.open > 0 {
		return
	}
	select {
	case <-s.none:
	default:
		close(s.none)
	}
}

// closeAfter closes a connection that has sent nothing until then. The caller holds mu.
func (s *Conns) closeAfter(c net.Conn, wait time.Duration) {
	if wait <= 0 {
		delete(s.silent, c)
		c.Close()
		return
	}
	time.AfterFunc(wait, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if _, silent := s.silent[c]; silent {
			s.closeAfter(c, 0)
		}
	})
}
