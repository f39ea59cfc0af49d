package api

import (
	"context"
	"net/http"

	v1 "github.com/ironvip/ironvip/api/v1"
)

func (s *Server) configRoutes() {
	serve(s, operation{method: http.MethodPost, path: v1.PathConfigValidate, early: true, lacks: needs(s.Config.Validate != nil, "configuration"),
		id: "validate-config", tag: "config",
		summary: "Validate the configuration on the agent's disk", description: "Changes nothing."}, s.validateConfig)
	serve(s, operation{method: http.MethodPost, path: v1.PathConfigPlan, lacks: needs(s.Config.Plan != nil, "configuration"),
		id: "plan-config", tag: "config",
		summary: "Show what a reload would change", description: "Changes nothing."}, s.planConfig)
	serve(s, operation{method: http.MethodPost, path: v1.PathReload, early: true, lacks: needs(s.Config.Reload != nil, "configuration"),
		id: "reload", tag: "config",
		summary: "Reload the configuration", description: "Atomic: an invalid configuration changes nothing."}, s.reload)
}

func (s *Server) validateConfig(ctx context.Context, _ *struct{}) (v1.ValidateResult, error) {
	found := s.Config.Validate(ctx)
	return v1.ValidateResult{Valid: len(found) == 0, Problems: problems(found)}, nil
}

func (s *Server) planConfig(ctx context.Context, _ *struct{}) (*v1.Plan, error) {
	p, found := s.Config.Plan(ctx)
	return plan(p, found), nil
}

func (s *Server) reload(ctx context.Context, _ *struct{}) (v1.ReloadResult, error) {
	allow(ctx, maxWait)
	result, found := s.Config.Reload(ctx)
	if len(found) > 0 {
		detail := "configuration invalid: the current one stays in effect"
		if result.Revision > 0 {
			detail = "reloaded, except for the listed errors"
		}
		return result, refuse(http.StatusUnprocessableEntity, v1.CodeInvalidConfig, detail,
			"fix the listed errors; ironvip config validate shows them too", found...)
	}
	if result.Warnings == nil {
		result.Warnings = []v1.Problem{}
	}
	return result, nil
}
