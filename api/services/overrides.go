package services

import (
	"context"
	"fmt"
	"net/http"
	"slices"

	"github.com/ironvip/ironvip/api/request"
	"github.com/ironvip/ironvip/api/server"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/pipeline/overrides"
	"github.com/ironvip/ironvip/vip"
)

type setStateInput struct {
	request.BackendPath
	request.Payload
	PreferWait
	Force bool `query:"force" doc:"permit a change that leaves a port without a usable backend"`
}

func (h *Handlers) setBackendState(ctx context.Context, in *setStateInput) (*request.Object[v1.Backend], error) {
	key, err := in.Existing(h.Tables.Services)
	if err != nil {
		return nil, err
	}
	var body v1.StateSpec
	if p := in.Decode(&body, v1.CodeInvalidService); p != nil {
		return nil, p
	}
	r := overrides.Request{Backend: key, Author: server.Caller(ctx), Force: in.Force}
	if r.State, err = overrides.ParseState(body.State); err != nil {
		return nil, writeFailed(key, err)
	}
	if body.Expires != nil {
		r.Until = vip.InstantOf(*body.Expires)
	}
	done, applied, err := h.setOverride(ctx, r, in.PreferWait)
	if err != nil {
		return nil, err
	}
	out, err := h.backend(key)
	if err != nil { // deleted meanwhile
		out = &request.Object[v1.Backend]{Status: http.StatusOK, Body: v1.Backend{Service: key.Service.String(), Revision: done.Rev,
			BackendStatus: v1.BackendStatus{ID: key.ID(), Address: key.Address.String(), Port: key.Port, State: body.State, Removed: true}}}
	}
	out.PreferenceApplied, out.Body.Local = applied, done.Local
	return out, nil
}

// setOverride sets an override and waits for the dataplane if the caller requested it. An override of a
// service that is deleted meanwhile is in the dataplane when the service is no longer.
func (h *Handlers) setOverride(ctx context.Context, r overrides.Request, wait PreferWait) (done overrides.Result, applied string, err error) {
	key := r.Backend.Service
	last, _, _ := h.Tables.Compiled.Get(key)
	if done, err = h.SetState(ctx, r); err != nil {
		return done, "", writeFailed(r.Backend, err)
	}
	server.Wrote(ctx, done.Rev)
	applied, err = h.apply(ctx, wait, fmt.Sprintf("state %q of backend %s", r.State, r.Backend.ID()), h.orGone(key, last, func(ctx context.Context) ([]vip.Problem, error) {
		if err := h.Overridden(ctx, done.Rev); err != nil {
			return nil, err
		}
		return h.progress.WaitTried(ctx, key)
	}))
	return done, applied, err
}

var overrideOrder = backendOrder.Of("overrides")

// listOverrides costs O(overrides) per page.
func (h *Handlers) listOverrides(_ context.Context, in *request.Paging) (out v1.OverrideList, err error) {
	out.Revision = h.Tables.Overrides.Revision()
	keys := slices.Collect(request.Keys(h.Tables.Overrides.All(), request.All))
	ended := map[vip.BackendKey]vip.BackendState{} // on this host, and not in the fleet yet
	for _, row := range h.LocalOverrides() {
		if row.State == vip.Ready {
			ended[row.Backend] = row
			keys = append(keys, row.Backend)
		}
	}
	out.Items, out.Next, err = request.Page(*in, overrideOrder, slices.Values(keys), func(k vip.BackendKey) (v1.Override, bool) {
		row, rev, set := h.Tables.Overrides.Get(k)
		if !set {
			rev = out.Revision
			row, set = ended[k]
		}
		return h.override(&row, rev), set
	})
	return out, err
}

func (h *Handlers) override(row *vip.BackendState, rev uint64) v1.Override {
	key := row.Backend
	svc, _, _ := h.Tables.Services.Get(key.Service)
	return v1.Override{Service: key.Service.String(), Backend: key.ID(), State: row.State.String(), OverrideInfo: overrideInfo(row),
		Missing: !slices.ContainsFunc(svc.Backends, func(b vip.Backend) bool { return b.Key(key.Service) == key }), Revision: rev}
}

func overrideInfo(row *vip.BackendState) v1.OverrideInfo {
	return v1.OverrideInfo{Author: row.Author, Node: row.Node, Since: request.When(row.Since.Time()), Expires: request.When(row.Until.Time()), Local: row.Local}
}

type deleteOverrideInput struct {
	request.BackendPath
	PreferWait
}

func (h *Handlers) deleteOverride(ctx context.Context, in *deleteOverrideInput) (*deletedOutput, error) {
	key, err := in.Backend()
	if err != nil {
		return nil, err
	}
	_, _, set := h.Tables.Overrides.Get(key)
	if !set { // of a backend that its service no longer has, only its own id is known
		if key, err = in.Existing(h.Tables.Services); err != nil {
			return nil, err
		}
		_, _, set = h.Tables.Overrides.Get(key)
	}
	if !set {
		return nil, server.Refuse(http.StatusNotFound, v1.CodeNotFound, "backend "+key.ID()+" of service \""+key.Service.String()+"\" has no override",
			"list overrides: ironvip override list")
	}
	done, applied, err := h.setOverride(ctx, overrides.Request{Backend: key, State: vip.Ready, Author: server.Caller(ctx)}, in.PreferWait)
	if err != nil {
		return nil, err
	}
	return &deletedOutput{PreferenceApplied: applied,
		Body: v1.Deleted{Service: key.Service.String(), Backend: key.ID(), Revision: done.Rev, Applied: applied != ""}}, nil
}
