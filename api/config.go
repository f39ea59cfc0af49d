package api

import (
	"context"
	"net/http"

	v1 "github.com/ironvip/ironvip/api/v1"
)

func (s *Server) configRoutes() {
	register(s, operation{method: http.MethodPost, path: v1.PathConfigValidate, early: true, id: "validate-config", tag: "config",
		summary: "Validate the configuration on the agent's disk", description: "Changes nothing."}, s.validateConfig)
	register(s, operation{method: http.MethodPost, path: v1.PathConfigPlan, id: "plan-config", tag: "config",
		summary: "Show what a reload would change", description: "Changes nothing."}, s.planConfig)
	register(s, operation{method: http.MethodPost, path: v1.PathReload, early: true, id: "reload", tag: "config",
		summary: "Reload the configuration", description: "Atomic: an invalid configuration changes nothing."}, s.reload)
}

type validateOutput struct{ Body v1.ValidateResult }

func (s *Server) validateConfig(ctx context.Context, _ *struct{}) (*validateOutput, error) {
	if s.Config.Validate == nil {
		return nil, unavailable("configuration")
	}
	found := s.Config.Validate(ctx)
	return &validateOutput{Body: v1.ValidateResult{Valid: len(found) == 0, Problems: problems(found)}}, nil
}

type planOutput struct{ Body *v1.Plan }

func (s *Server) planConfig(ctx context.Context, _ *struct{}) (*planOutput, error) {
	if s.Config.Plan == nil {
		return nil, unavailable("configuration")
	}
	p, found := s.Config.Plan(ctx)
	return &planOutput{Body: plan(p, found)}, nil
}

type reloadOutput struct{ Body v1.ReloadResult }

func (s *Server) reload(ctx context.Context, _ *struct{}) (*reloadOutput, error) {
	if s.Config.Reload == nil {
		return nil, unavailable("configuration")
	}
	allow(ctx, maxWait)
	result, found := s.Config.Reload(ctx)
	if len(found) > 0 {
		detail := "configuration invalid: the current one stays in effect"
		if result.Revision > 0 {
			detail = "reloaded, except for the listed errors"
		}
		return nil, refuse(http.StatusUnprocessableEntity, v1.CodeInvalidConfig, detail,
			"fix the listed errors; ironvip config validate shows them too", found...)
	}
	if result.Warnings == nil {
		result.Warnings = []v1.Problem{}
	}
	return &reloadOutput{Body: result}, nil
}
