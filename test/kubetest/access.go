package kubetest

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// Kubeconfig writes the config of a user with a client certificate, and returns its path. The
// certificate and its key are the files client.pem and client.key beside it. A user without groups
// has no permissions until a RoleBinding grants some. A user in Masters has all permissions.
func (c *Cluster) Kubeconfig(t testing.TB, user string, groups ...string) string {
	t.Helper()
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "client.pem"), filepath.Join(dir, "client.key")
	c.authority.Client(t, user, groups...).Write(t, certFile, keyFile)
	return c.kubeconfig(t, dir, map[string]any{"client-certificate": certFile, "client-key": keyFile})
}

// TokenKubeconfig writes the config of a client that reads its token repeatedly from a file, and
// returns its path.
func (c *Cluster) TokenKubeconfig(t testing.TB, tokenFile string) string {
	t.Helper()
	return c.kubeconfig(t, t.TempDir(), map[string]any{"tokenFile": tokenFile})
}

// TokenFile writes a new token of a service account to a file, and returns its path. It creates the
// account if needed. Deleting the account revokes all its tokens.
func (c *Cluster) TokenFile(t testing.TB, namespace, account string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "token")
	must(t, "a token", os.WriteFile(file, []byte(c.Token(t, namespace, account)), 0o600))
	return file
}

// Token creates a token of a service account, and the account if needed. The token is valid for an
// hour. In RBAC its user is system:serviceaccount:NAMESPACE:ACCOUNT.
func (c *Cluster) Token(t testing.TB, namespace, account string) string {
	t.Helper()
	c.Apply(t, fmt.Sprintf("{apiVersion: v1, kind: ServiceAccount, metadata: {namespace: %q, name: %q}}", namespace, account))
	request := `{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}`
	var answer struct{ Status struct{ Token string } }
	err := c.Do(t.Context(), "POST", "/api/v1/namespaces/"+namespace+"/serviceaccounts/"+account+"/token", "application/json", []byte(request), &answer)
	must(t, "a token of "+account, err)
	return answer.Status.Token
}

// kubeconfig writes a config with the user's credentials, in JSON, which is also YAML.
func (c *Cluster) kubeconfig(t testing.TB, dir string, user map[string]any) string {
	t.Helper()
	const name = "kubetest"
	cluster := map[string]any{"server": c.URL, "certificate-authority": c.CA}
	if c.serverName != "" {
		cluster["tls-server-name"] = c.serverName
	}
	b, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": name,
		"clusters": []any{map[string]any{"name": name, "cluster": cluster}},
		"contexts": []any{map[string]any{"name": name, "context": map[string]any{"cluster": name, "user": name}}},
		"users":    []any{map[string]any{"name": name, "user": user}},
	})
	must(t, "a kubeconfig", err)
	file := filepath.Join(dir, "kubeconfig")
	must(t, "a kubeconfig", os.WriteFile(file, b, 0o600))
	return file
}
