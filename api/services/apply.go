package services

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/ironvip/ironvip/api/request"
	"github.com/ironvip/ironvip/api/server"
	"github.com/ironvip/ironvip/api/status"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/fleet/registry"
	"github.com/ironvip/ironvip/internal/text"
	"github.com/ironvip/ironvip/pipeline"
	"github.com/ironvip/ironvip/pipeline/compile"
	"github.com/ironvip/ironvip/sources/rest"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// Bounds of the body of one service, and of an apply. An apply may take longer than other requests.
const (
	MaxService   = spec.MaxServiceSize
	MaxApplyBody = spec.MaxList
	ApplyTime    = 2 * time.Minute
)

type applyInput struct {
	DryRun bool `query:"dry_run" doc:"change nothing and return a plan"`
	Atomic bool `query:"atomic" doc:"all or nothing: one invalid service rejects the request"`
	request.Payload
	PreferWait
}

func tooLarge(detail string) *server.Problem {
	return server.Refuse(http.StatusRequestEntityTooLarge, v1.CodeBodyTooLarge, detail, "split it into several requests")
}

// readServices reads {"services": [...]}. It ends at the first service that the caller may not write: a part of the request
// would surprise its caller.
func readServices(ctx context.Context, body []byte) ([]rest.Put, *server.Problem) {
	var out []rest.Put
	mistakes, permitted := 0, permit(ctx) // of all services
	_, err := spec.ReadList(body, func(raw json.RawMessage) error {
		w, problems := request.Decoded(raw, spec.DecodeJSON)
		if p := server.Permit(ctx, cmp.Or(w.Namespace, vip.DefaultNamespace)); p != nil {
			return p
		}
		if mistakes += len(problems); mistakes > rest.MaxMistakes {
			return request.Invalid(rest.TooManyMistakes(problems))
		}
		out = append(out, rest.Put{Spec: w, Problems: problems, Permit: permitted})
		return nil
	})
	if refused, is := errors.AsType[*server.Problem](err); is {
		return nil, refused
	}
	switch p, bad := errors.AsType[vip.Problem](err); {
	case !bad:
		return out, nil
	case p.Code == spec.CodeTooLarge:
		return nil, tooLarge(p.Message)
	case p.Field != "":
		return nil, request.Invalid([]vip.Problem{p})
	default:
		return nil, request.NotJSON([]vip.Problem{p})
	}
}

type applyOutput struct {
	Status            int
	PreferenceApplied string `header:"Preference-Applied"`
	Body              v1.ApplyResult
}

