//go:build system

package fleet

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/ironvip/ironvip/api/client"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/test/wait"
)

// tokenOnEveryHost creates a token on one host, and revokes it on another: all hosts follow.
func (l *lab) tokenOnEveryHost() {
	l.t.Helper()
	ctx := l.t.Context()
	made, err := l.agents[0].api.CreateToken(ctx, "reader", v1.TokenSpec{Role: "viewer"})
	if err != nil {
		l.t.Fatal(err)
	}
	// answers waits until every host answers two calls of the token's holder with these statuses.
	answers := func(what string, read, tokens int) {
		for _, a := range l.agents {
			c, err := client.New(a.api.Addr(), client.Options{Token: made.Token})
			if err != nil {
				l.t.Fatal(err)
			}
			wait.For(l.t, what+" on "+a.name, func() error {
				_, readErr := c.Pools(ctx)
				_, tokensErr := c.Tokens(ctx)
				if statusOf(readErr) != read || statusOf(tokensErr) != tokens {
					return fmt.Errorf("read: %v; list tokens: %v", readErr, tokensErr)
				}
				return nil
			})
			c.Close()
		}
	}
	answers("the token is a viewer's", http.StatusOK, http.StatusForbidden)
	if _, err := l.agents[1].api.RevokeToken(ctx, "reader"); err != nil {
		l.t.Fatal(err)
	}
	answers("the token is revoked", http.StatusUnauthorized, http.StatusUnauthorized)
}

// statusOf returns the status of a call.
func statusOf(err error) int {
	var e *client.Error
	switch {
	case err == nil:
		return http.StatusOK
	case errors.As(err, &e):
		return e.Status
	}
	return 0
}
