package api

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"

	"github.com/ironvip/ironvip/api/request"
	"github.com/ironvip/ironvip/api/server"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/internal/access"
	"github.com/ironvip/ironvip/internal/event"
)

func (s *Server) eventRoutes() {
	content := s.http.JSON("application/json", v1.EventList{})
	maps.Copy(content, s.http.JSON(request.Ndjson, v1.Event{}))
	server.Handle(s.http, server.Route{Path: v1.PathEvents, Early: true, Need: access.View, ID: "list-events", Tag: "node", Summary: "List or follow events",
		Description: "The newest events. With Accept: application/x-ndjson the answer is a stream of lines of JSON, which begins " +
			"after the event since, and has an empty line when there was none for 15 seconds.", Content: content}, s.listEvents)
}

type listEventsInput struct {
	request.LongPaging
	Since  uint64 `query:"since" doc:"events after the one with this id; without since and cursor, the newest events, in one page"`
	Accept string `header:"Accept" hidden:"true"`
}

func (s *Server) listEvents(ctx context.Context, in *listEventsInput) (*server.Stream, error) {
	after, err := eventOrder.After(request.Paging(in.LongPaging))
	if err != nil {
		return nil, err
	}
	since := max(in.Since, after)
	newest := since == 0
	since = s.known(since)
	if request.WantsLines(in.Accept) {
		return request.StreamLines(ctx, s.http, func(to request.Lines) { s.streamEvents(to, since) })
	}
	events, _ := s.Events.Since(since)
	if newest {
		events = events[max(0, len(events)-in.Limit):]
	}
	out := v1.EventList{Last: since}
	out.Items, out.Next, err = request.List(request.Paging{Limit: in.Limit}, eventOrder, request.Convert(events, func(e event.Event) v1.Event { return v1.Event(e) }), func(e *v1.Event) uint64 { return e.ID })
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

func (s *Server) streamEvents(to request.Lines, since uint64) {
	for {
		events, more := s.Events.Since(since)
		to.Allow(0)
		for _, e := range events {
			if to.Out.Encode(v1.Event(e)) != nil {
				return
			}
			since = e.ID
		}
		if to.Flush(); !to.Wait(more) {
			return
		}
	}
}

var eventOrder = request.Order[uint64]{List: "events", Compare: cmp.Compare[uint64]}
