package server

import (
	"context"
	"net/http"
	"sync"

	v1 "github.com/ironvip/ironvip/api/v1"
)

// streams are the open responses without an end or a known length.
type streams struct {
	mu sync.Mutex
	tally
}

// MostStreams returns how many responses without an end may be open: as many as half of the
// connections of a listener, so that other requests are answered. 0: no bound.
func (s *Server) MostStreams() int {
	if s.Connections == 0 {
		return 0
	}
	return max(s.Connections/2, 1)
}

// MostClientStreams returns how many of MostStreams one client may have, so that others have some. 0: no
// bound.
func (s *Server) MostClientStreams() int { return s.MostStreams() - s.MostStreams()/4 }

// OpenStream counts a response without an end or a known length, to a request with ctx. The caller calls
// done at its end.
func (s *Server) OpenStream(ctx context.Context) (done func(), err error) {
	var who client
	if p, known := ctx.Value(peerKey{}).(*peer); known {
		who = p.client
	}
	all := &s.streams
	all.mu.Lock()
	defer all.mu.Unlock()
	switch most, each := s.MostStreams(), s.MostClientStreams(); {
	case each > 0 && who != client{} && all.of[who] >= each:
		s.RefusedStreamsOfClients.add()
		return nil, tooManyStreams("too many streams of " + who.String())
	case most > 0 && all.open >= most:
		s.RefusedStreams.add()
		return nil, tooManyStreams("too many streams")
	}
	all.count(who, 1)
	return sync.OnceFunc(func() {
		all.mu.Lock()
		defer all.mu.Unlock()
		all.count(who, -1)
	}), nil
}

func tooManyStreams(detail string) *Problem {
	return Refuse(http.StatusServiceUnavailable, v1.CodeOverloaded, detail,
		"close streams that are not needed, try again later, or read a list with pages instead").RetryAfter(5)
}
