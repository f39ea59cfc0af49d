//go:build system

package kubetest

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/authority"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/process"
	"github.com/ironvip/ironvip/test/wait"
)

// web is the manifest of a Service and its path.
const (
	web = `
apiVersion: v1
kind: Service
metadata: {name: web, annotations: {a: "1"}}
spec: {ports: [{port: 80}]}
`
	webPath = "/api/v1/namespaces/default/services/web"
)

type service struct {
	Metadata struct {
		ResourceVersion string
		Annotations     map[string]string
	}
	Spec struct {
		ClusterIPs []netip.Addr
		Type       string
	}
	Status struct {
		LoadBalancer struct{ Ingress []struct{ IP netip.Addr } }
	}
}

func get(t *testing.T, c *Cluster, path string) (s service) {
	t.Helper()
	c.Get(t, path, &s)
	return s
}

func TestObjectsAreAppliedPatchedAndDeleted(t *testing.T) {
	t.Parallel()
	c := Start(t, Options{})
	c.Apply(t, "# nothing but a comment\n---\n"+strings.Replace(web, "spec: {", "spec: {type: LoadBalancer, ", 1)+"status: {loadBalancer: {ingress: [{ip: 192.0.2.7}]}}\n"+
		EndpointSlice("default", "web", 8080, netip.MustParseAddr("10.0.0.1"))+Node("n1", "a", netip.MustParseAddr("10.0.0.2")))
	s := get(t, c, webPath)
	if len(s.Spec.ClusterIPs) != 1 || !DualStack()[0].Contains(s.Spec.ClusterIPs[0]) || s.Metadata.Annotations["a"] != "1" {
		t.Errorf("applied: %+v", s)
	}
	if in := s.Status.LoadBalancer.Ingress; len(in) != 1 || in[0].IP.String() != "192.0.2.7" {
		t.Errorf("its status: %+v", in)
	}
	var slices struct {
		Items []struct {
			Endpoints []struct{ Addresses []string }
		}
	}
	c.Get(t, "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices?labelSelector=kubernetes.io/service-name=web", &slices)
	if len(slices.Items) != 1 || len(slices.Items[0].Endpoints) != 1 || slices.Items[0].Endpoints[0].Addresses[0] != "10.0.0.1" {
		t.Errorf("its slices: %+v", slices)
	}
	var node struct {
		Status struct{ Addresses []struct{ Address string } }
	}
	c.Get(t, "/api/v1/nodes/n1", &node)
	if a := node.Status.Addresses; len(a) != 1 || a[0].Address != "10.0.0.2" {
		t.Errorf("the node's addresses: %+v", a)
	}

	c.Apply(t, strings.Replace(web, `a: "1"`, `b: "2"`, 1))
	c.Patch(t, webPath, `{"spec": {"type": "NodePort"}}`)
	s = get(t, c, webPath)
	if _, has := s.Metadata.Annotations["a"]; has || s.Metadata.Annotations["b"] != "2" || s.Spec.Type != "NodePort" {
		t.Errorf("applied again and patched: %+v", s)
	}
	c.Delete(t, webPath)
	if err := c.Do(t.Context(), "GET", webPath, "", nil, nil); Code(err) != http.StatusNotFound {
		t.Errorf("deleted: %v", err)
	}

	for manifest, want := range map[string]string{
		"{apiVersion: v1, kind: Service}":                             "metadata.name",
		"{apiVersion: v1, kind: Nothing, metadata: {name: a}}":        "no kind Nothing",
		"{apiVersion: v1, kind: Service, metadata: {name: a}, x: [}":  "yaml",
		"{apiVersion: v1, kind: Service, metadata: {name: a}, xx: 1}": "xx",
	} {
		if err := c.TryApply(t.Context(), manifest); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q in it", manifest, err, want)
		}
	}
}

func TestObjectsOutliveBothServers(t *testing.T) {
	t.Parallel()
	c := Start(t, Options{})
	c.Apply(t, web)
	ip := get(t, c, webPath).Spec.ClusterIPs
	url := c.URL
	for name, disturb := range map[string]func(){
		"the API restarted": func() { c.API.Restart(t) },
		"etcd restarted":    func() { c.Etcd.Restart(t) },
		"both killed": func() {
			for _, s := range []*Server{c.API, c.Etcd} {
				pid := s.Pid()
				s.Kill(t)
				if s.Running() || s.Pid() != 0 || !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
					t.Errorf("%s: it still runs", s.name)
				}
			}
			if err := c.Do(t.Context(), "GET", webPath, "", nil, nil); err == nil || Code(err) != 0 {
				t.Errorf("killed, it answers %v", err)
			}
			c.Etcd.Start(t)
			c.API.Start(t)
		},
	} {
		disturb()
		c.WaitReady(t)
		if got := get(t, c, webPath).Spec.ClusterIPs; !slices.Equal(got, ip) || c.URL != url {
			t.Errorf("%s: %v at %s, want %v at %s", name, got, c.URL, ip, url)
		}
	}
}

