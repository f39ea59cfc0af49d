// Package kubeclient makes clients of a Kubernetes API server for long lives: for
// the source and for what it writes back.
//
// In goes a Config, out come client-go's REST clients, one for each group of the
// API, on a transport of their own: the kubeconfig and the files that it names
// are read anew when they change, so that certificates and addresses may, tokens
// rotate, exec plugins are run, and a server that is silent is noticed within
// about 20 s. The package knows the few kinds of objects that ironvip deals with
// and no others, which keeps it small: neither the typed clientset nor anything
// that pulls it in. It never talks to a server by itself, waits for no one in
// turn (who makes many requests paces them), and never sends what it has of
// credentials anywhere but to the configured server.
package kubeclient

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
)

// Config is which server to ask, and as whom.
type Config struct {
	// Kubeconfig is the path of a kubeconfig file; "" is what a pod is given: the
	// server in its environment, its service account's token.
	Kubeconfig string
	// Context is which of the file's contexts to use; "" is its current one.
	Context string
	// UserAgent is what the server's logs say of us.
	UserAgent string
}

// Client is safe for concurrent use.
type Client struct {
	transport server
	clients   map[schema.GroupVersion]rest.Interface
	params    runtime.ParameterCodec
}

// groups are the parts of the API that we know.
var groups = []struct {
	version schema.GroupVersion
	add     func(*runtime.Scheme) error
}{
	{corev1.SchemeGroupVersion, corev1.AddToScheme},
	{discoveryv1.SchemeGroupVersion, discoveryv1.AddToScheme},
	{networkingv1.SchemeGroupVersion, networkingv1.AddToScheme},
	{coordinationv1.SchemeGroupVersion, coordinationv1.AddToScheme},
}

// anyServer stands for the server in requests, until the transport puts the one
// in its place that is configured at that time.
const anyServer = "https://kubernetes.invalid"

// New returns a client. It does not connect, and doesn't need the kubeconfig yet:
// with a file that isn't there or can't be used, requests fail until it can (see
// Check). The error names a part of the configuration that can't be right.
func New(c Config) (*Client, error) {
	if c.Kubeconfig == "" && c.Context != "" {
		return nil, fmt.Errorf("kubernetes context %q: contexts are those of a kubeconfig file, and none is given", c.Context)
	}
	return through(&transport{config: c})
}

// NewThrough returns a client whose requests go to next as they are, addressed to
// no server in particular: for tests with a server that has no network.
func NewThrough(next http.RoundTripper) (*Client, error) { return through(direct{next}) }

// server is who has requests answered.
type server interface {
	http.RoundTripper
	server() string
	closeIdle()
}

// direct is a server that is in the same program.
type direct struct{ http.RoundTripper }

func (direct) server() string { return anyServer }

func (direct) closeIdle() {}

func through(to server) (*Client, error) {
	scheme := runtime.NewScheme()
	for _, group := range groups {
		if err := group.add(scheme); err != nil {
			return nil, err
		}
	}
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	out := &Client{transport: to, clients: map[schema.GroupVersion]rest.Interface{}, params: runtime.NewParameterCodec(scheme)}
	client := &http.Client{Transport: to,
		// The server redirects to nobody whom our credentials are for.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	for _, group := range groups {
		root := "/apis"
		if group.version.Group == "" {
			root = "/api"
		}
		made, err := rest.RESTClientForConfigAndClient(&rest.Config{Host: anyServer, APIPath: root, QPS: -1,
			WarningHandler: rest.NoWarnings{}, // of what is deprecated: that is the build's business, not the user's
			ContentConfig: rest.ContentConfig{GroupVersion: &group.version, NegotiatedSerializer: serializer.NewCodecFactory(scheme).WithoutConversion(),
				// Half as many bytes, and a third of the work.
				ContentType:        runtime.ContentTypeProtobuf,
				AcceptContentTypes: runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON}}, client)
		if err != nil {
			return nil, err
		}
		out.clients[group.version] = made
	}
	return out, nil
}

// Check reads the configuration and what it names, and says what is wrong with
// it. It does not connect.
func Check(c Config) error {
	if _, err := New(c); err != nil {
		return err
	}
	_, err := load(c)
	return err
}

// REST returns the client of one group of the API: core, discovery.k8s.io,
// networking.k8s.io or coordination.k8s.io, each in version v1. Any other is a
// mistake in the program. Objects are sent as protobuf unless the request says
// otherwise.
func (c *Client) REST(gv schema.GroupVersion) rest.Interface {
	client, known := c.clients[gv]
	if !known {
		panic(fmt.Sprintf("kubeclient: %s is not among what it knows", gv))
	}
	return client
}

// Params is what turns metav1's options into parameters of a request.
func (c *Client) Params() runtime.ParameterCodec { return c.params }

// Server names the server in messages: its URL, or the kubeconfig while that
// can't be read.
func (c *Client) Server() string { return c.transport.server() }

// CloseIdle closes connections on which nothing is asked.
func (c *Client) CloseIdle() { c.transport.closeIdle() }

// Cause returns what is behind a failed request, without the URL, in which
// anyServer stands for the server.
func Cause(err error) error {
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		return wrapped.Err
	}
	return err
}
