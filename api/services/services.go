package services

import (
	"context"
	"fmt"
	"mime"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/ironvip/ironvip/api/request"
	"github.com/ironvip/ironvip/api/server"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/internal/text"
	"github.com/ironvip/ironvip/sources/rest"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

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
func (h *Handlers) listServices(ctx context.Context, in *listServicesInput) (out v1.ServiceList, err error) {
	if err := in.check(); err != nil {
		return out, err
	}
	_, err = serviceOrder.After(in.Paging) // before the wait
	if err == nil {
		err = in.until(h, ctx, func() bool { return h.Tables.Revisions.Revision() > in.Revision })
	}
	if err != nil {
		return out, err
	}
	out.Revision = h.Tables.Revisions.Revision() // before reading: too old costs one check, too new would lose a change
	out.Items, out.Next, err = request.Page(in.Paging, serviceOrder, request.Keys(h.Tables.Services.All(), in.selects), func(k vip.ServiceKey) (v1.Service, bool) {
		row, ok := h.Service(k)
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

// newer reports whether a service is newer than a revision, or gone. It costs O(1).
func (h *Handlers) newer(key vip.ServiceKey, revision uint64) bool {
	row := h.Tables.Revisions.Row(key)
	return row == nil || row.Rev > revision
}

func (h *Handlers) getService(ctx context.Context, in *getServiceInput) (*request.Object[v1.Service], error) {
	if err := in.until(h, ctx, func() bool { return h.newer(in.Key(), in.Revision) }); err != nil {
		return nil, err
	}
	row, ok := h.Service(in.Key())
	if !ok {
		return nil, request.NoService(in.Key())
	}
	out := &request.Object[v1.Service]{Status: http.StatusOK, ETag: row.ETag, Body: row}
	if in.IfNoneMatch != "" && matches(in.IfNoneMatch, row.ETag) {
		out.Status = http.StatusNotModified
	}
	return out, nil
}

type putServiceInput struct {
	request.ServicePath
	request.Payload
	Preconditions
	PreferWait
}

func (h *Handlers) putService(ctx context.Context, in *putServiceInput) (*request.Object[v1.Service], error) {
	check, err := in.check(in.Key())
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
	return h.write(ctx, in.Key(), rest.Put{Spec: w, Check: check, Permit: permit(ctx)}, in.PreferWait)
}

type patchServiceInput struct {
	request.ServicePath
	request.Payload
	Preconditions
	PreferWait
}

func (h *Handlers) patchService(ctx context.Context, in *patchServiceInput) (*request.Object[v1.Service], error) {
	check, err := in.check(in.Key())
	if err != nil {
		return nil, err
	}
	if p := mergePatch(in.ContentType); p != nil {
		return nil, p
	}
	patch, problems := request.Decoded(in.RawBody, spec.DecodePatch)
	if patch == nil {
		return nil, request.NotJSON(problems)
	}
	return h.write(ctx, in.Key(), rest.Put{Key: in.Key(), Patch: patch, Problems: problems, Check: check, Permit: permit(ctx)}, in.PreferWait)
}

// write performs the put of one service and returns the service.
func (h *Handlers) write(ctx context.Context, key vip.ServiceKey, put rest.Put, prefer PreferWait) (*request.Object[v1.Service], error) {
	result, err := h.Registrar.PutService(ctx, put)
	if err != nil {
		return nil, writeFailed(vip.BackendKey{Service: key}, err)
	}
	server.Wrote(ctx, result.Rev)
	what := "service \"" + key.String() + "\""
	applied, err := h.apply(ctx, prefer, what, h.serviceApplied(key, result.Rev))
	if err != nil {
		return nil, err
	}
	h.until(ctx, allocationWait, func() bool {
		if h.Tables.Services.Row(key) == nil || h.heirOf(key) != "" {
			return true
		}
		a, _, answered := h.Tables.Allocations.Get(key)
		return answered && a.ServiceRev >= result.Rev && !awaited(a)
	})
	row, ok := h.Service(key)
	if heir := h.heirOf(key); !ok || heir != "" {
		return nil, goneMeanwhile(what, heir)
	}
	out := &request.Object[v1.Service]{Status: http.StatusOK, ETag: row.ETag, PreferenceApplied: applied, Body: row}
	if result.Action == rest.Created {
		out.Status, out.Location = http.StatusCreated, v1.ServicePath(key.Namespace, key.Name)
	}
	return out, nil
}

// heirOf returns the other source that has the name of a service of the API now; "" if none has it.
func (h *Handlers) heirOf(key vip.ServiceKey) string {
	if row := h.Tables.Services.Row(key); row != nil && row.Value.Source != rest.Type {
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

func (h *Handlers) deleteService(ctx context.Context, in *deleteServiceInput) (*deletedOutput, error) {
	key := in.Key()
	check, err := Preconditions{IfMatch: in.IfMatch}.check(key)
	if err != nil {
		return nil, err
	}
	last, _, _ := h.Tables.Compiled.Get(key)
	rev, err := h.Registrar.DeleteService(ctx, key, check)
	server.Wrote(ctx, rev)
	if err != nil {
		return nil, writeFailed(vip.BackendKey{Service: key}, err)
	}
	applied, err := h.apply(ctx, in.PreferWait, "deletion of service \""+key.String()+"\"", func(ctx context.Context) ([]vip.Problem, error) {
		return h.progress.WaitGone(ctx, key, last)
	})
	if err != nil {
		return nil, err
	}
	return &deletedOutput{PreferenceApplied: applied, Body: v1.Deleted{Service: key.String(), Revision: rev, Applied: applied != ""}}, nil
}

func (h *Handlers) explainService(_ context.Context, in *request.ServicePath) (v1.Explanation, error) {
	from, report, ok := h.report(in.Key())
	if !ok {
		return v1.Explanation{}, request.NoService(in.Key())
	}
	return v1.Explanation{Service: in.Key().String(), State: string(report.State), Lines: append(append([]string{}, report.Lines...), h.refusalLines(in.Key())...),
		Revision: from.Rev, Problems: server.Problems(report.Problems)}, nil
}

// refusalLines returns a sentence for each reason for which the dataplane refused clients of a
// service.
func (h *Handlers) refusalLines(key vip.ServiceKey) (lines []string) {
	report := h.Proxy().Services[key]
	for _, r := range report.Refusals {
		lines = append(lines, fmt.Sprintf("The dataplane has refused %s since the agent's start, last at %s: %s (%s).",
			text.Plural(int(r.Count), "client"), r.Last.UTC().Format(time.RFC3339), r.Meaning, r.Reason))
	}
	if report.Full {
		lines = append(lines, "It is full: new clients find no place, and wait in its queue or are refused (max_connections).")
	}
	if report.Most > 0 {
		line := fmt.Sprintf("%d of at most %s wait in its queue", report.Waiting, text.Plural(report.Most, "client"))
		if report.Waiting > 0 {
			line += ", because the service or its backends have reached max_connections"
		}
		lines = append(lines, line+".")
	}
	return lines
}

// mergePatch refuses a body that does not state that it is a JSON merge patch: as the body of
// another kind of patch, it would have another meaning.
func mergePatch(contentType string) *server.Problem {
	if kind, params, err := mime.ParseMediaType(contentType); err == nil && kind == v1.MergePatchType && request.IsUTF8(params) {
		return nil
	}
	return server.Refuse(http.StatusUnsupportedMediaType, v1.CodeUnsupportedMedia, fmt.Sprintf("unsupported content type %q", contentType),
		"send a JSON merge patch with Content-Type: "+v1.MergePatchType).AcceptPatch(v1.MergePatchType)
}
