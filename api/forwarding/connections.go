package forwarding

import (
	"context"
	"encoding/json"
	"iter"
	"net/http"
	"net/netip"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/ironvip/ironvip/api/request"

	"github.com/ironvip/ironvip/api/server"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/vip"
)

type listConnectionsInput struct {
	Service string `query:"service" doc:"of this service only: \"name\" or \"namespace/name\""`
	Limit   int    `query:"limit" minimum:"1" doc:"end the list after this many connections; absent: list all"`
}

// listConnections keeps no more of the list in memory than the dataplane does. The first connection
// is read before the response begins, so that an unreadable dataplane has an ordinary problem.
func (h *Handlers) listConnections(ctx context.Context, in *listConnectionsInput) (*server.Stream, error) {
	at := h.serviceFinder()
	want := func(key vip.FrontendKey) bool { _, known := at(key); return known }
	if in.Service != "" {
		of, err := request.ServiceParameter(in.Service)
		if err != nil {
			return nil, err
		}
		if h.Tables.Services.Row(of) == nil && !h.drains(of) {
			return nil, request.NoService(of)
		}
		want = func(key vip.FrontendKey) bool { service, known := at(key); return known && service == of }
	}
	end, err := h.http.OpenStream(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := readingTime(ctx)
	next, stop := iter.Pull2(h.connections(ctx, want, in.Limit))
	done := func() { stop(); cancel(); end() }
	c, err, more := next()
	if err != nil {
		done()
		return nil, unreadable("list the connections of", err)
	}
	return server.NewStream(func(h huma.Context) {
		defer done()
		h.SetHeader("Content-Type", request.Ndjson)
		h.SetStatus(http.StatusOK)
		out := json.NewEncoder(h.BodyWriter())
		for ; more; c, err, more = next() {
			line := v1.Connection{}
			if err != nil {
				line.Problem = &v1.Problem{Code: v1.CodeDataplane, Message: "the list is not complete: " + err.Error()}
			} else {
				service, _ := at(c.Frontend)
				line = connection(service, c)
			}
			if out.Encode(line) != nil { // the caller is gone
				return
			}
		}
	}), nil
}

// connections yields the connections to wanted frontends, at most limit of them if that is not 0,
// and an error at the end if the list is not complete.
func (h *Handlers) connections(ctx context.Context, want func(vip.FrontendKey) bool, limit int) iter.Seq2[reconcile.Connection, error] {
	return func(yield func(reconcile.Connection, error) bool) {
		n, wanted := 0, true
		err := h.ConnectionLister.ListConnections(ctx, want, func(c reconcile.Connection) bool {
			n++
			wanted = yield(c, nil)
			return wanted && n != limit
		})
		if err != nil && wanted {
			yield(reconcile.Connection{}, err)
		}
	}
}

// drains reports whether a removed service has frontends, which drain. It costs O(frontends).
func (h *Handlers) drains(key vip.ServiceKey) bool {
	for _, f := range h.Tables.Frontends.All() {
		if f.Service == key {
			return true
		}
	}
	return false
}

func connection(service vip.ServiceKey, c reconcile.Connection) v1.Connection {
	out := v1.Connection{Service: service.String(), Frontend: c.Frontend.String(), Client: c.Client.String(), Backend: c.Backend.String(),
		State: c.State, Expires: uint64(c.Expires / time.Second)}
	if c.Client.Port() == 0 {
		out.Client = c.Client.Addr().String()
	}
	return out
}

// serviceFinder returns a function that finds the service of a frontend, which may be a single port
// of a range. It costs O(frontends) once, and then O(ranges of the address).
func (h *Handlers) serviceFinder() func(vip.FrontendKey) (vip.ServiceKey, bool) {
	ranges := map[netip.Addr][]vip.Frontend{}
	for key, f := range h.Tables.Frontends.All() {
		if key.Ranged() {
			ranges[key.Addr] = append(ranges[key.Addr], f)
		}
	}
	return func(key vip.FrontendKey) (vip.ServiceKey, bool) {
		for _, audience := range []vip.Audience{key.Audience, vip.Everyone, vip.InternalClients} {
			key.Audience = audience
			if row := h.Tables.Frontends.Row(key); row != nil {
				return row.Value.Service, true
			}
		}
		for _, f := range ranges[key.Addr] {
			if f.Key.Protocol == key.Protocol && f.Key.Port <= key.Port && key.Port <= f.Key.LastPort {
				return f.Service, true
			}
		}
		return vip.ServiceKey{}, false
	}
}
