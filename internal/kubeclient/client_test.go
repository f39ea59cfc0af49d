package kubeclient

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"

	"github.com/ironvip/ironvip/internal/answer"
	"github.com/ironvip/ironvip/test/authority"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/heapsize"
	"github.com/ironvip/ironvip/test/must"
)

// asked is a server with one Service. It records the requests.
type asked struct {
	*httptest.Server
	last chan *http.Request
}

func serve(t *testing.T) asked {
	a := asked{last: make(chan *http.Request, 1)}
	a.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.last <- r
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"kind":"Service","apiVersion":"v1","metadata":{"name":"web","namespace":"shop"}}`)
	}))
	a.EnableHTTP2 = true
	a.Config.ErrorLog = log.New(io.Discard, "", 0)
	a.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
	a.StartTLS()
	t.Cleanup(a.Close)
	return a
}

func (a asked) ca() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.Certificate().Raw})
}

// kubeconfig writes a file with one cluster and one user.
func kubeconfig(t *testing.T, path, server, user string) {
	t.Helper()
	write(t, path, fmt.Sprintf(`
apiVersion: v1
kind: Config
current-context: main
contexts:
- {name: main, context: {cluster: c, user: u}}
- {name: nobody, context: {cluster: c, user: ""}}
clusters:
- {name: c, cluster: {server: %q, certificate-authority: ca.pem}}
users:
- name: u
  user: %s
