package api

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/ironvip/ironvip/api/request"
	"github.com/ironvip/ironvip/api/server"
	"github.com/ironvip/ironvip/api/tokens"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/internal/access"
	"github.com/ironvip/ironvip/vip"
)

func (s *Server) tokenRoutes() {
	const one = v1.PathTokens + "/{token}"
	server.HandleJSON(s.http, server.Route{Path: v1.PathTokens, Need: access.Administer, ID: "list-tokens", Tag: "tokens", Summary: "List tokens",
		Description: "Without their texts, which are not stored."}, s.listTokens)
	server.HandleJSON(s.http, server.Route{Method: http.MethodPut, Path: one, Need: access.Administer, ID: "create-token", Tag: "tokens", Summary: "Create a token",
		Description: "The response has the token, which nobody can read again. It works on every host of a fleet. 409 if there is one of this name.",
		Body:        v1.TokenSpec{}}, s.createToken)
	server.HandleJSON(s.http, server.Route{Method: http.MethodDelete, Path: one, Need: access.Administer, ID: "revoke-token", Tag: "tokens", Summary: "Revoke a token",
		Description: "This host refuses it from the response on; the other hosts of a fleet when they know."}, s.revokeToken)
	server.HandleJSON(s.http, server.Route{Path: v1.PathWhoami, Early: true, Need: access.View, ID: "whoami", Tag: "node", Summary: "Show the caller and its role",
		Description: "Who the agent takes the caller for, and what it may do."}, s.whoami)
}

func (s *Server) listTokens(_ context.Context, in *request.Paging) (out v1.TokenList, err error) {
	now := time.Now()
	all := request.Convert(s.Tokens.List(), func(t tokens.Token) v1.Token { return tokenView(t, now) })
	out.Items, out.Next, err = request.List(*in, request.ByName.Of("tokens"), all, func(t *v1.Token) string { return t.Name })
	return out, err
}

func tokenView(t tokens.Token, now time.Time) v1.Token {
	out := v1.Token{Name: t.Name, TokenSpec: v1.TokenSpec{Role: t.Role.String(), Namespaces: t.Namespaces, Hostnames: t.Hostnames, Backends: t.Backends}, Created: t.Created, Author: t.Author, Expired: t.Expired(now)}
	if !t.Expires.IsZero() {
		out.Expires = &t.Expires
	}
	return out
}

// TokenPath is the name of a token in a path.
type TokenPath struct {
	Name string `path:"token"`
}

type createTokenInput struct {
	TokenPath
	request.Payload
}

func (s *Server) createToken(ctx context.Context, in *createTokenInput) (v1.Token, error) {
	var body v1.TokenSpec
	if p := in.Decode(&body, v1.CodeInvalidToken); p != nil {
		return v1.Token{}, p
	}
	role, err := access.ParseRole(body.Role)
	if err != nil {
		return v1.Token{}, tokenRefused(in.Name, &tokens.FieldError{Field: "role", Err: err})
	}
	token := tokens.Token{Name: in.Name, Grant: access.Grant{Role: role, Namespaces: body.Namespaces, Hostnames: body.Hostnames, Backends: body.Backends}, Author: server.Caller(ctx)}
	if body.Expires != nil {
		if body.Expires.IsZero() { // the zero time stands for "never"
			return v1.Token{}, tokenRefused(in.Name, &tokens.FieldError{Field: "expires", Err: errors.New("is in the past")})
		}
		token.Expires = body.Expires.UTC()
	}
	secret, err := s.Tokens.Create(ctx, token)
	if err != nil {
		return v1.Token{}, tokenRefused(in.Name, err)
	}
	for _, t := range s.Tokens.List() {
		if t.Name == in.Name {
			token = t
		}
	}
	out := tokenView(token, time.Now())
	out.Token = secret
	return out, nil
}

func (s *Server) revokeToken(ctx context.Context, in *TokenPath) (v1.Token, error) {
	out := v1.Token{Name: in.Name}
	for _, t := range s.Tokens.List() {
		if t.Name == in.Name {
			out = tokenView(t, time.Now())
		}
	}
	if err := s.Tokens.Revoke(ctx, in.Name); err != nil {
		return v1.Token{}, tokenRefused(in.Name, err)
	}
	return out, nil
}

// tokenRefused returns the problem of a token that was not created or revoked.
func tokenRefused(name string, err error) error {
	var field *tokens.FieldError
	switch {
	case errors.As(err, &field):
		return server.Refuse(http.StatusUnprocessableEntity, v1.CodeInvalidToken, err.Error(), "",
			vip.Problem{Code: vip.CodeInvalid, Field: field.Field, Message: field.Err.Error()})
	case errors.Is(err, tokens.ErrExists):
		return server.Refuse(http.StatusConflict, v1.CodeConflict, "token \""+name+"\" exists", "revoke it first, or use another name")
	case errors.Is(err, tokens.ErrNoToken):
		return server.Refuse(http.StatusNotFound, v1.CodeNotFound, "no token \""+name+"\"", "list tokens: ironvip token list")
	}
	return request.WriteFailed(err)
}

func (s *Server) whoami(ctx context.Context, _ *struct{}) (v1.Whoami, error) {
	return s.callerView(server.Caller(ctx), server.GrantOf(ctx)), nil
}

func (s *Server) callerView(name string, g access.Grant) v1.Whoami {
	return v1.Whoami{Name: name, Role: g.Role.String(), Namespaces: append([]string{}, g.Namespaces...), Hostnames: g.Hostnames, Backends: g.Backends, Node: s.Node, Version: s.Version}
}
