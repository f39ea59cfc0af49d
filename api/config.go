package api

import (
	"context"
	"net/http"

	"github.com/ironvip/ironvip/api/request"
	"github.com/ironvip/ironvip/api/server"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/internal/access"
)

func (s *Server) configRoutes() {
	server.HandleJSON(s.http, server.Route{Method: http.MethodPost, Path: v1.PathConfigValidate, Early: true, Need: access.Operate, ID: "validate-config", Tag: "config",
		Summary: "Validate the configuration on the agent's disk", Description: "Changes nothing."}, s.validateConfig)
	server.HandleJSON(s.http, server.Route{Method: http.MethodPost, Path: v1.PathConfigPlan, Need: access.Operate, ID: "plan-config", Tag: "config",
		Summary: "Show what a reload would change", Description: "Changes nothing."}, s.planConfig)
	server.HandleJSON(s.http, server.Route{Method: http.MethodPost, Path: v1.PathReload, Early: true, Need: access.Operate, ID: "reload", Tag: "config",
		Summary: "Reload the configuration", Description: "Atomic: an invalid configuration changes nothing."}, s.reload)
}

func (s *Server) validateConfig(ctx context.Context, _ *struct{}) (v1.ValidateResult, error) {
	found, warnings := s.Config.Validate(ctx)
	return v1.ValidateResult{Valid: len(found) == 0, Problems: server.Problems(found), Warnings: server.Problems(warnings)}, nil
}

func (s *Server) planConfig(ctx context.Context, _ *struct{}) (*v1.Plan, error) {
	p, found := s.Config.Plan(ctx)
	return request.Plan(p, found), nil
}

func (s *Server) reload(ctx context.Context, _ *struct{}) (v1.ReloadResult, error) {
	server.Allow(ctx, request.MaxWait)
	result, found := s.Config.Reload(ctx)
	if len(found) > 0 {
		detail := "configuration invalid: the current one stays in effect"
		if result.Revision > 0 {
			detail = "reloaded, except for the listed errors"
		}
		return result, server.Refuse(http.StatusUnprocessableEntity, v1.CodeInvalidConfig, detail,
			"fix the listed errors; ironvip config validate shows them too", found...)
	}
	if result.Warnings == nil {
		result.Warnings = []v1.Problem{}
	}
	return result, nil
}