`, server, user))
}

func write(t *testing.T, path, text string) {
	t.Helper()
	must.Succeed(t, os.WriteFile(path, []byte(text), 0o600))
}

// get requests the Service and returns the request that the server received.
func (a asked) get(c *Client) (*http.Request, error) {
	var service corev1.Service
	err := c.REST(corev1.SchemeGroupVersion).Get().Namespace("shop").Resource("services").Name("web").MaxRetries(0).Do(context.Background()).Into(&service)
	if err != nil {
		return nil, err
	}
	if service.Name != "web" {
		return nil, fmt.Errorf("the answer is %+v", service)
	}
	return <-a.last, nil
}

// later makes the client check its files again.
func later(c *Client) {
	t := c.transport.(*transport)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.checked = time.Time{}
}

// The kubeconfig and its files are read again when they change. A request goes to the current
// server, by HTTP/2 and in protobuf. An invalid file leaves the previous configuration in effect.
func TestKubeconfigThatChanges(t *testing.T) {
	first, second := serve(t), serve(t)
	dir := t.TempDir()
	path, ca := filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "ca.pem")
	c := must.Get(New(Config{Kubeconfig: path, UserAgent: "ironvip/test"}))(t)
	defer c.CloseIdle()
	if _, err := first.get(c); err == nil || !strings.Contains(err.Error(), path) || c.Server() != path {
		t.Errorf("without the file: %v, of %s", err, c.Server())
	}
	write(t, ca, string(first.ca()))
	kubeconfig(t, path, first.URL+"/clusters/one/", "{token: secret}")
	expect.Succeed(t, Check(Config{Kubeconfig: path}))
	later(c)
	r := must.Get(first.get(c))(t)
	if r.ProtoMajor != 2 || r.URL.Path != "/clusters/one/api/v1/namespaces/shop/services/web" || r.Header.Get("Authorization") != "Bearer secret" ||
		r.Header.Get("User-Agent") != "ironvip/test" || !strings.HasPrefix(r.Header.Get("Accept"), "application/vnd.kubernetes.protobuf,") {
		t.Errorf("%s %s %v", r.Proto, r.URL, r.Header)
	}
	expect.Equal(t, c.Server(), first.URL+"/clusters/one")

	write(t, path, "half: [")
	later(c)
	if _, err := first.get(c); err != nil {
		t.Errorf("with half a file: %v", err)
	}
	kubeconfig(t, path, second.URL, "{token: other}")
	write(t, ca, string(second.ca())+"\n")
	later(c)
	if r, err := second.get(c); err != nil || r.Header.Get("Authorization") != "Bearer other" {
		t.Errorf("after a change: %v", err)
	}
}

// Certificates and tokens come from data, files and programs.
func TestCredentials(t *testing.T) {
	server := serve(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "kubeconfig")
	write(t, filepath.Join(dir, "ca.pem"), string(server.ca()))
	authority.New(t).Client(t, "ironvip").Write(t, filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"))
	write(t, filepath.Join(dir, "token"), "of a file")
	write(t, filepath.Join(dir, "login"), "#!/bin/sh\n"+
		`echo '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"of a program"}}'`)
	must.Succeed(t, os.Chmod(filepath.Join(dir, "login"), 0o700))
	for _, test := range []struct {
		name, user, context, token string
		certificates               int
	}{
		{"certificate", "{client-certificate: cert.pem, client-key: key.pem}", "", "", 1},
		{"token file", "{tokenFile: token}", "", "Bearer of a file", 0},
		{"exec", "{exec: {apiVersion: client.authentication.k8s.io/v1, command: ./login, interactiveMode: Never}}", "", "Bearer of a program", 0},
		{"another context", "{token: secret}", "nobody", "", 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			kubeconfig(t, path, server.URL, test.user)
			c := must.Get(New(Config{Kubeconfig: path, Context: test.context}))(t)
			defer c.CloseIdle()
			r := must.Get(server.get(c))(t)
			if r.Header.Get("Authorization") != test.token || len(r.TLS.PeerCertificates) != test.certificates {
				t.Errorf("token %q, %d certificates", r.Header.Get("Authorization"), len(r.TLS.PeerCertificates))
			}
		})
	}
}

func TestWhatCantBeRight(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "kubeconfig")
	kubeconfig(t, path, "https://127.0.0.1:1", "{token: t}")
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	for _, test := range []struct {
		name, says string
		config     Config
	}{
		{"no file", "nowhere", Config{Kubeconfig: filepath.Join(dir, "nowhere")}},
		{"no CA file", "ca.pem", Config{Kubeconfig: path}},
		{"no such context", "nope", Config{Kubeconfig: path, Context: "nope"}},
		{"a context of no file", "main", Config{Context: "main"}},
		{"not in a pod", "no kubeconfig is given", Config{}},
	} {
		if err := Check(test.config); err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}

// A redirect receives no credentials. The error does not contain the placeholder URL.
func TestRedirectsAndCauses(t *testing.T) {
	c, err := NewThrough(trip(func(r *http.Request) (*http.Response, error) {
		expect.Equal(t, r.URL.Path, "/apis/discovery.k8s.io/v1/endpointslices", "asked for")
		return &http.Response{StatusCode: http.StatusTemporaryRedirect, Header: http.Header{"Location": {"https://elsewhere/"}},
			Body: io.NopCloser(strings.NewReader("")), Request: r}, nil
	}))
	must.Succeed(t, err)
	options := metav1.ListOptions{Limit: 7}
	request := c.REST(discoveryv1.SchemeGroupVersion).Get().Resource("endpointslices").VersionedParams(&options, c.Params())
	if request.URL().RawQuery != "limit=7" {
		t.Error(request.URL())
	}
	expect.True(t, request.Do(context.Background()).Error() != nil, "a redirect was followed")
	broken := fmt.Errorf("the wire is cut")
	c, err = NewThrough(trip(func(*http.Request) (*http.Response, error) { return nil, broken }))
	must.Succeed(t, err)
	if err := c.REST(corev1.SchemeGroupVersion).Get().Resource("nodes").MaxRetries(0).Do(context.Background()).Error(); Cause(err) != broken {
		t.Errorf("%v", Cause(err))
	}
}

type trip func(*http.Request) (*http.Response, error)

func (f trip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// Large dependencies are not linked.
func TestWhatIsLinked(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "../kubeclient", "../../sources/kubernetes").Output()
	must.Succeed(t, err, "go list")
	seen := false
	for _, pkg := range strings.Fields(string(out)) {
		seen = seen || pkg == "k8s.io/client-go/rest"
		for _, forbidden := range []string{"k8s.io/client-go/kubernetes", "k8s.io/client-go/dynamic", "k8s.io/client-go/tools/leaderelection",
			"k8s.io/client-go/informers", "k8s.io/client-go/discovery", "k8s.io/apiextensions-apiserver", "sigs.k8s.io/controller-runtime"} {
			if pkg == forbidden || strings.HasPrefix(pkg, forbidden+"/") {
				t.Errorf("%s is linked", pkg)
			}
		}
	}
	expect.True(t, seen, "client-go's rest is not linked: the list is not what it seems")
}

// endless is a server with answers without an end.
type endless struct{}

func (endless) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: endless{}}, nil
}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

func (endless) Close() error { return nil }

func TestAnAnswerHasAnEnd(t *testing.T) {
	c := must.Get(NewThrough(endless{}))(t)
	body := must.Get(c.REST(corev1.SchemeGroupVersion).Get().Resource("services").Stream(context.Background()))(t)
	n, err := io.Copy(io.Discard, body)
	if want := "the answer is longer than 128 MiB"; n != MaxAnswer || fmt.Sprint(err) != want {
		t.Errorf("%d bytes and %v, want %s", n, err, want)
	}
	body, err = c.REST(corev1.SchemeGroupVersion).Get().Resource("services").VersionedParams(&metav1.ListOptions{Watch: true}, c.Params()).Stream(context.Background())
	must.Succeed(t, err)
	if n, _ := io.Copy(io.Discard, body); n != maxJSONWatch {
		t.Errorf("%d bytes of a watch in JSON, want %d", n, maxJSONWatch)
	}
}

// A decoded answer takes no more memory than its estimate, which has a limit: many empty objects are the worst.
func TestWhatAnAnswerTakes(t *testing.T) {
	scheme := runtime.NewScheme()
	for _, group := range groups {
		must.Succeed(t, group.add(scheme))
	}
	const few, many = 1, 20_000
	for name, list := range map[string]func(n int) runtime.Object{
		"Services": func(n int) runtime.Object { return &corev1.ServiceList{Items: make([]corev1.Service, n)} },
		"Nodes":    func(n int) runtime.Object { return &corev1.NodeList{Items: make([]corev1.Node, n)} },
		"EndpointSlices": func(n int) runtime.Object {
			return &discoveryv1.EndpointSliceList{Items: make([]discoveryv1.EndpointSlice, n)}
		},
		"ports": func(n int) runtime.Object {
			return &corev1.ServiceList{Items: []corev1.Service{{Spec: corev1.ServiceSpec{Ports: make([]corev1.ServicePort, n)}}}}
		},
		"endpoints": func(n int) runtime.Object {
			return &discoveryv1.EndpointSliceList{Items: []discoveryv1.EndpointSlice{{Endpoints: make([]discoveryv1.Endpoint, n)}}}
		},
		"owners": func(n int) runtime.Object {
			return &corev1.NodeList{Items: []corev1.Node{{ObjectMeta: metav1.ObjectMeta{OwnerReferences: make([]metav1.OwnerReference, n), Finalizers: make([]string, n)}}}}
		},
	} {
		for _, format := range []string{runtime.ContentTypeProtobuf, runtime.ContentTypeJSON} {
			t.Run(name+" as "+format, func(t *testing.T) {
				codecs := serializer.NewCodecFactory(scheme)
				info, _ := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), format)
				encode := func(n int) []byte {
					return must.Get(runtime.Encode(codecs.EncoderForVersion(info.Serializer, schema.GroupVersions{corev1.SchemeGroupVersion, discoveryv1.SchemeGroupVersion}), list(n)))(t)
				}
				check := func(data []byte, most int64) error {
					if message, is := bytes.CutPrefix(data, []byte("k8s\x00")); is {
						return answer.CheckProtobuf(message, 1, most)
					}
					return answer.CheckJSON(data, most)
				}
				data := encode(many)
				decoder := codecs.UniversalDeserializer()
				must.Get(runtime.Decode(decoder, encode(few)))(t)
				size := heapsize.Of(func() any { return must.Get(runtime.Decode(decoder, data))(t) })
				if check(data, int64(size)) == nil {
					t.Errorf("%d bytes of %d objects take %d: more than is estimated", len(data), many, size)
				}
				expect.Equal(t, check(data, int64(size)*100), nil, "check with much room")
			})
		}
	}
}

// A message with too many objects is not decoded.
func TestTooManyObjects(t *testing.T) {
	for format, body := range map[string]string{
		runtime.ContentTypeJSON: `{"kind":"ServiceList","apiVersion":"v1","items":[{}` + strings.Repeat(",{}", 3<<20) + "]}",
		runtime.ContentTypeProtobuf: "k8s\x00" + "\x0a\x11\x0a\x02v1\x12\x0bServiceList" +
			string(protowire.AppendBytes([]byte{0x12}, bytes.Repeat([]byte{0x12, 0}, 3<<20))),
	} {
		c := must.Get(NewThrough(trip(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {format}}, Body: io.NopCloser(strings.NewReader(body))}, nil
		})))(t)
		_, err := c.REST(corev1.SchemeGroupVersion).Get().Resource("services").Do(context.Background()).Get()
		expect.Is(t, err, answer.ErrTooLarge, format)
	}
}
