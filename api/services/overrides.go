package services

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/ironvip/ironvip/api/request"
	"github.com/ironvip/ironvip/api/server"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/fleet/registry"
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
	done, applied, err := h.setOverride(ctx, r, fmt.Sprintf("state %q of backend %s", r.State, key.ID()), in.PreferWait)
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

type setWeightInput struct {
	request.ServicePath
	Group string `path:"group" doc:"the name of the group"`
	request.Payload
	PreferWait
	Force bool `query:"force" doc:"permit a change that leaves a port without a usable backend"`
}

func (h *Handlers) setGroupWeight(ctx context.Context, in *setWeightInput) (*request.Object[v1.Group], error) {
	var body v1.WeightSpec
	if p := in.Decode(&body, v1.CodeInvalidService); p != nil {
		return nil, p
	}
	key := vip.ServiceKey{Namespace: in.Namespace, Name: in.Name}
	if body.Weight == nil || *body.Weight < 0 || *body.Weight > vip.MaxWeight {
		return nil, request.Invalid([]vip.Problem{{Code: vip.CodeInvalid, Service: key.String(), Field: "weight", Message: "must be a number from 0 to 65535"}})
	}
	r := overrides.Request{Backend: vip.BackendKey{Service: key}, Group: in.Group, Weight: uint32(*body.Weight), Author: server.Caller(ctx), Force: in.Force}
	if body.Expires != nil {
		r.Until = vip.InstantOf(*body.Expires)
	}
	done, applied, err := h.setOverride(ctx, r, "weight of group "+in.Group, in.PreferWait)
	if err != nil {
		return nil, err
	}
	out := &request.Object[v1.Group]{Status: http.StatusOK, PreferenceApplied: applied,
		Body: v1.Group{Service: key.String(), Revision: done.Rev, Local: done.Local, GroupStatus: v1.GroupStatus{Name: in.Group, Weight: r.Weight}}}
	if svc, ok := h.Service(key); ok {
		out.ETag, out.Body.Revision = svc.ETag, svc.Revision
		for _, g := range svc.Status.Groups {
			if g.Name == in.Group {
				out.Body.GroupStatus = g
			}
		}
	}
	return out, nil
}

// setOverride sets an override, named by what, and waits for the dataplane if the caller requested it. An override of a
// service that is deleted meanwhile is in the dataplane when the service is no longer.
func (h *Handlers) setOverride(ctx context.Context, r overrides.Request, what string, wait PreferWait) (done overrides.Result, applied string, err error) {
	key := r.Backend.Service
	last, _, _ := h.Tables.Compiled.Get(key)
	if done, err = h.SetState(ctx, r); err != nil {
		if r.Group != "" && errors.Is(err, registry.ErrNoBackend) {
			err = server.Refuse(http.StatusNotFound, v1.CodeNotFound, fmt.Sprintf("service %q has no group %q", key, r.Group), "see its groups: ironvip service get "+key.String())
		}
		return done, "", writeFailed(r.Backend, err)
	}
	server.Wrote(ctx, done.Rev)
	applied, err = h.apply(ctx, wait, what, h.orGone(key, last, func(ctx context.Context) ([]vip.Problem, error) {
		if err := h.Overridden(ctx, done.Rev); err != nil {
			return nil, err
		}
		return h.progress.WaitTried(ctx, key)
	}))
	return done, applied, err
}

var overrideOrder = request.Order[vip.OverrideKey]{List: "overrides", Compare: vip.OverrideKey.Compare}

// listOverrides costs O(overrides) per page.
func (h *Handlers) listOverrides(_ context.Context, in *request.Paging) (out v1.OverrideList, err error) {
	out.Revision = h.Tables.Overrides.Revision()
	keys := slices.Collect(request.Keys(h.Tables.Overrides.All(), request.All))
	ended := map[vip.OverrideKey]vip.BackendState{} // on this host, and not in the fleet yet
	for _, row := range h.LocalOverrides() {
		if row.State == vip.Ready {
			ended[vip.KeyOfBackendState(&row)] = row
			keys = append(keys, vip.KeyOfBackendState(&row))
		}
	}
	out.Items, out.Next, err = request.Page(*in, overrideOrder, slices.Values(keys), func(k vip.OverrideKey) (v1.Override, bool) {
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
	out := v1.Override{Service: key.Service.String(), Group: row.Group, OverrideInfo: overrideInfo(row), Revision: rev}
	if row.State != 0 {
		out.State = row.State.String()
	}
	if row.Group == "" {
		out.Backend = key.ID()
		out.Missing = !slices.ContainsFunc(svc.Backends, func(b vip.Backend) bool { return b.Key(key.Service) == key })
		return out
	}
	if row.State == 0 {
		out.Weight = &row.Weight
	}
	out.Missing = !slices.ContainsFunc(svc.Groups, func(g vip.Group) bool { return g.Name == row.Group })
	return out
}

func overrideInfo(row *vip.BackendState) v1.OverrideInfo {
	return v1.OverrideInfo{Author: row.Author, Node: row.Node, Since: request.When(row.Since.Time()), Expires: request.When(row.Until.Time()), Local: row.Local}
}

type deleteOverrideInput struct {
	request.BackendPath
	PreferWait
}

func (h *Handlers) deleteOverride(ctx context.Context, in *deleteOverrideInput) (*deletedOutput, error) {
	key, what := vip.OverrideKey{BackendKey: vip.BackendKey{Service: in.Key()}, Group: in.ID}, "group "
	if vip.CheckLabel(in.ID) != nil {
		backend, err := in.Backend()
		if err != nil {
			return nil, err
		}
		key, what = vip.OverrideKey{BackendKey: backend}, "backend "
	}
	_, _, set := h.Tables.Overrides.Get(key)
	if !set && key.Group == "" { // of a backend that its service no longer has, only its own id is known
		backend, err := in.Existing(h.Tables.Services)
		if err != nil {
			return nil, err
		}
		key.BackendKey = backend
		_, _, set = h.Tables.Overrides.Get(key)
	}
	if !set {
		return nil, server.Refuse(http.StatusNotFound, v1.CodeNotFound, what+key.ID()+" of service \""+key.Service.String()+"\" has no override",
			"list overrides: ironvip override list")
	}
	done, applied, err := h.setOverride(ctx, overrides.Request{Backend: key.BackendKey, Group: key.Group, State: vip.Ready, Author: server.Caller(ctx)}, "end of the override of "+what+key.ID(), in.PreferWait)
	if err != nil {
		return nil, err
	}
	out := &deletedOutput{PreferenceApplied: applied, Body: v1.Deleted{Service: key.Service.String(), Group: key.Group, Revision: done.Rev, Applied: applied != ""}}
	if key.Group == "" {
		out.Body.Backend = key.ID()
	}
	return out, nil
}
