package api

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/ironvip/ironvip/api/request"

	"github.com/ironvip/ironvip/api/server"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/internal/access"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

func (s *Server) backendRoutes() {
	const all = v1.PathServices + "/{namespace}/{name}/backends"
	const one = all + "/{id}"
	server.HandleJSON(s.http, server.Route{Path: all, Need: access.View, ID: "list-backends", Tag: "backends", Summary: "List a service's backends"}, s.listBackends)
	server.Handle(s.http, server.Route{Path: one, Need: access.View, ID: "get-backend", Tag: "backends", Summary: "Get a backend"}, s.getBackend)
	server.Handle(s.http, server.Route{Method: http.MethodPut, Path: one, Need: access.Register, ID: "put-backend", Tag: "backends", Summary: "Register a backend",
		Description: "Adds one backend to an existing service, or replaces it. The id is address:port, or the address alone " +
			"for a backend on the service's target ports. A backend with a ttl must send heartbeats; registering again counts as one.",
		Body: v1.BackendSpec{}, BodyOptional: true, Also: map[int]any{http.StatusCreated: v1.Backend{}}}, s.putBackend)
	server.Handle(s.http, server.Route{Method: http.MethodDelete, Path: one, Need: access.Register, ID: "delete-backend", Tag: "backends", Summary: "Delete a backend",
		Description: "New connections stop at once; open ones drain."}, s.deleteBackend)
	server.Handle(s.http, server.Route{Method: http.MethodPut, Path: one + "/heartbeat", Need: access.Register, ID: "heartbeat", Tag: "backends", Summary: "Send a heartbeat",
		Description: "404: the backend must register again.", Status: http.StatusNoContent}, s.heartbeat)
}

// existing is backend for a backend that exists: it also accepts the other ids that ironvip prints.
// These are the address and port of an endpoint, as in events and counters, of a backend on the
// service's target ports; and the address alone, if no other backend has it. A key of no backend is
// returned as it is. Registrations don't use it: for them, both ids are different backends.
func (s *Server) existing(p request.BackendPath) (vip.BackendKey, error) {
	key, err := p.Backend()
	if err != nil {
		return key, err
	}
	row := s.Services.Row(key.Service)
	if row == nil {
		return key, nil
	}
	var found []vip.BackendKey
	var ids []string
	for i := range row.Value.Backends {
		b := &row.Value.Backends[i]
		own := b.Key(key.Service)
		if own == key {
			return key, nil
		}
		if b.Address != key.Address || key.Port != 0 && !listens(&row.Value, b, key.Port) {
			continue
		}
		found, ids = append(found, own), append(ids, own.ID())
	}
	switch len(found) {
	case 0:
		return key, nil
	case 1:
		return found[0], nil
	}
	return key, server.Refuse(http.StatusConflict, v1.CodeAmbiguousBackend, fmt.Sprintf("%s is not one backend of service %q: it has %s",
		key.ID(), key.Service, strings.Join(ids, " and ")), "use one of "+strings.Join(ids, ", "))
}

// listens reports whether a backend without a port of its own serves a port of the service at this
// number.
func listens(s *vip.Service, b *vip.Backend, number uint16) bool {
	return b.Port == 0 && slices.ContainsFunc(s.Ports, func(p vip.Port) bool {
		return b.Serves(p.Name) && b.Endpoint(p.TargetPort).Port() == number
	})
}

type listBackendsInput struct {
	request.ServicePath
	request.Paging
}

// listBackends costs O(the service's backends) per page.
func (s *Server) listBackends(_ context.Context, in *listBackendsInput) (out v1.BackendList, err error) {
	svc, ok := s.service(in.Key())
	if !ok {
		return out, request.NoService(in.Key())
	}
	out.Revision = svc.Revision
	out.Items, out.Next, err = request.List(in.Paging, backendOrder, svc.Status.Backends, func(b *v1.BackendStatus) vip.BackendKey {
		k := vip.BackendKey{Service: in.Key(), Port: b.Port}
		k.Address, _ = netip.ParseAddr(b.Address) // written by String
		return k
	})
	return out, err
}

// backend returns the current state of one backend.
func (s *Server) backend(key vip.BackendKey) (*object[v1.Backend], error) {
	svc, ok := s.service(key.Service)
	if !ok {
		return nil, request.NoService(key.Service)
	}
	id := key.ID()
	for _, b := range svc.Status.Backends {
		if b.ID == id && !b.Removed {
			return &object[v1.Backend]{Status: http.StatusOK, ETag: svc.ETag,
				Body: v1.Backend{Service: key.Service.String(), Revision: svc.Revision, BackendStatus: b}}, nil
		}
	}
	return nil, request.NoBackend(key)
}

