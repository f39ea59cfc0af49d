package api

import (
	"context"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"github.com/ironvip/ironvip/api/request"

	"github.com/ironvip/ironvip/api/server"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/internal/access"
	"github.com/ironvip/ironvip/sources/rest"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

func (s *Server) serviceRoutes() {
	const one = v1.PathServices + "/{namespace}/{name}"
	server.HandleJSON(s.http, server.Route{Path: v1.PathServices, Need: access.View, ID: "list-services", Tag: "services",
		Summary: "List services", Description: "Ordered by namespace and name, of every source."}, s.listServices)
	server.Handle(s.http, server.Route{Path: v1.PathWatchServices, Need: access.View, ID: "watch-services", Tag: "services", Summary: "Follow services",
		Description: "A stream of lines of JSON without an end: each selected service, a line with synced, and then each change of a service. " +
			"The cost of a change does not depend on the number of services. Empty lines keep the connection open.",
		Content: s.http.JSON(request.Ndjson, v1.ServiceChange{})}, s.watchServices)
	server.Handle(s.http, server.Route{Path: one, Need: access.View, ID: "get-service", Tag: "services", Summary: "Get a service",
		Also: map[int]any{http.StatusNotModified: nil}}, s.getService)
	server.Handle(s.http, server.Route{Method: http.MethodPut, Path: one, Need: access.Register, ID: "put-service", Tag: "services", Summary: "Create or replace a service",
		Description: "Idempotent. The answer comes after the durable write; it has the VIP, or the state pending. " +
			"Without the key \"backends\", backends that registered themselves stay; with it, all are replaced.",
		Body: v1.ServiceSpec{}, MaxBody: maxService, Also: map[int]any{http.StatusCreated: v1.Service{}}}, s.putService)
	server.Handle(s.http, server.Route{Method: http.MethodPatch, Path: one, Need: access.Register, ID: "patch-service", Tag: "services", Summary: "Change a service",
		Description: "A JSON merge patch (RFC 7396) of the spec: null removes a key, which means its default, an object is merged, and any other value replaces the old one. " +
			"The result is checked and applied as with PUT. The path names the service: a patch can't rename or move it.",
		Body: v1.ServicePatch{}, BodyType: v1.MergePatchType, MaxBody: maxService}, s.patchService)
	server.Handle(s.http, server.Route{Method: http.MethodDelete, Path: one, Need: access.Register, ID: "delete-service", Tag: "services", Summary: "Delete a service",
		Description: "New connections stop at once; open ones drain."}, s.deleteService)
	server.HandleJSON(s.http, server.Route{Path: one + "/explain", Need: access.View, ID: "explain-service", Tag: "services",
		Summary: "Explain the state of a service"}, s.explainService)
	server.Handle(s.http, server.Route{Method: http.MethodPost, Path: v1.PathApply, Need: access.Register, ID: "apply-services", Tag: "services", Summary: "Create or replace many services",
		Description: "One durable write for all services, up to 16 MiB and 20,000 services. Invalid services are refused and the others applied: " +
			"the status is 207 then. With atomic=true it is 422 and nothing changes.",
		Body: v1.ApplyRequest{}, MaxBody: maxApplyBody, ReadTime: applyTime, Also: map[int]any{http.StatusMultiStatus: v1.ApplyResult{}}}, s.applyServices)
}

type listServicesInput struct {
	request.Paging
	WaitRead
	Selection
	State string `query:"state" enum:"healthy,unchecked,elsewhere,degraded,down,pending,refused" doc:"in this state only"`
}

// Selection selects services. Inputs embed it, so it is exported: huma ignores unexported fields.
type Selection struct {
	Source string   `query:"source" doc:"of this source only"`
	Label  []string `query:"label,explode" doc:"with this label: key or key=value; repeatable, all must match"`
}

// check refuses more labels than a service can have: each is looked for in each service.
func (in *Selection) check() error {
	if len(in.Label) <= spec.MaxLabels {
		return nil
	}
	why := fmt.Sprintf("%d labels are more than %d", len(in.Label), spec.MaxLabels)
	return server.BadRequest("query.label: "+why, "remove some: a service has no more",
		vip.Problem{Code: vip.CodeInvalid, Field: "query.label", Message: why})
}

func (in *Selection) selects(v *vip.Service) bool {
	if in.Source != "" && v.Source != in.Source {
		return false
	}
	for _, label := range in.Label {
		key, value, exact := strings.Cut(label, "=")
		if got, ok := v.Labels[key]; !ok || exact && got != value {
			return false
		}
	}
	return true
}

// listServices costs O(services) per page, and more for each row in it.
func (s *Server) listServices(ctx context.Context, in *listServicesInput) (out v1.ServiceList, err error) {
	if err := in.check(); err != nil {
		return out, err
	}
	_, err = serviceOrder.After(in.Paging) // before the wait
	if err == nil {
		err = in.until(s, ctx, func() bool { return s.tables.Revisions.Revision() > in.Revision })
	}
	if err != nil {
		return out, err
	}
	out.Revision = s.tables.Revisions.Revision() // before reading: too old costs one check, too new would lose a change
	out.Items, out.Next, err = request.Page(in.Paging, serviceOrder, request.Keys(s.Services.All(), in.selects), func(k vip.ServiceKey) (v1.Service, bool) {
		row, ok := s.service(k)
		return row, ok && (in.State == "" || row.Status.State == in.State)
	})
	return out, err
}

var serviceOrder = request.Order[vip.ServiceKey]{List: "services", Compare: vip.ServiceKey.Compare}

type getServiceInput struct {
	request.ServicePath
	WaitRead
	IfNoneMatch string `header:"If-None-Match" doc:"304 if the service's ETag is one of these"`
}

// object is the response about one object: a v1.Service or a v1.Backend.
type object[T any] struct {
	Status            int
	ETag              string `header:"ETag"`
	Location          string `header:"Location"`
	PreferenceApplied string `header:"Preference-Applied"`
	Body              T
}

// newer reports whether a service is newer than a revision, or gone. It costs O(1).
func (s *Server) newer(key vip.ServiceKey, revision uint64) bool {
	row := s.tables.Revisions.Row(key)
	return row == nil || row.Rev > revision
}

func (s *Server) getService(ctx context.Context, in *getServiceInput) (*object[v1.Service], error) {
	if err := in.until(s, ctx, func() bool { return s.newer(in.Key(), in.Revision) }); err != nil {
		return nil, err
	}
	row, ok := s.service(in.Key())
	if !ok {
		return nil, request.NoService(in.Key())
	}
	out := &object[v1.Service]{Status: http.StatusOK, ETag: row.ETag, Body: row}
	if in.IfNoneMatch != "" && request.Matches(in.IfNoneMatch, row.ETag) {
		out.Status = http.StatusNotModified
	}
	return out, nil
}

type putServiceInput struct {
	request.ServicePath
	request.Payload
	request.Preconditions
	PreferWait
}

func (s *Server) putService(ctx context.Context, in *putServiceInput) (*object[v1.Service], error) {
	check, err := in.Check(in.Key())
	if err != nil {
		return nil, err
	}
	if p := request.Media(in.ContentType); p != nil {
		return nil, p
	}
	w, bad := decodeService(in.RawBody)
	if bad == nil {
		if problems := w.SetKey(in.Key()); len(problems) > 0 {
			bad = request.Invalid(problems)
		}
	}
	if bad != nil {
		return nil, bad
	}
	return s.write(ctx, in.Key(), rest.Put{Spec: w, Check: check, Permit: permit(ctx)}, in.PreferWait)
}

type patchServiceInput struct {
	request.ServicePath
	request.Payload
	request.Preconditions
	PreferWait
}

func (s *Server) patchService(ctx context.Context, in *patchServiceInput) (*object[v1.Service], error) {
	check, err := in.Check(in.Key())
	if err != nil {
		return nil, err
	}
	if p := request.MergePatch(in.ContentType); p != nil {
		return nil, p
	}
	patch, problems := request.Decoded(in.RawBody, spec.DecodePatch)
	if patch == nil {
		return nil, request.NotJSON(problems)
	}
	return s.write(ctx, in.Key(), rest.Put{Key: in.Key(), Patch: patch, Problems: problems, Check: check, Permit: permit(ctx)}, in.PreferWait)
}

// write performs the put of one service and returns the service.
func (s *Server) write(ctx context.Context, key vip.ServiceKey, put rest.Put, prefer PreferWait) (*object[v1.Service], error) {
	result, err := s.Registrar.PutService(ctx, put)
	if err != nil {
		return nil, request.WriteFailed(vip.BackendKey{Service: key}, err)
	}
	server.Wrote(ctx, result.Rev)
	what := "service \"" + key.String() + "\""
	applied, err := s.apply(ctx, prefer, what, s.serviceApplied(key, result.Rev))
	if err != nil {
		return nil, err
	}
	s.until(ctx, allocationWait, func() bool {
		if s.Services.Row(key) == nil || s.heirOf(key) != "" {
			return true
		}
		a, _, answered := s.Allocations.Get(key)
		return answered && a.ServiceRev >= result.Rev && !awaited(a)
	})
	row, ok := s.service(key)
	if heir := s.heirOf(key); !ok || heir != "" {
		return nil, request.GoneMeanwhile(what, heir)
	}
	out := &object[v1.Service]{Status: http.StatusOK, ETag: row.ETag, PreferenceApplied: applied, Body: row}
	if result.Action == rest.Created {
		out.Status, out.Location = http.StatusCreated, v1.ServicePath(key.Namespace, key.Name)
	}
	return out, nil
}

// heirOf returns the other source that has the name of a service of the API now; "" if none has it.
func (s *Server) heirOf(key vip.ServiceKey) string {
	if row := s.Services.Row(key); row != nil && row.Value.Source != rest.Type {
		return row.Value.Source
	}
	return ""
}

// awaited reports whether an allocation waits for another host of the fleet.
func awaited(a vip.Allocation) bool {
	return slices.ContainsFunc(a.Problems, func(p vip.Problem) bool { return p.Code == vip.CodeWaiting })
}

// decodeService reads a body. Syntax errors are 400, others 422.
func decodeService(body []byte) (v1.ServiceSpec, *server.Problem) {
	w, problems := request.Decoded(body, spec.DecodeJSON)
	if len(problems) == 0 {
		return w, nil
	}
	if reflect.DeepEqual(w, v1.ServiceSpec{}) && len(problems) == 1 && problems[0].Field == "" {
		return w, request.NotJSON(problems)
	}
	return w, request.Invalid(problems)
}

type deleteServiceInput struct {
	request.ServicePath
	IfMatch string `header:"If-Match" doc:"as with PUT"`
	PreferWait
}

type deletedOutput struct {
	PreferenceApplied string `header:"Preference-Applied"`
	Body              v1.Deleted
}

func (s *Server) deleteService(ctx context.Context, in *deleteServiceInput) (*deletedOutput, error) {
	key := in.Key()
	check, err := request.Preconditions{IfMatch: in.IfMatch}.Check(key)
	if err != nil {
		return nil, err
	}
	last, _, _ := s.Compiled.Get(key)
	rev, err := s.Registrar.DeleteService(ctx, key, check)
	server.Wrote(ctx, rev)
	if err != nil {
		return nil, request.WriteFailed(vip.BackendKey{Service: key}, err)
	}
	applied, err := s.apply(ctx, in.PreferWait, "deletion of service \""+key.String()+"\"", func(ctx context.Context) ([]vip.Problem, error) {
		return s.progress.WaitGone(ctx, key, last)
	})
	if err != nil {
		return nil, err
	}
	return &deletedOutput{PreferenceApplied: applied, Body: v1.Deleted{Service: key.String(), Revision: rev, Applied: applied != ""}}, nil
}

func (s *Server) explainService(_ context.Context, in *request.ServicePath) (v1.Explanation, error) {
	from, report, ok := s.report(in.Key())
	if !ok {
		return v1.Explanation{}, request.NoService(in.Key())
	}
	return v1.Explanation{Service: in.Key().String(), State: string(report.State), Lines: append(append([]string{}, report.Lines...), s.refusalLines(in.Key())...),
		Revision: from.Rev, Problems: server.Problems(report.Problems)}, nil
}
