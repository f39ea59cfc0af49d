package request

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/negotiation"

	"github.com/ironvip/ironvip/api/server"
)

// Ndjson is the type of a response with one JSON document per line.
const Ndjson = "application/x-ndjson"

// keepAlive is the interval of empty lines in a stream without documents.
const keepAlive = 15 * time.Second

// WantsLines reports whether an Accept header asks for a stream of lines rather than for one document. It must
// name them: a wildcard is in the requests of programs that read the document.
func WantsLines(accept string) bool {
	return negotiation.SelectQValue(strings.ToLower(accept), []string{Ndjson, "application/json"}) == Ndjson
}

const (
	// MaxWait bounds how long a request may wait for something.
	MaxWait = 5 * time.Minute
	// AnswerTime bounds the writing of a response after a wait.
	AnswerTime = 30 * time.Second
)

// Lines is a response of lines.
type Lines struct {
	H   huma.Context
	Out *json.Encoder
}

// StreamLines returns a response without an end, or of unknown length, that write writes.
func StreamLines(ctx context.Context, s *server.Server, write func(Lines)) (*server.Stream, error) {
	end, err := s.OpenStream(ctx)
	if err != nil {
		return nil, err
	}
	return server.NewStream(func(h huma.Context) {
		defer end()
		h.SetHeader("Content-Type", Ndjson)
		h.SetHeader("X-Accel-Buffering", "no") // of a proxy in between
		h.SetStatus(http.StatusOK)
		write(Lines{h, json.NewEncoder(h.BodyWriter())})
	}), nil
}

// Done is closed once the caller is gone, or no longer permitted.
func (l Lines) Done() <-chan struct{} { return l.H.Context().Done() }

// Allow gives the caller time to receive the next lines, after a wait.
func (l Lines) Allow(wait time.Duration) { server.Allow(l.H.Context(), wait+AnswerTime) }

// Flush sends the lines so far.
func (l Lines) Flush() {
	if f, ok := l.H.BodyWriter().(http.Flusher); ok {
		f.Flush()
	}
}

// Wait waits for a change, and sends an empty line whenever there was none for keepAlive. It reports whether the caller
// is still there, and permitted.
func (l Lines) Wait(changed <-chan struct{}) bool {
	tick := time.NewTicker(keepAlive)
	defer tick.Stop()
	for {
		select {
		case <-l.Done():
			return false
		case <-changed:
			return true
		case <-tick.C:
			l.Allow(0)
			_, err := l.H.BodyWriter().Write([]byte("\n"))
			if l.Flush(); err != nil {
				return false
			}
		}
	}
}
