package api

import (
	"context"
	"net/http"
	"time"

	"github.com/ironvip/ironvip/api/server"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/internal/pipeline"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

func (s *Server) backendRoutes() {
	const all = v1.PathServices + "/{namespace}/{name}/backends"
	const one = all + "/{id}"
	server.Handle(s.http, server.Route{Path: all, ID: "list-backends", Tag: "backends", Summary: "List a service's backends"}, s.listBackends)
	server.Handle(s.http, server.Route{Path: one, ID: "get-backend", Tag: "backends", Summary: "Get a backend"}, s.getBackend)
	server.Handle(s.http, server.Route{Method: http.MethodPut, Path: one, ID: "put-backend", Tag: "backends", Summary: "Register a backend",
		Description: "Adds one backend to an existing service, or replaces it. The id is address:port, or the address alone " +
			"for a backend on the service's target ports. A backend with a ttl must send heartbeats; registering again counts as one.",
		Body: v1.BackendSpec{}, BodyOptional: true, Also: map[int]any{http.StatusCreated: v1.Backend{}}}, s.putBackend)
	server.Handle(s.http, server.Route{Method: http.MethodDelete, Path: one, ID: "delete-backend", Tag: "backends", Summary: "Delete a backend",
		Description: "New connections stop at once; open ones drain."}, s.deleteBackend)
	server.Handle(s.http, server.Route{Method: http.MethodPut, Path: one + "/heartbeat", ID: "heartbeat", Tag: "backends", Summary: "Send a heartbeat",
		Description: "404: the backend must register again.", Status: http.StatusNoContent}, s.heartbeat)
}

// BackendPath identifies a backend. Inputs embed it, so it is exported: huma ignores unexported
// fields.
type BackendPath struct {
	ServicePath
	ID string `path:"id" doc:"address:port, or address; IPv6 with a port as [address]:port"`
}

func (p BackendPath) backend() (vip.BackendKey, error) {
	addr, port, err := vip.ParseBackendID(p.ID)
	if err != nil {
		return vip.BackendKey{}, server.BadRequest(err.Error(), "use ADDRESS:PORT, for example 10.1.0.11:8080",
			vip.Problem{Code: vip.CodeInvalid, Field: "path.id", Message: err.Error()})
	}
	return vip.BackendKey{Service: p.key(), Address: addr, Port: port}, nil
}

type backendsOutput struct{ Body v1.BackendList }

func (s *Server) listBackends(_ context.Context, in *ServicePath) (*backendsOutput, error) {
	svc, ok := s.service(in.key())
	if !ok {
		return nil, noService(in.key())
	}
	return &backendsOutput{Body: v1.BackendList{Items: svc.Status.Backends, Revision: svc.Revision}}, nil
}

// backend returns the current state of one backend.
func (s *Server) backend(key vip.BackendKey) (*object[v1.Backend], error) {
	svc, ok := s.service(key.Service)
	if !ok {
		return nil, noService(key.Service)
	}
	id := key.ID()
	for _, b := range svc.Status.Backends {
		if b.ID == id && !b.Removed {
			return &object[v1.Backend]{Status: http.StatusOK, ETag: svc.ETag,
				Body: v1.Backend{Service: key.Service.String(), Revision: svc.Revision, BackendStatus: b}}, nil
		}
	}
	return nil, noBackend(key)
}

func (s *Server) getBackend(_ context.Context, in *BackendPath) (*object[v1.Backend], error) {
	key, err := in.backend()
	if err != nil {
		return nil, err
	}
	return s.backend(key)
}

type putBackendInput struct {
	BackendPath
	Payload
	Preconditions
	PreferWait
}

func (s *Server) putBackend(ctx context.Context, in *putBackendInput) (*object[v1.Backend], error) {
	key, err := in.backend()
	if err != nil {
		return nil, err
	}
	if in.IfNoneMatch != "" { // it would refer to the service
		return nil, server.BadRequest("If-None-Match is not supported for backends", "remove the header")
	}
	check, err := in.check(key.Service)
	if err != nil {
		return nil, err
	}
	var body v1.BackendSpec
	if p := in.decode(&body); p != nil {
		return nil, p
	}
	w := spec.Backend{Address: key.Address.String(), Port: spec.PortNumber(key.Port), Weight: body.Weight, State: body.State, Node: body.Node, Zone: body.Zone,
		MaxConnections: body.MaxConnections,
		Ports:          body.Ports, ForZones: body.ForZones, ForNodes: body.ForNodes}
	var ttl time.Duration
	if body.TTL != nil {
		if ttl = time.Duration(*body.TTL); ttl == 0 { // later, 0 means that there is no TTL
			return nil, invalid([]vip.Problem{{Code: vip.CodeInvalid, Service: key.Service.String(), Field: "ttl",
				Message: "must be between 1s and 24h", Hint: `omit it for a backend without heartbeats`}})
		}
	}
	rev, created, err := s.Registrar.PutBackend(ctx, key.Service, w, ttl, check)
	if err != nil {
		return nil, writeFailed(key, err)
	}
	applied, err := s.apply(ctx, in.PreferWait, "backend "+key.ID(), s.serviceApplied(key.Service, rev))
	if err != nil {
		return nil, err
	}
	out, err := s.backend(key)
	if err != nil {
		return nil, goneMeanwhile("backend " + key.ID() + " of service \"" + key.Service.String() + "\"")
	}
	out.PreferenceApplied = applied
	if created {
		out.Status, out.Location = http.StatusCreated, v1.BackendPath(in.Namespace, in.Name, key.ID())
	}
	return out, nil
}

func (s *Server) serviceApplied(key vip.ServiceKey, rev uint64) func(context.Context) ([]vip.Problem, error) {
	return func(ctx context.Context) ([]vip.Problem, error) {
		return pipeline.WaitApplied(ctx, s.Compiled, s.Applied, key, rev)
	}
}

type deleteBackendInput struct {
	BackendPath
	IfMatch string `header:"If-Match" doc:"ETag of the service version that the caller has read"`
	PreferWait
}

func (s *Server) deleteBackend(ctx context.Context, in *deleteBackendInput) (*deletedOutput, error) {
	key, err := in.backend()
	if err != nil {
		return nil, err
	}
	check, err := Preconditions{IfMatch: in.IfMatch}.check(key.Service)
	if err != nil {
		return nil, err
	}
	rev, err := s.Registrar.DeleteBackend(ctx, key, check)
	if err != nil {
		return nil, writeFailed(key, err)
	}
	applied, err := s.apply(ctx, in.PreferWait, "deletion of backend "+key.ID(), s.serviceApplied(key.Service, rev))
	if err != nil {
		return nil, err
	}
	return &deletedOutput{PreferenceApplied: applied,
		Body: v1.Deleted{Service: key.Service.String(), Backend: key.ID(), Revision: rev, Applied: applied != ""}}, nil
}

func (s *Server) heartbeat(ctx context.Context, in *BackendPath) (*struct{}, error) {
	key, err := in.backend()
	if err != nil {
		return nil, err
	}
	if err := s.Registrar.Heartbeat(ctx, key); err != nil {
		return nil, writeFailed(key, err)
	}
	return nil, nil
}