func TestStalledServersAnswerLater(t *testing.T) {
	t.Parallel()
	c := Start(t, Options{})
	c.Apply(t, web)
	for n, s := range []*Server{c.API, c.Etcd} {
		s.Stall(t)
		if s.Running() || s.Pid() == 0 {
			t.Errorf("%s: not stalled", s.name)
		}
		answer := make(chan error, 1)
		go func() {
			answer <- c.Do(t.Context(), "PATCH", webPath, "application/merge-patch+json", fmt.Appendf(nil, `{"metadata": {"labels": {"n": "%d"}}}`, n), nil)
		}()
		select {
		case err := <-answer:
			t.Errorf("%s: stalled, it answers: %v", s.name, err)
			s.Resume(t)
			continue
		case <-time.After(200 * time.Millisecond):
		}
		s.Resume(t)
		if err := <-answer; err != nil {
			t.Errorf("%s: resumed: %v", s.name, err)
		}
	}
}

func TestAnOldWatchIsGoneAfterCompaction(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]Options{
		"with the watch cache":    {},
		"without the watch cache": {Flags: []string{"--watch-cache=false"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := Start(t, o)
			c.Apply(t, web)
			old := get(t, c, webPath).Metadata.ResourceVersion
			for n := range 3 {
				c.Patch(t, webPath, fmt.Sprintf(`{"metadata": {"labels": {"n": "%d"}}}`, n))
			}
			if kind, code := firstEvent(t, c, old); kind != "MODIFIED" || code != 0 {
				t.Errorf("before: %s %d", kind, code)
			}
			revision := c.Compact(t)
			if now, err := strconv.ParseInt(get(t, c, webPath).Metadata.ResourceVersion, 10, 64); err != nil || now > revision {
				t.Errorf("compacted at %d, before %d: %v", revision, now, err)
			}
			if o.Flags == nil {
				if kind, code := firstEvent(t, c, old); kind != "MODIFIED" || code != 0 {
					t.Errorf("what kube-apiserver remembers: %s %d", kind, code)
				}
				c.API.Restart(t)
			}
			if kind, code := firstEvent(t, c, old); code != http.StatusGone {
				t.Errorf("after: %s %d, want ERROR 410", kind, code)
			}
		})
	}
}

// firstEvent returns the first event of a watch of Services from a resource version, and the status
// code if the event is an error.
func firstEvent(t *testing.T, c *Cluster, version string) (string, int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), maxWait)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "GET", c.URL+"/api/v1/services?watch=1&resourceVersion="+version, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.Client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return "ERROR", resp.StatusCode
	}
	var event struct {
		Type   string
		Object struct{ Code int }
	}
	if err := json.NewDecoder(resp.Body).Decode(&event); err != nil {
		t.Fatal(err)
	}
	return event.Type, event.Object.Code
}

