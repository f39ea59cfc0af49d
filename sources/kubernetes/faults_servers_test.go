//go:build system

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

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/ironvip/ironvip/internal/kubeclient"
	"github.com/ironvip/ironvip/test/kubetest"
	"github.com/ironvip/ironvip/test/wait"
)

// with makes a follower use the credentials of a kubeconfig.
func with(t *testing.T, kubeconfig string) func(*Options) {
	t.Helper()
	client, err := kubeclient.New(kubeclient.Config{Kubeconfig: kubeconfig})
	if err != nil {
		t.Fatal(err)
	}
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
		if s := waitIngress(t, c, name, "192.0.2.1/Proxy"); !hasFinalizer(s) {
			t.Errorf("%s without the finalizer", name)
		}
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
		if err := os.WriteFile(file+".new", []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
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
	if code := asBearer(t, c, first); code != http.StatusUnauthorized {
		t.Fatalf("the server answers the old token with %d", code)
	}
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
	pem, err := os.ReadFile(c.CA)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	request, err := http.NewRequestWithContext(t.Context(), "GET", c.URL+"/api/v1/services", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+token)
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots}}}
	answer, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
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

// The host with the Lease has a clock that is an hour behind or ahead. It keeps the Lease exactly
// as long as it renews it.
func TestLeaseOfAHostWithAnotherClock(t *testing.T) {
	t.Parallel()
	const path = "/apis/coordination.k8s.io/v1/namespaces/ironvip/leases/ironvip"
	const leaseDuration, leaseRenew = 15 * time.Second, 5 * time.Second
	c := clusterWithRights(t)
	c.Apply(t, manifest("web", "SingleStack", ""))
	for _, skew := range []time.Duration{-time.Hour, time.Hour} {
		t.Run(skew.String(), func(t *testing.T) {
			says := func() string {
				at := time.Now().Add(skew).UTC().Format("2006-01-02T15:04:05.000000Z")
				return fmt.Sprintf(`{holderIdentity: other, leaseDurationSeconds: %d, renewTime: %q, acquireTime: %q}`, leaseDuration/time.Second, at, at)
			}
			renewed := func() {
				t.Helper()
				c.Apply(t, fmt.Sprintf("{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {namespace: ironvip, name: ironvip}, spec: %s}", says()))
			}
			began, slow := time.Now(), false
			last := began // time of the renewal, or earlier
			renewed()
			a := startAgent(t, c.Kubeconfig(t, "agents", "ironvip"), "a")
			for time.Since(began) < leaseDuration+leaseRenew {
				time.Sleep(time.Second)
				var lease coordinationv1.Lease
				c.Get(t, path, &lease)
				slow = slow || time.Since(last) > leaseDuration/2 // on a busy machine it may have expired
				if holder := value(lease.Spec.HolderIdentity); holder != "other" {
					if !slow {
						t.Errorf("taken over by %q while it was renewed", holder)
					}
					break
				}
				last = time.Now()
				renewed()
			}
			wait.Until(t, "taken over", func() bool { _, mine := a.Elected(); return mine }, func() any { return a.said() })
			if left := leaseDuration - time.Since(last); left > 0 && !slow {
				t.Errorf("taken over %s too early", left)
			}
			waitIngress(t, c, "web", "192.0.2.1/Proxy")
			wait.Until(t, "without problems", func() bool { return len(a.said()) == 0 }, func() any { return a.said() })
			a.stop()
		})
	}
}
