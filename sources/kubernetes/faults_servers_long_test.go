//go:build system && long

package kubernetes

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/internal/kubeclient"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/kubetest"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/wait"
)

// with makes a follower use the credentials of a kubeconfig.
func with(t *testing.T, kubeconfig string) func(*Options) {
	t.Helper()
	client := must.Get(kubeclient.New(kubeclient.Config{Kubeconfig: kubeconfig}))(t)
	return func(o *Options) { o.Client = client }
}

// restart kills the server and starts it again. All connections and its cache of authentication are
// gone.
func restart(t *testing.T, c *kubetest.Cluster) {
	t.Helper()
	c.API.Kill(t)
	c.API.Start(t)
}

// etcd is restored from a backup, so versions go backwards. The state of the backup takes effect,
// objects in both states stay, and what the backup lacks is written again.
func TestEtcdIsRestored(t *testing.T) {
	t.Parallel()
	c, _ := realCluster(t, kubetest.Options{})
	c.Apply(t, realService("web")+realSlice("web", 1, 2)+realService("api")+realSlice("api", 9)+realService("old")+realSlice("old", 7))
	f := startFollower(t, c, nil)
	f.has("api=9 old=7 web=1,2")
	restore := c.Backup(t)
	f.isStale("")
	a := startAgent(t, c.Kubeconfig(t, "agents", "ironvip"), "a")
	waitIngress(t, c, "web", "192.0.2.1/Proxy")
	waitIngress(t, c, "api", "192.0.2.1/Proxy")

	c.Delete(t, livePath("old"))
	c.Apply(t, realService("new")+realSlice("new", 5)+realSlice("web", 3))
	for i := range 50 {
		c.Patch(t, livePath("web"), fmt.Sprintf(`{"metadata": {"labels": {"n": "%d"}}}`, i))
	}
	f.has("api=9 new=5 web=3")
	waitIngress(t, c, "new", "192.0.2.1/Proxy")
	f.take()

	restore()
	f.has("api=9 old=7 web=1,2")
	f.isStale("")
	for word := range strings.SplitSeq(f.take(), "; ") {
		if strings.Contains(word, "api") && word != "put api=9" && !strings.HasPrefix(word, "replace api=9 ") || strings.HasPrefix(word, "delete web") {
			t.Errorf("received %q of what is in both", word)
		}
	}
	for _, name := range []string{"web", "api", "old"} {
		s := waitIngress(t, c, name, "192.0.2.1/Proxy")
		expect.True(t, hasFinalizer(s), "%s without the finalizer", name)
	}
	// A server that starts can temporarily refuse requests that it permits later.
	wait.Until(t, "without problems", func() bool { return len(a.said()) == 0 }, func() any { return a.said() })
	c.Apply(t, realSlice("web", 4))
	f.has("api=9 old=7 web=4")
}

// A token in a file is replaced, and the old token is revoked. If it is revoked too early, the
// source reports it. With a new token the source continues by itself.
func TestTokenThatRotates(t *testing.T) {
	t.Parallel()
	c, _ := realCluster(t, kubetest.Options{})
	c.Apply(t, realService("web")+realSlice("web", 1))
	file := filepath.Join(t.TempDir(), "token")
	write := func(token string) {
		t.Helper()
		must.Succeed(t, os.WriteFile(file+".new", []byte(token), 0o600))
		must.Succeed(t, os.Rename(file+".new", file))
	}
	first, end := c.RevocableToken(t, "ironvip", "ironvip")
	write(first)
	f := startFollower(t, c, with(t, c.TokenKubeconfig(t, file)))
	f.has("web=1")

	second, endSecond := c.RevocableToken(t, "ironvip", "ironvip")
	write(second)
	end()
	restart(t, c)
	c.WaitReady(t)
	must.Equal(t, asBearer(t, c, first), http.StatusUnauthorized, "the server answers the old token with")
	c.Apply(t, realSlice("web", 2))
	f.has("web=2")
	f.isStale("")
	f.onlySays("one token after the other", "replace web=1; put web=2")

	endSecond()
	restart(t, c)
	c.WaitReady(t)
	f.isStale("its token or certificate has expired")
	c.Apply(t, realSlice("web", 3))
	third, _ := c.RevocableToken(t, "ironvip", "ironvip")
	write(third)
	f.isStale("")
	f.has("web=3")
	f.onlySays("a token that came late", "put web=3")
}

