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
	mu    sync.Mutex
	at    connlimit.Tally // of the clients by where they are
	named connlimit.Tally // of the callers by their token or certificate, wherever they are
}

// open counts one more of the client with ctx, unless there are most, or each of this client or of its token or
// certificate. 0: no bound. The caller calls done at its end. Otherwise whose is the client with a bound of its own, or
// the zero value if the bound is that of all.
func (b *bounded) open(ctx context.Context, most, each int) (done func(), whose connlimit.Client) {
	client, caller := clientOf(ctx)
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case each > 0 && b.at.Of(client) >= each:
		return nil, client
	case each > 0 && b.named.Of(caller) >= each:
		return nil, caller
	case most > 0 && b.at.Open >= most:
		return nil, connlimit.Client{}
	}
	add := func(n int) {
		b.at.Add(client, n)
		b.named.Add(caller, n)
	}
	add(1)
	return sync.OnceFunc(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		add(-1)
	}), connlimit.Client{}
}

// clientOf returns the client of a request, and the holder of its token or certificate; the zero value: unknown, or
// none.
func clientOf(ctx context.Context) (client, caller connlimit.Client) {
	of := requestOf(ctx)
	if of.peer != nil {
		client = of.peer.client
	}
	if of.peer == nil || of.caller.Name != of.peer.who() {
		caller.Name = of.caller.Name
	}
	return client, caller
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

// OpenStream counts a response without an end or a known length, or one that waits for a change, to a request with
// ctx. The caller calls done at its end.
func (s *Server) OpenStream(ctx context.Context) (done func(), err error) {
	done, whose := s.streams.open(ctx, s.MostStreams(), s.MostClientStreams())
	switch {
	case whose != connlimit.Client{}:
		s.RefusedStreamsOfClients.add()
		return nil, tooManyStreams("too many streams of " + whose.String())
	case done == nil:
		s.RefusedStreams.add()
		return nil, tooManyStreams("too many streams")
	}
	return done, nil
}

// Large bodies are read while the request holds them: this many at one time, and of one client.
const mostLarge, mostLargeOfClient = 4, 2

// openLarge admits a request with a body that may have many MiB, until the end of the request.
func (s *Server) openLarge(ctx context.Context) *Problem {
	of := requestOf(ctx)
	done, whose := s.large.open(ctx, mostLarge, mostLargeOfClient)
	if of.done = done; done != nil {
		return nil
	}
	detail := "too many large requests at one time"
	if whose != (connlimit.Client{}) {
		detail += " of " + whose.String()
	}
	return Refuse(http.StatusServiceUnavailable, v1.CodeOverloaded, detail, "send them one after the other, or try again later").RetryAfter(1)
}

func tooManyStreams(detail string) *Problem {
	return Refuse(http.StatusServiceUnavailable, v1.CodeOverloaded, detail,
		"close streams and blocking reads that are not needed, try again later, or read a list with pages instead").RetryAfter(5)
}