func (s *Server) getBackend(_ context.Context, in *request.BackendPath) (*object[v1.Backend], error) {
	key, err := s.existing(*in)
	if err != nil {
		return nil, err
	}
	return s.backend(key)
}

type putBackendInput struct {
	request.BackendPath
	request.Payload
	request.Preconditions
	PreferWait
}

func (s *Server) putBackend(ctx context.Context, in *putBackendInput) (*object[v1.Backend], error) {
	key, err := in.Backend()
	if err != nil {
		return nil, err
	}
	if in.IfNoneMatch != "" { // it would refer to the service
		return nil, server.BadRequest("If-None-Match is not supported for backends", "remove the header")
	}
	check, err := in.Check(key.Service)
	if err != nil {
		return nil, err
	}
	if p := permitBackend(ctx, key.Address); p != nil {
		return nil, p
	}
	var body v1.BackendSpec
	if p := in.Decode(&body, v1.CodeInvalidService); p != nil {
		return nil, p
	}
	w := spec.Backend{Address: key.Address.String(), Port: spec.PortNumber(key.Port), Weight: body.Weight, State: body.State, Node: body.Node, Zone: body.Zone,
		MaxConnections: body.MaxConnections,
		Ports:          body.Ports, ForZones: body.ForZones, ForNodes: body.ForNodes}
	var ttl time.Duration
	if body.TTL != nil {
		if ttl = time.Duration(*body.TTL); ttl == 0 { // later, 0 means that there is no TTL
			return nil, request.Invalid([]vip.Problem{{Code: vip.CodeInvalid, Service: key.Service.String(), Field: "ttl",
				Message: "must be between 1s and 24h", Hint: `omit it for a backend without heartbeats`}})
		}
	}
	rev, created, err := s.Registrar.PutBackend(ctx, key.Service, w, ttl, check)
	if err != nil {
		return nil, request.WriteFailed(key, err)
	}
	server.Wrote(ctx, rev)
	what := "backend " + key.ID() + " of service \"" + key.Service.String() + "\""
	applied, err := s.apply(ctx, in.PreferWait, what, s.serviceApplied(key.Service, rev))
	if err != nil {
		return nil, err
	}
	out, err := s.backend(key)
	if heir := s.heirOf(key.Service); err != nil || heir != "" {
		return nil, request.GoneMeanwhile(what, heir)
	}
	out.PreferenceApplied = applied
	if created {
		out.Status, out.Location = http.StatusCreated, v1.BackendPath(in.Namespace, in.Name, key.ID())
	}
	return out, nil
}

type deleteBackendInput struct {
	request.BackendPath
	IfMatch string `header:"If-Match" doc:"ETag of the service version that the caller has read"`
	PreferWait
}

func (s *Server) deleteBackend(ctx context.Context, in *deleteBackendInput) (*deletedOutput, error) {
	key, err := in.Backend()
	if err != nil {
		return nil, err
	}
	check, err := request.Preconditions{IfMatch: in.IfMatch}.Check(key.Service)
	if err != nil {
		return nil, err
	}
	last, _, _ := s.Compiled.Get(key.Service)
	rev, err := s.Registrar.DeleteBackend(ctx, key, check)
	if err != nil {
		return nil, request.WriteFailed(key, err)
	}
	server.Wrote(ctx, rev)
	applied, err := s.apply(ctx, in.PreferWait, "deletion of backend "+key.ID(), s.orGone(key.Service, last, s.serviceApplied(key.Service, rev)))
	if err != nil {
		return nil, err
	}
	return &deletedOutput{PreferenceApplied: applied,
		Body: v1.Deleted{Service: key.Service.String(), Backend: key.ID(), Revision: rev, Applied: applied != ""}}, nil
}

func (s *Server) heartbeat(ctx context.Context, in *request.BackendPath) (*struct{}, error) {
	key, err := in.Backend()
	if err != nil {
		return nil, err
	}
	if err := s.Registrar.Heartbeat(ctx, key); err != nil {
		return nil, request.WriteFailed(key, err)
	}
	return nil, nil
}

var backendOrder = request.Order[vip.BackendKey]{List: "backends", Compare: compareBackends}

func compareBackends(a, b vip.BackendKey) int {
	return cmp.Or(a.Service.Compare(b.Service), a.Address.Compare(b.Address), cmp.Compare(a.Port, b.Port))
}