// asBearer sends a request with a token and returns the status code.
func asBearer(t *testing.T, c *kubetest.Cluster, token string) int {
	t.Helper()
	pem := must.Get(os.ReadFile(c.CA))(t)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	request := must.Get(http.NewRequestWithContext(t.Context(), "GET", c.URL+"/api/v1/services", nil))(t)
	request.Header.Set("Authorization", "Bearer "+token)
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots}}}
	answer := must.Get(client.Do(request))(t)
	defer answer.Body.Close()
	return answer.StatusCode
}

// The certificates of the client and the server are not valid yet, because one of the clocks is
// wrong. The source reports it and changes nothing until they are valid.
func TestCertificatesOfTomorrow(t *testing.T) {
	t.Parallel()
	c, _ := realCluster(t, kubetest.Options{})
	c.Apply(t, realService("web")+realSlice("web", 1))
	kubeconfig := c.Kubeconfig(t, "host-1", "ironvip")
	f := startFollower(t, c, with(t, kubeconfig))
	f.has("web=1")
	f.take()
	now := time.Now()
	valid := func(from time.Duration) (time.Time, time.Time) { return now.Add(from), now.Add(from + 24*time.Hour) }

	from, until := valid(24 * time.Hour)
	c.Recertify(t, kubeconfig, from, until, "host-1", "ironvip")
	c.API.Kill(t)
	// client-go uses a certificate for up to a second after reading it. It reads none while the
	// server is unavailable.
	time.Sleep(1100 * time.Millisecond)
	c.API.Start(t)
	f.isStale("the server doesn't know these credentials")
	from, until = valid(-time.Hour)
	c.Recertify(t, kubeconfig, from, until, "host-1", "ironvip")
	f.isStale("")

	c.RecertifyServer(t, now.Add(24*time.Hour), now.Add(48*time.Hour))
	restart(t, c)
	f.isStale("certificate has expired or is not yet valid: current time ")
	c.RecertifyServer(t, from, until)
	restart(t, c)
	c.WaitReady(t)
	f.isStale("")
	f.onlySays("certificates", "")
	c.Apply(t, realSlice("web", 2))
	f.has("web=2")
}

// The server is suspended and killed, and returns without its history and then without our
// permissions. Services stay, changes are read afterwards, and nothing is published twice.
func TestFollowThroughFaults(t *testing.T) {
	t.Parallel()
	c, rights := realCluster(t, kubetest.Options{})
	c.Apply(t, realService("web")+realSlice("web", 1, 2, 3)+realService("api")+realSlice("api", 9))
	f := startFollower(t, c, nil)
	f.has("api=9 web=1,2,3")
	f.take()

	c.API.Stall(t)
	f.isStale("kubernetes at " + c.URL)
	c.API.Resume(t)
	f.isStale("")
	f.onlySays("a pause", "")

	c.API.Kill(t)
	f.isStale("connection refused")
	c.Compact(t)
	c.API.Start(t)
	c.WaitReady(t)
	c.Apply(t, realSlice("web", 3, 4))
	f.isStale("")
	f.has("api=9 web=3,4")
	f.onlySays("a server without history", "put web=3,4")

	c.API.Kill(t)
	f.isStale("connection refused")
	c.API.Start(t)
	c.WaitReady(t)
	c.Delete(t, "/api/v1/namespaces/default/services/api")
	f.isStale("")
	f.has("web=3,4")
	if words := f.take(); strings.Contains(words, "web=") && !strings.Contains(words, "replace") {
		t.Errorf("one less: received %q", words)
	}

	c.Delete(t, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/ironvip-follow")
	c.API.Kill(t) // not Restart: a server that stops normally waits a minute for its watches
	c.API.Start(t)
	c.WaitReady(t)
	f.isStale("configs/kubernetes/clusterrole.yaml")
	f.onlySays("without rights", "")
	c.Apply(t, realSlice("web", 5))
	c.Apply(t, rights)
	f.isStale("")
	f.has("web=5")
	f.onlySays("with rights", "put web=5")
}
