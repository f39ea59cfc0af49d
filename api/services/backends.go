package services

import (
	"context"
	"net/http"
	"net/netip"
	"time"

	"github.com/ironvip/ironvip/api/request"
	"github.com/ironvip/ironvip/api/server"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

type listBackendsInput struct {
	request.ServicePath
	request.Paging
}

// listBackends costs O(the service's backends) per page.
func (h *Handlers) listBackends(_ context.Context, in *listBackendsInput) (out v1.BackendList, err error) {
	svc, ok := h.Service(in.Key())
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
func (h *Handlers) backend(key vip.BackendKey) (*request.Object[v1.Backend], error) {
	svc, ok := h.Service(key.Service)
	if !ok {
		return nil, request.NoService(key.Service)
	}
	id := key.ID()
	for _, b := range svc.Status.Backends {
		if b.ID == id && !b.Removed {
			return &request.Object[v1.Backend]{Status: http.StatusOK, ETag: svc.ETag,
				Body: v1.Backend{Service: key.Service.String(), Revision: svc.Revision, BackendStatus: b}}, nil
		}
	}
	return nil, request.NoBackend(key)
}

func (h *Handlers) getBackend(_ context.Context, in *request.BackendPath) (*request.Object[v1.Backend], error) {
	key, err := in.Existing(h.Tables.Services)
	if err != nil {
		return nil, err
	}
	return h.backend(key)
}

type putBackendInput struct {
	request.BackendPath
	request.Payload
	Preconditions
	PreferWait
}

func (h *Handlers) putBackend(ctx context.Context, in *putBackendInput) (*request.Object[v1.Backend], error) {
	key, err := in.Backend()
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
	if p := permitBackend(ctx, key.Address); p != nil {
		return nil, p
	}
	var body v1.BackendSpec
	if p := in.Decode(&body, v1.CodeInvalidService); p != nil {
		return nil, p
	}
	w := spec.Backend{Address: key.Address.String(), Port: spec.PortNumber(key.Port), Weight: body.Weight, State: body.State, Group: body.Group, Node: body.Node, Zone: body.Zone,
		MaxConnections: body.MaxConnections,
		Ports:          body.Ports, ForZones: body.ForZones, ForNodes: body.ForNodes}
	var ttl time.Duration
	if body.TTL != nil {
		if ttl = time.Duration(*body.TTL); ttl == 0 { // later, 0 means that there is no TTL
			return nil, request.Invalid([]vip.Problem{{Code: vip.CodeInvalid, Service: key.Service.String(), Field: "ttl",
				Message: "must be between 1s and 24h", Hint: `omit it for a backend without heartbeats`}})
		}
	}
	rev, created, err := h.Registrar.PutBackend(ctx, key.Service, w, ttl, check)
	if err != nil {
		return nil, writeFailed(key, err)
	}
	server.Wrote(ctx, rev)
	what := "backend " + key.ID() + " of service \"" + key.Service.String() + "\""
	applied, err := h.apply(ctx, in.PreferWait, what, h.serviceApplied(key.Service, rev))
	if err != nil {
		return nil, err
	}
	out, err := h.backend(key)
	if heir := h.heirOf(key.Service); err != nil || heir != "" {
		return nil, goneMeanwhile(what, heir)
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

func (h *Handlers) deleteBackend(ctx context.Context, in *deleteBackendInput) (*deletedOutput, error) {
	key, err := in.Backend()
	if err != nil {
		return nil, err
	}
	check, err := Preconditions{IfMatch: in.IfMatch}.check(key.Service)
	if err != nil {
		return nil, err
	}
	last, _, _ := h.Tables.Compiled.Get(key.Service)
	rev, err := h.Registrar.DeleteBackend(ctx, key, check)
	if err != nil {
		return nil, writeFailed(key, err)
	}
	server.Wrote(ctx, rev)
	applied, err := h.apply(ctx, in.PreferWait, "deletion of backend "+key.ID(), h.orGone(key.Service, last, h.serviceApplied(key.Service, rev)))
	if err != nil {
		return nil, err
	}
	return &deletedOutput{PreferenceApplied: applied,
		Body: v1.Deleted{Service: key.Service.String(), Backend: key.ID(), Revision: rev, Applied: applied != ""}}, nil
}

func (h *Handlers) heartbeat(ctx context.Context, in *request.BackendPath) (*struct{}, error) {
	key, err := in.Backend()
	if err != nil {
		return nil, err
	}
	if err := h.Registrar.Heartbeat(ctx, key); err != nil {
		return nil, writeFailed(key, err)
	}
	return nil, nil
}

var backendOrder = request.Order[vip.BackendKey]{List: "backends", Compare: vip.BackendKey.Compare}
