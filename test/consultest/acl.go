package consultest

import (
	"context"
	"crypto/rand"
	"fmt"

	"github.com/hashicorp/consul/api"
)

// NewToken creates a policy of these rules and a token with it, and returns the token's secret. It
// requires Options.ACL. An example of rules:
//
//	key_prefix "ironvip/" { policy = "write" }
//	session_prefix "" { policy = "write" }
func (s *Server) NewToken(rules string) string {
	s.t.Helper()
	secret := ""
	s.eventually("giving out a token", func(ctx context.Context) error { // a cluster may briefly have no leader
		o := (&api.WriteOptions{}).WithContext(ctx)
		policy, _, err := s.Client.ACL().PolicyCreate(&api.ACLPolicy{Name: "test-" + newToken(), Rules: rules}, o)
		if err != nil {
			return err
		}
		token, _, err := s.Client.ACL().TokenCreate(&api.ACLToken{Policies: []*api.ACLLink{{ID: policy.ID}}}, o)
		if err != nil {
			return err
		}
		secret = token.SecretID
		return nil
	})
	return secret
}

// RevokeToken deletes the token with that secret.
func (s *Server) RevokeToken(secret string) {
	s.t.Helper()
	token, _, err := s.Client.ACL().TokenReadSelf(&api.QueryOptions{Token: secret})
	s.must("the token to revoke", err)
	_, err = s.Client.ACL().TokenDelete(token.AccessorID, nil)
	s.must("revoke a token", err)
}

// newToken returns a random UUID, the form of tokens' secrets.
func newToken() string {
	var b [16]byte
	rand.Read(b[:])
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
