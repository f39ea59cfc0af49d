package api

import (
	"context"
	"net/http"

	"github.com/ironvip/ironvip/api/request"
	"github.com/ironvip/ironvip/api/server"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/internal/access"
	"github.com/ironvip/ironvip/vip"
)

func (s *Server) sessionRoutes() {
	server.Handle(s.http, server.Route{Method: http.MethodPost, Path: v1.PathSession, Early: true, Need: access.Public, ID: "log-in", Tag: "tokens", Summary: "Begin the session of a browser",
		Description: "Checks a token and sets a cookie with it, which the API accepts as it accepts the token. A request in a session that changes something " +
			"must come from a page of this agent (Sec-Fetch-Site or Origin), and so must this request.",
		Body: v1.SessionSpec{}, MaxBody: 4 << 10}, s.login)
	server.Handle(s.http, server.Route{Method: http.MethodDelete, Path: v1.PathSession, Early: true, Need: access.Public, ID: "log-out", Tag: "tokens", Summary: "End the session of a browser",
		Description: "Removes the cookie. The token stays valid.", Status: http.StatusNoContent}, s.logout)
}

type loginInput struct{ request.Payload }

type loginOutput struct {
	SetCookie string `header:"Set-Cookie"`
	Body      v1.Whoami
}

func (s *Server) login(ctx context.Context, in *loginInput) (*loginOutput, error) {
	if p := server.CrossOrigin(ctx); p != nil {
		return nil, p
	}
	var body v1.SessionSpec
	if p := in.Decode(&body, v1.CodeInvalidToken); p != nil {
		return nil, p
	}
	if body.Token == "" {
		return nil, server.Refuse(http.StatusUnprocessableEntity, v1.CodeInvalidToken, "token: a token is needed", "create one with ironvip token create",
			vip.Problem{Code: vip.CodeInvalid, Field: "token", Message: "a token is needed"})
	}
	caller, cookie, err := s.http.Login(ctx, body.Token)
	if err != nil {
		return nil, err
	}
	return &loginOutput{SetCookie: cookie, Body: s.callerView(caller.Name, caller.Grant)}, nil
}

type logoutOutput struct {
	SetCookie string `header:"Set-Cookie"`
}

func (s *Server) logout(ctx context.Context, _ *struct{}) (*logoutOutput, error) {
	cookie, err := server.Logout(ctx)
	if err != nil {
		return nil, err
	}
	return &logoutOutput{cookie}, nil
}
