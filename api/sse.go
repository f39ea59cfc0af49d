package api

import (
	"bytes"
	"io"
	"strings"

	"github.com/danielgtaylor/huma/v2/negotiation"
)

// eventStream is the content type of server-sent events, which browsers read.
const eventStream = "text/event-stream"

// wantsEvents reports whether an Accept header asks for server-sent events rather than for the other kind
// of a route. It must name them: a wildcard is in the requests of programs, which read the other kind.
func wantsEvents(accept, other string) bool {
	return negotiation.SelectQValue(strings.ToLower(accept), []string{eventStream, other}) == eventStream
}

// mostData bounds the lines of one event, so that a browser shows the first of many services early.
const mostData = 500

// eventWriter writes lines as server-sent events: each line as a line of data, many of them in one
// event, because a browser handles an event at a time. Its user calls end before it waits for more.
type eventWriter struct {
	to    io.Writer
	lines int // of the open event
	buf   bytes.Buffer
}

// begin writes how soon a browser connects again after the stream has broken off, in milliseconds.
func (w *eventWriter) begin() error {
	_, err := io.WriteString(w.to, "retry: 1000\n\n")
	return err
}

// line adds a line, without its end, to the open event.
func (w *eventWriter) line(line []byte) error {
	w.buf.WriteString("data: ")
	w.buf.Write(line)
	w.buf.WriteByte('\n')
	if w.lines++; w.lines < mostData {
		return nil
	}
	return w.end()
}

// end ends the open event, if there is one.
func (w *eventWriter) end() error {
	if w.lines == 0 {
		return nil
	}
	w.buf.WriteByte('\n')
	_, err := w.to.Write(w.buf.Bytes())
	w.buf.Reset()
	w.lines = 0
	return err
}

// keepAlive writes a comment, which browsers ignore.
func (w *eventWriter) keepAlive() error {
	_, err := io.WriteString(w.to, ": still here\n\n")
	return err
}

// lineWriter writes lines as they are, with an empty one to keep the connection open.
type lineWriter struct{ to io.Writer }

func (w lineWriter) begin() error { return nil }
func (w lineWriter) end() error   { return nil }

func (w lineWriter) line(line []byte) error {
	_, err := w.to.Write(append(line, '\n'))
	return err
}

func (w lineWriter) keepAlive() error { return w.line(nil) }

// lines is one of the forms of a stream of lines.
type lines interface {
	begin() error
	line([]byte) error
	end() error
	keepAlive() error
}
