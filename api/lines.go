package api

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

// ndjson is the type of a response with one JSON document per line.
const ndjson = "application/x-ndjson"

// keepAlive is the interval of empty lines in a stream without documents.
const keepAlive = 15 * time.Second

// wantsLines reports whether an Accept header asks for a stream of lines rather than for one document. It must
// name them: a wildcard is in the requests of programs that read the document.
func wantsLines(accept string) bool {
	return negotiation.SelectQValue(strings.ToLower(accept), []string{ndjson, "application/json"}) == ndjson
}

// lines is a response of lines.
type lines struct {
	h   huma.Context
	out *json.Encoder
}

// streamLines returns a response without an end, or of unknown length, that write writes.
func (s *Server) streamLines(ctx context.Context, write func(lines)) (*server.Stream, error) {
	end, err := s.http.OpenStream(ctx)
	if err != nil {
		return nil, err
	}
	return server.NewStream(func(h huma.Context) {
		defer end()
		h.SetHeader("Content-Type", ndjson)
		h.SetHeader("X-Accel-Buffering", "no") // of a proxy in between
		h.SetStatus(http.StatusOK)
		write(lines{h, json.NewEncoder(h.BodyWriter())})
	}), nil
}

// done is closed once the caller is gone, or no longer permitted.
func (l lines) done() <-chan struct{} { return l.h.Context().Done() }

// allow gives the caller time to receive the next lines, after a wait.
func (l lines) allow(wait time.Duration) { server.Allow(l.h.Context(), wait+answerTime) }

// flush sends the lines so far.
func (l lines) flush() {
	if f, ok := l.h.BodyWriter().(http.Flusher); ok {
		f.Flush()
	}
}

// wait waits for a change, and sends an empty line whenever there was none for keepAlive. It reports whether the caller
// is still there, and permitted.
func (l lines) wait(changed <-chan struct{}) bool {
	tick := time.NewTicker(keepAlive)
	defer tick.Stop()
	for {
		select {
		case <-l.done():
			return false
		case <-changed:
			return true
		case <-tick.C:
			l.allow(0)
			_, err := l.h.BodyWriter().Write([]byte("\n"))
			if l.flush(); err != nil {
				return false
			}
		}
	}
}