// as returns a client with the credentials and the address of a kubeconfig.
func as(t *testing.T, path string) func(method, path string) int {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var config struct {
		Clusters []struct {
			Cluster struct {
				Server string
				CA     string `json:"certificate-authority"`
			}
		}
		Users []struct {
			User struct {
				Cert      string `json:"client-certificate"`
				Key       string `json:"client-key"`
				TokenFile string
			}
		}
	}
	if err := json.Unmarshal(b, &config); err != nil {
		t.Fatal(err)
	}
	cluster, user := config.Clusters[0].Cluster, config.Users[0].User
	ca, err := os.ReadFile(cluster.CA)
	if err != nil {
		t.Fatal(err)
	}
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: x509.NewCertPool()}, DisableKeepAlives: true}
	tr.TLSClientConfig.RootCAs.AppendCertsFromPEM(ca)
	var token []byte
	if user.TokenFile != "" {
		token, err = os.ReadFile(user.TokenFile)
	} else {
		tr.TLSClientConfig.Certificates = make([]tls.Certificate, 1)
		tr.TLSClientConfig.Certificates[0], err = tls.LoadX509KeyPair(user.Cert, user.Key)
	}
	if err != nil {
		t.Fatal(err)
	}
	return func(method, path string) int {
		t.Helper()
		req, err := http.NewRequest(method, cluster.Server+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if token != nil {
			req.Header.Set("Authorization", "Bearer "+string(token))
		}
		resp, err := (&http.Client{Transport: tr, Timeout: maxWait}).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
}

func TestRightsAreThoseOfTheUser(t *testing.T) {
	t.Parallel()
	c := Start(t, Options{})
	c.Apply(t, web)
	c.Apply(t, `
apiVersion: v1
kind: Namespace
metadata: {name: other}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: reader}
rules: [{apiGroups: [""], resources: [services], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: readers}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: reader}
subjects:
- {apiGroup: rbac.authorization.k8s.io, kind: User, name: eve}
- {apiGroup: rbac.authorization.k8s.io, kind: Group, name: readers}
- {kind: ServiceAccount, namespace: other, name: agent}
`)
	agent := as(t, c.TokenKubeconfig(t, c.TokenFile(t, "other", "agent")))
	for _, tc := range []struct {
		name        string
		ask         func(method, path string) int
		get, delete int
	}{
		{"a user", as(t, c.Kubeconfig(t, "eve")), 200, 403},
		{"another user", as(t, c.Kubeconfig(t, "mallory")), 403, 403},
		{"another of a group", as(t, c.Kubeconfig(t, "mallory", "others", "readers")), 200, 403},
		{"an account", agent, 200, 403},
		{"another account", as(t, c.TokenKubeconfig(t, c.TokenFile(t, "default", "agent"))), 403, 403},
		{"a master", as(t, c.Kubeconfig(t, "admin", Masters)), 200, 200},
	} {
		// The authorizer learns of bindings from a watch.
		wait.For(t, tc.name, func() error {
			if status := tc.ask("GET", webPath); status != tc.get {
				return fmt.Errorf("gets %d, want %d", status, tc.get)
			}
			return nil
		})
		if status := tc.ask("DELETE", webPath); status != tc.delete {
			t.Errorf("%s deletes with %d, want %d", tc.name, status, tc.delete)
		}
	}
	stranger := c.Kubeconfig(t, "admin", Masters)
	beside := filepath.Dir(stranger)
	authority.New(t).Client(t, "admin", Masters).Write(t, filepath.Join(beside, "client.pem"), filepath.Join(beside, "client.key"))
	if status := as(t, stranger)("GET", webPath); status != 401 {
		t.Errorf("a master by another authority gets %d, want 401", status)
	}
	c.Delete(t, "/api/v1/namespaces/other/serviceaccounts/agent")
	wait.For(t, "the token of a deleted account is refused", func() error {
		if status := agent("GET", webPath); status != 401 { // valid tokens are cached for some seconds
			return fmt.Errorf("status %d, want 401", status)
		}
		return nil
	})
}

func TestDualStack(t *testing.T) {
	t.Parallel()
	c := Start(t, Options{ServiceCIDRs: DualStack()})
	c.Apply(t, web)
	c.Patch(t, webPath, `{"spec": {"ipFamilyPolicy": "RequireDualStack"}}`)
	ips := get(t, c, webPath).Spec.ClusterIPs
	if len(ips) != 2 || !DualStack()[0].Contains(ips[0]) || !DualStack()[1].Contains(ips[1]) {
		t.Errorf("cluster IPs: %v", ips)
	}
}

func TestIPv6InANamespace(t *testing.T) {
	t.Parallel()
	l := netlab.New(t)
	here, there := l.Backends[0], l.Backends[1]
	c := Start(t, Options{In: here, Addr: here.Addr6, ServiceCIDRs: DualStack()[1:]})
	c.Apply(t, web)
	c.API.Restart(t)
	if ips := get(t, c, webPath).Spec.ClusterIPs; len(ips) != 1 || !DualStack()[1].Contains(ips[0]) {
		t.Errorf("cluster IPs: %v", ips)
	}
	// From another namespace, as a user without a certificate.
	ca, err := os.ReadFile(c.CA)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	other := &http.Client{Transport: &http.Transport{DialContext: there.DialContext, DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots}}, Timeout: asking}
	resp, err := other.Get(c.URL + "/readyz")
	if err != nil {
		t.Fatalf("from another namespace: %v", err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("ready: %s", resp.Status)
	}
}

// TestNothingOutlivesTheTest runs this binary again, which starts a cluster and is then killed.
func TestNothingOutlivesTheTest(t *testing.T) {
	t.Parallel()
	need.Server(t, "etcd")
	need.Server(t, "kube-apiserver")
	if os.Getenv("KUBETEST_VICTIM") != "" {
		c := Start(t, Options{})
		fmt.Printf("pids=%d,%d dir=%s\n", c.Etcd.Pid(), c.API.Pid(), c.dir)
		c.API.Stall(t) // stopped processes must die, too
		select {}
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestNothingOutlivesTheTest$", "-test.timeout=2m")
	cmd.Env = append(os.Environ(), "KUBETEST_VICTIM=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	var pids [2]int
	var dir string
	if _, err := fmt.Fscanf(out, "pids=%d,%d dir=%s\n", &pids[0], &pids[1], &dir); err != nil {
		t.Fatalf("the child said nothing: %v", err)
	}
	defer os.RemoveAll(dir)
	cmd.Process.Kill()
	for _, pid := range pids {
		wait.Until(t, fmt.Sprintf("server %d ends with its test", pid), func() bool { return process.Gone(pid) })
	}
}
