// Package services serves the routes of services, their backends, and operator overrides.
//
// Its input is requests. A write is validated and stored durably by the Registrar, and answered with its revision. A caller
// may wait until the dataplane has applied the write; if that fails, the response gives the reason. Its output is the rows
// of services with their statuses. It owns no table, and makes no decisions about services.
//
// Files:
//
//	handlers.go   the routes
//	services.go   services: list, get, put, patch, delete, explain
//	backends.go   backends: register, delete, heartbeat
//	overrides.go  operator overrides of the states of backends and the weights of groups
//	apply.go      many services in one request, and plans
//	watch.go      a stream of services
//	view.go       a service's status in the API's form
//	wait.go       blocking reads, and writes that wait for the dataplane
//	permit.go     what a caller may register
//	conditions.go ETags and conditional requests
//	problem.go    the problems of refused writes
package services

import (
	"context"
	"net/http"
	"time"

	"github.com/ironvip/ironvip/api/request"
	"github.com/ironvip/ironvip/api/server"
	"github.com/ironvip/ironvip/api/status"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/internal/access"
	"github.com/ironvip/ironvip/pipeline"
	"github.com/ironvip/ironvip/pipeline/overrides"
	"github.com/ironvip/ironvip/proxy/balance"
	"github.com/ironvip/ironvip/sources/rest"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

// Registrar performs the writes: *rest.Source.
type Registrar interface {
	PutService(context.Context, rest.Put) (rest.Result, error)
	PutServices(ctx context.Context, puts []rest.Put, atomic bool) ([]rest.Result, error)
	Propose(context.Context, []rest.Put) ([]rest.Result, error)
	DeleteService(context.Context, vip.ServiceKey, rest.Check) (rev uint64, err error)
	PutBackend(ctx context.Context, key vip.ServiceKey, b spec.Backend, ttl time.Duration, check rest.Check) (rev uint64, created bool, err error)
	DeleteBackend(context.Context, vip.BackendKey, rest.Check) (rev uint64, err error)
	Heartbeat(context.Context, vip.BackendKey) error
	HeartbeatStatuses(vip.ServiceKey) map[string]rest.HeartbeatStatus
}

// Deps contains what the handlers read and call, beside the tables of statuses. Nothing may be nil unless it says so.
type Deps struct {
	Registrar Registrar
	SetState  func(context.Context, overrides.Request) (overrides.Result, error) // overrides a backend's state or a group's weight
	// LocalOverrides returns the changes of overrides that are stored on this host only.
	LocalOverrides func() []vip.BackendState
	// Overridden waits until the overrides up to a revision are compiled.
	Overridden func(ctx context.Context, rev uint64) error
	// DrainsKept waits until the current drains would survive a kill.
	DrainsKept func(context.Context) error

	// Preview returns what the allocator would grant, and grants nothing.
	Preview func([]vip.Service) []vip.Allocation
	// LastFailure returns when a probe of a backend last failed, and why; nil: this host runs none.
	LastFailure func(*vip.Service, *vip.Backend) (at vip.Instant, why string)
	// Proxy has the clients that the userspace proxy refused, and the failed connections of backends. Its result is empty while
	// another dataplane serves, which does not see them.
	Proxy func() *balance.Report
	Mode  func() string // the dataplane that serves
}

// Handlers answer the requests.
type Handlers struct {
	Deps
	*status.Tables
	progress pipeline.Progress
	http     *server.Server
}

// New returns the handlers and adds their routes to a server.
func New(s *server.Server, t *status.Tables, d Deps) *Handlers {
	h := &Handlers{Deps: d, Tables: t, http: s, progress: pipeline.Progress{Services: t.Services, Compiled: t.Compiled, Applied: t.Applied}}
	const one = v1.PathServices + "/{namespace}/{name}"
	const backend = one + "/backends/{id}"
	server.HandleJSON(s, server.Route{Path: v1.PathServices, Need: access.View, ID: "list-services", Tag: "services",
		Summary: "List services", Description: "Ordered by namespace and name, of every source."}, h.listServices)
	server.Handle(s, server.Route{Path: v1.PathWatchServices, Need: access.View, ID: "watch-services", Tag: "services", Summary: "Follow services",
		Description: "A stream of lines of JSON without an end: each selected service, a line with synced, and then each change of a service. " +
			"The cost of a change does not depend on the number of services. Empty lines keep the connection open.",
		Content: s.JSON(request.Ndjson, v1.ServiceChange{})}, h.watchServices)
	server.Handle(s, server.Route{Path: one, Need: access.View, ID: "get-service", Tag: "services", Summary: "Get a service",
		Also: map[int]any{http.StatusNotModified: nil}}, h.getService)
	server.Handle(s, server.Route{Method: http.MethodPut, Path: one, Need: access.Register, ID: "put-service", Tag: "services", Summary: "Create or replace a service",
		Description: "Idempotent. The answer comes after the durable write; it has the VIP, or the state pending. " +
			"Without the key \"backends\", also of a group, backends that registered themselves stay; with it, all are replaced.",
		Body: v1.ServiceSpec{}, MaxBody: MaxService, Also: map[int]any{http.StatusCreated: v1.Service{}}}, h.putService)
	server.Handle(s, server.Route{Method: http.MethodPatch, Path: one, Need: access.Register, ID: "patch-service", Tag: "services", Summary: "Change a service",
		Description: "A JSON merge patch (RFC 7396) of the spec: null removes a key, which means its default, an object is merged, and any other value replaces the old one. " +
			"The result is checked and applied as with PUT. The path names the service: a patch can't rename or move it.",
		Body: v1.ServicePatch{}, BodyType: v1.MergePatchType, MaxBody: MaxService}, h.patchService)
	server.Handle(s, server.Route{Method: http.MethodDelete, Path: one, Need: access.Register, ID: "delete-service", Tag: "services", Summary: "Delete a service",
		Description: "New connections stop at once; open ones drain."}, h.deleteService)
	server.HandleJSON(s, server.Route{Path: one + "/explain", Need: access.View, ID: "explain-service", Tag: "services",
		Summary: "Explain the state of a service"}, h.explainService)
	server.Handle(s, server.Route{Method: http.MethodPost, Path: v1.PathApply, Need: access.Register, ID: "apply-services", Tag: "services", Summary: "Create or replace many services",
		Description: "One durable write for all services, up to 16 MiB and 20,000 services. Invalid services are refused and the others applied: " +
			"the status is 207 then. With atomic=true it is 422 and nothing changes.",
		Body: v1.ApplyRequest{}, MaxBody: MaxApplyBody, ReadTime: ApplyTime, Also: map[int]any{http.StatusMultiStatus: v1.ApplyResult{}}}, h.applyServices)
	server.HandleJSON(s, server.Route{Path: one + "/backends", Need: access.View, ID: "list-backends", Tag: "backends", Summary: "List a service's backends"}, h.listBackends)
	server.Handle(s, server.Route{Path: backend, Need: access.View, ID: "get-backend", Tag: "backends", Summary: "Get a backend"}, h.getBackend)
	server.Handle(s, server.Route{Method: http.MethodPut, Path: backend, Need: access.Register, ID: "put-backend", Tag: "backends", Summary: "Register a backend",
		Description: "Adds one backend to an existing service, or replaces it. The id is address:port, or the address alone " +
			"for a backend on the service's target ports. A backend with a ttl must send heartbeats; registering again counts as one.",
		Body: v1.BackendSpec{}, BodyOptional: true, Also: map[int]any{http.StatusCreated: v1.Backend{}}}, h.putBackend)
	server.Handle(s, server.Route{Method: http.MethodDelete, Path: backend, Need: access.Register, ID: "delete-backend", Tag: "backends", Summary: "Delete a backend",
		Description: "New connections stop at once; open ones drain."}, h.deleteBackend)
	server.Handle(s, server.Route{Method: http.MethodPut, Path: backend + "/heartbeat", Need: access.Register, ID: "heartbeat", Tag: "backends", Summary: "Send a heartbeat",
		Description: "404: the backend must register again.", Status: http.StatusNoContent}, h.heartbeat)
	server.Handle(s, server.Route{Method: http.MethodPut, Path: backend + "/state", Need: access.Register, ID: "set-backend-state", Tag: "backends", Summary: "Set the state of a backend",
		Description: "An operator override, for services of every source. It survives restarts of the agent; \"ready\" ends it. " +
			"If the backend is the last usable one at any of the service's ports, \"drain\" and \"maint\" answer 409 last_backend without force=true.",
		Body: v1.StateSpec{}}, h.setBackendState)
	server.Handle(s, server.Route{Method: http.MethodPut, Path: one + "/groups/{group}/weight", Need: access.Register, ID: "set-group-weight", Tag: "backends", Summary: "Set the weight of a group of backends",
		Description: "An operator override, for services of every source. It survives restarts of the agent, until it is deleted. " +
			"If the group has the last usable backends at any of the service's ports, 0 answers 409 last_backend without force=true.",
		Body: v1.WeightSpec{}}, h.setGroupWeight)
	server.HandleJSON(s, server.Route{Path: v1.PathOverrides, Need: access.View, ID: "list-overrides", Tag: "backends", Summary: "List operator overrides"}, h.listOverrides)
	server.Handle(s, server.Route{Method: http.MethodDelete, Path: v1.PathOverrides + "/{namespace}/{name}/{id}", Need: access.Register, ID: "delete-override", Tag: "backends", Summary: "End an operator override",
		Description: "The same as the state \"ready\", and also for a backend that its service no longer has. The id is that of a backend, or the name of a group, which gets the weight of its source again."}, h.deleteOverride)
	return h
}