func (h *Handlers) applyServices(ctx context.Context, in *applyInput) (*applyOutput, error) {
	if p := request.Media(in.ContentType); p != nil {
		return nil, p
	}
	puts, bad := readServices(ctx, in.RawBody)
	if bad != nil {
		return nil, bad
	}
	server.Allow(ctx, ApplyTime)
	var results []rest.Result
	var err error
	if in.DryRun {
		results, err = h.Registrar.Propose(ctx, puts)
	} else {
		results, err = h.Registrar.PutServices(ctx, puts, in.Atomic)
	}
	if err != nil {
		return nil, writeFailed(vip.BackendKey{}, err)
	}
	out := &applyOutput{Status: http.StatusOK, Body: v1.ApplyResult{Items: make([]v1.ApplyItem, len(results)), DryRun: in.DryRun}}
	var refusals vip.Problems
	var forbidden *server.Problem
	for i, r := range results {
		w := &puts[i].Spec
		item := &out.Body.Items[i]
		*item = v1.ApplyItem{Namespace: cmp.Or(w.Namespace, vip.DefaultNamespace), Name: w.Name, Action: string(r.Action), Revision: r.Rev}
		out.Body.Revision = max(out.Body.Revision, r.Rev)
		switch r.Action {
		case rest.Created:
			out.Body.Created++
		case rest.Updated:
			out.Body.Updated++
		case rest.Unchanged:
			out.Body.Unchanged++
		case rest.Refused:
			out.Body.Refused++
			if refused, ok := errors.AsType[*server.Problem](r.Err); ok && forbidden == nil {
				forbidden = refused
			}
			why := slices.Clone(problemsOfError(r.Key, r.Err))
			for n := range why {
				why[n].Field = strings.TrimSuffix(strict.Index("services", i)+"."+why[n].Field, ".")
			}
			refusals.Add(why...)
			item.Problems = server.Problems(why)
		}
	}
	if out.Body.Refused > 0 && (in.Atomic && !in.DryRun || out.Body.Refused == len(results)) {
		if forbidden != nil {
			return nil, forbidden
		}
		return nil, server.Refuse(http.StatusUnprocessableEntity, v1.CodeInvalidService,
			fmt.Sprintf("%d of %s invalid; nothing was changed", out.Body.Refused, text.Plural(len(results), "service")), "see errors", refusals.List()...)
	}
	if out.Body.Refused > 0 {
		out.Status = http.StatusMultiStatus
	}
	if !in.DryRun {
		server.Wrote(ctx, out.Body.Revision)
	}
	if in.DryRun {
		out.Body.Plan = h.proposed(results, refusals.List())
		return out, nil
	}
	out.PreferenceApplied, err = h.apply(ctx, in.PreferWait, "everything", func(ctx context.Context) (all []vip.Problem, err error) {
		for _, r := range results {
			if r.Action == rest.Refused {
				continue
			}
			more, err := h.serviceApplied(r.Key, r.Rev)(ctx)
			if gone, deleted := errors.AsType[*pipeline.GoneError](err); deleted {
				one := goneMeanwhile("service \""+r.Key.String()+"\"", gone.Heir)
				more = []vip.Problem{{Code: one.Code, Service: r.Key.String(), Message: one.Detail, Hint: one.Hint}}
			} else if err != nil {
				return nil, err
			}
			all = append(all, more...)
		}
		return all, nil
	})
	if err != nil {
		return nil, err
	}
	for i, r := range results {
		if a, _, ok := h.Tables.Allocations.Get(r.Key); ok && r.Action != rest.Refused {
			out.Body.Items[i].VIPs = a.VIPs
		}
	}
	return out, nil
}

// problemsOfError returns why one service of several was refused.
func problemsOfError(key vip.ServiceKey, err error) []vip.Problem {
	if invalid, ok := errors.AsType[*registry.InvalidError](err); ok {
		return invalid.Problems
	}
	p := vip.Problem{Code: vip.CodeInvalid, Service: key.String(), Message: err.Error()}
	if conflict, ok := errors.AsType[*registry.ConflictError](err); ok {
		p.Code, p.Field, p.Message, p.Hint = vip.CodeNameTaken, "name", conflict.Why(), request.ConflictHint(conflict)
	} else if owned, ok := errors.AsType[*rest.OwnedError](err); ok {
		p.Code, p.Field, p.Message, p.Hint = vip.CodeNameTaken, "name", owned.Why(), ownedHint(owned)
	} else if refused, ok := errors.AsType[*server.Problem](err); ok {
		p.Code, p.Message, p.Hint = refused.Code, refused.Detail, refused.Hint
	}
	return []vip.Problem{p}
}

// host returns what a plan of an apply needs to know of this host.
func (h *Handlers) host() status.On {
	return status.On{Node: compile.Node{Name: h.http.Node}, Mode: h.Mode()}
}

// proposed returns the plan of an apply.
func (h *Handlers) proposed(results []rest.Result, refusals []vip.Problem) *v1.Plan {
	var rows []vip.Service
	for _, r := range results {
		if r.Action != rest.Refused {
			rows = append(rows, r.Row)
		}
	}
	granted := h.Preview(rows)
	var before, after []status.Planned
	for i, row := range rows {
		after = append(after, status.Planned{Service: row, Allocation: granted[i]})
		if now, _, ok := h.Tables.Services.Get(row.Key); ok {
			a, _, _ := h.Tables.Allocations.Get(row.Key)
			before = append(before, status.Planned{Service: now, Allocation: a})
		}
	}
	return request.Plan(status.NewPlan(before, after, h.host()), refusals)
}
