package server

import (
	"context"
	"net/http"
	"sync"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/internal/connlimit"
)

// bounded counts what the requests of clients hold until they end, within bounds.
type bounded struct {
	mu sync.Mutex
	connlimit.Tally
}

// open counts one more of the client with ctx, unless there are most, or each of this client. 0: no bound. The
// caller calls done at its end. Otherwise mine reports whether it is the client's own bound.
func (b *bounded) open(ctx context.Context, most, each int) (done func(), who connlimit.Client, mine bool) {
	if p, known := ctx.Value(peerKey{}).(*peer); known {
		who = p.client
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if each > 0 && who != (connlimit.Client{}) && b.Of(who) >= each {
		return nil, who, true
	}
	if most > 0 && b.Open >= most {
		return nil, who, false
	}
	b.Add(who, 1)
	return sync.OnceFunc(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.Add(who, -1)
	}), who, false
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
	done, who, mine := s.streams.open(ctx, s.MostStreams(), s.MostClientStreams())
	switch {
	case mine:
		s.RefusedStreamsOfClients.add()
		return nil, tooManyStreams("too many streams of " + who.String())
	case done == nil:
		s.RefusedStreams.add()
		return nil, tooManyStreams("too many streams")
	}
	return done, nil
}

// Large bodies are read while the request holds them: this many at one time, and of one client.
const mostLarge, mostLargeOfClient = 4, 2

// OpenLarge admits a request with a body that may have many MiB, until the end of the request.
func OpenLarge(ctx context.Context) *Problem {
	of := requestOf(ctx)
	if of == nil { // a test calls a handler without a request
		return nil
	}
	done, who, mine := of.server.large.open(ctx, mostLarge, mostLargeOfClient)
	if of.done = done; done != nil {
		return nil
	}
	detail := "too many large requests at one time"
	if mine {
		detail += " of " + who.String()
	}
	return Refuse(http.StatusServiceUnavailable, v1.CodeOverloaded, detail, "send them one after the other, or try again later").RetryAfter(1)
}

func tooManyStreams(detail string) *Problem {
	return Refuse(http.StatusServiceUnavailable, v1.CodeOverloaded, detail,
		"close streams that are not needed, try again later, or read a list with pages instead").RetryAfter(5)
}
