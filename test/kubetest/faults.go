package kubetest

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/authority"
)

// Backup saves etcd's present content. Restore, which may be called once, restarts both servers
// with that content, as after a disaster. Resource versions continue from there, behind those that
// clients have seen since. Etcd is briefly unavailable during both calls.
func (c *Cluster) Backup(t testing.TB) (restore func()) {
	t.Helper()
	kept := filepath.Join(t.TempDir(), "etcd")
	c.Etcd.Stop(t)
	must(t, "a backup", os.CopyFS(kept, os.DirFS(c.file("etcd"))))
	c.Etcd.Start(t)
	c.WaitReady(t)
	return func() {
		t.Helper()
		c.API.Kill(t)
		c.Etcd.Kill(t)
		must(t, "what etcd had", os.RemoveAll(c.file("etcd")))
		must(t, "a restore", os.Rename(kept, c.file("etcd")))
		c.Etcd.Start(t)
		c.API.Start(t)
		c.WaitReady(t)
	}
}

// RevocableToken creates a token of a service account, and the account if needed, and returns a
// function that revokes the token. kube-apiserver may accept a revoked token for 10 s more.
func (c *Cluster) RevocableToken(t testing.TB, namespace, account string) (token string, revoke func()) {
	t.Helper()
	c.Token(t, namespace, account)
	secret := fmt.Sprintf("%s-%d", account, time.Now().UnixNano())
	c.Apply(t, fmt.Sprintf("{apiVersion: v1, kind: Secret, metadata: {namespace: %q, name: %q}}", namespace, secret))
	request, err := json.Marshal(map[string]any{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": map[string]any{
		"expirationSeconds": 3600, "boundObjectRef": map[string]any{"apiVersion": "v1", "kind": "Secret", "name": secret}}})
	must(t, "a token", err)
	var answer struct{ Status struct{ Token string } }
	err = c.Do(t.Context(), "POST", "/api/v1/namespaces/"+namespace+"/serviceaccounts/"+account+"/token", "application/json", request, &answer)
	must(t, "a token of "+account, err)
	return answer.Status.Token, func() {
		t.Helper()
		c.Delete(t, "/api/v1/namespaces/"+namespace+"/secrets/"+secret)
	}
}

// Recertify writes a new certificate for a kubeconfig of Kubeconfig, for the same user and with
// this validity.
func (c *Cluster) Recertify(t testing.TB, kubeconfig string, from, until time.Time, user string, groups ...string) {
	t.Helper()
	dir := filepath.Dir(kubeconfig)
	c.authority.Valid(from, until).Client(t, user, groups...).Write(t, filepath.Join(dir, "client.pem"), filepath.Join(dir, "client.key"))
}

// RecertifyServer writes a new certificate for kube-apiserver with this validity. The server uses
// it after its next start.
func (c *Cluster) RecertifyServer(t testing.TB, from, until time.Time) {
	t.Helper()
	c.certify(t, c.authority.Valid(from, until))
}

// certify writes kube-apiserver's certificate.
func (c *Cluster) certify(t testing.TB, a authority.Authority) {
	t.Helper()
	a.Server(t, c.addrs(), "localhost", "kubernetes.default.svc").Write(t, c.file("server.pem"), c.file("server.key"))
}

// addrs returns the addresses in the server's certificate.
func (c *Cluster) addrs() []netip.Addr {
	return []netip.Addr{c.opts.Addr, c.opts.ServiceCIDRs[0].Masked().Addr().Next()}
}
