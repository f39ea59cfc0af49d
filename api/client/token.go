package client

import (
	"context"
	"net/http"

	v1 "github.com/ironvip/ironvip/api/v1"
)

// Tokens returns every token, without their texts.
func (c *Client) Tokens(ctx context.Context) (v1.TokenList, error) {
	return fetchAll(ctx, c, call{path: v1.PathTokens}, func(l *v1.TokenList) (*[]v1.Token, *string) { return &l.Items, &l.Next })
}

// Whoami returns who the agent takes this client for.
func (c *Client) Whoami(ctx context.Context) (v1.Whoami, error) {
	return fetch[v1.Whoami](ctx, c, call{path: v1.PathWhoami})
}

// CreateToken creates a token. The result has its text, which nobody can read again.
func (c *Client) CreateToken(ctx context.Context, name string, spec v1.TokenSpec) (v1.Token, error) {
	return fetch[v1.Token](ctx, c, call{method: http.MethodPut, path: v1.TokenPath(name), body: spec})
}

// RevokeToken makes a token invalid.
func (c *Client) RevokeToken(ctx context.Context, name string) (v1.Token, error) {
	return fetch[v1.Token](ctx, c, call{method: http.MethodDelete, path: v1.TokenPath(name)})
}
