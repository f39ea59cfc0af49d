package api

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/ironvip/ironvip/api/server"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/internal/access"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/vip"
)

// keepAlive is the interval of keep-alive comments in a stream without events.
const keepAlive = 15 * time.Second

func (s *Server) eventRoutes() {
	content := s.http.JSON("application/json", v1.EventList{})
	maps.Copy(content, server.Text(eventStream, "each event as JSON in a data line, its id in an id line"))
	server.Handle(s.http, server.Route{Path: v1.PathEvents, Early: true, Need: access.View, ID: "list-events", Tag: "node", Summary: "List or follow events",
		Description: "The newest events. With Accept: text/event-stream the answer is a stream that continues " +
			"after the event that Last-Event-ID names.", Content: content, Lacks: server.Needs(s.Events != nil, "events")}, s.listEvents)
}

type listEventsInput struct {
	LongPaging
	Since  uint64 `query:"since" doc:"events after the one with this id; without since and cursor, the newest events, in one page"`
	Accept string `header:"Accept" hidden:"true"`
	LastID string `header:"Last-Event-ID" doc:"for a stream: the last event that the caller has received"`
}

func (s *Server) listEvents(ctx context.Context, in *listEventsInput) (*server.Stream, error) {
	after, err := eventOrder.after(Paging(in.LongPaging))
	if err != nil {
		return nil, err
	}
	since := max(in.Since, after)
	if in.LastID != "" {
		id, err := strconv.ParseUint(in.LastID, 10, 64)
		if err != nil {
			return nil, server.BadRequest("Last-Event-ID: "+in.LastID+" is not an event id", "send the id of the last event received",
				vip.Problem{Code: vip.CodeInvalid, Field: "header.Last-Event-ID", Message: "is not a number"})
		}
		since = id
	}
	newest := since == 0
	since = s.known(since)
	if wantsEvents(in.Accept, "application/json") {
		done, err := s.http.OpenStream(ctx)
		if err != nil {
			return nil, err
		}
		return server.NewStream(func(h huma.Context) {
			defer done()
			s.streamEvents(h, since)
		}), nil
	}
	events, _ := s.Events.Since(since)
	if newest {
		events = events[max(0, len(events)-in.Limit):]
	}
	out := v1.EventList{Last: since}
	out.Items, out.Next, err = list(Paging{Limit: in.Limit}, eventOrder, convert(events, func(e event.Event) v1.Event { return v1.Event(e) }), func(e *v1.Event) uint64 { return e.ID })
	if err != nil {
		return nil, err
	}
	if n := len(out.Items); n > 0 {
		out.Last = out.Items[n-1].ID
	}
	body, err := json.Marshal(out)
	return server.Raw("application/json", append(body, '\n')), err
}

// known returns id, or 0 if this run of the agent has not issued id. An unknown id comes from an
// earlier run, so the caller needs all events of this run.
func (s *Server) known(id uint64) uint64 {
	if s.Events.Issued(id) {
		return id
	}
	return 0
}

func (s *Server) streamEvents(ctx huma.Context, since uint64) {
	ctx.SetHeader("Content-Type", eventStream)
	ctx.SetHeader("X-Accel-Buffering", "no")
	ctx.SetStatus(http.StatusOK)
	w, done := ctx.BodyWriter(), ctx.Context().Done()
	tick := time.NewTicker(keepAlive)
	defer tick.Stop()
	for {
		events, more := s.Events.Since(since)
		server.Allow(ctx.Context(), answerTime)
		for _, e := range events {
			if err := writeEvent(w, e); err != nil {
				return
			}
			since = e.ID
		}
		flush(ctx)
		select {
		case <-done:
			return
		case <-more:
		case <-tick.C:
			if _, err := fmt.Fprint(w, ": still here\n\n"); err != nil {
				return
			}
		}
	}
}

func writeEvent(w io.Writer, e event.Event) error {
	b, err := json.Marshal(v1.Event(e))
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "id: %d\ndata: %s\n\n", e.ID, b)
	return err
}
