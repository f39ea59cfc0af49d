// Package kubeclient creates long-lived clients of a Kubernetes API server, for the source and its
// Writer.
//
// Its input is a Config. Its output is client-go's REST clients, one for each API group, on a
// transport of this package. The transport reads the kubeconfig and its files again when they
// change. Thus certificates, tokens and addresses can change, and exec plugins are run. A silent
// server is detected within about 20 s. To stay small, the package knows only the kinds of objects
// that ironvip uses, without the typed clientset and its dependencies. It never sends requests on
// its own and never limits their rate. It never sends credentials to any server except the
// configured one.
package kubeclient

import (
	"errors"
	"fmt"
	"log/slog"
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
	"k8s.io/klog/v2"

	"github.com/ironvip/ironvip/internal/kubeclient/gatewayapi"
)

// Config selects the server and the credentials.
type Config struct {
	// Kubeconfig is the path of a kubeconfig file. "" uses the settings of a pod: the server in the
	// environment and the token of the service account.
	Kubeconfig string
	// Context is the kubeconfig's context to use; "": its current one.
	Context string
	// UserAgent identifies this client in the server's logs.
	UserAgent string
}

// Client holds the REST clients of one server. It is safe for concurrent use.
type Client struct {
	transport server
	clients   map[schema.GroupVersion]rest.Interface
	params    runtime.ParameterCodec
}

// groups are the supported API groups.
var groups = []struct {
	version schema.GroupVersion
	add     func(*runtime.Scheme) error
}{
	{corev1.SchemeGroupVersion, corev1.AddToScheme},
	{discoveryv1.SchemeGroupVersion, discoveryv1.AddToScheme},
	{networkingv1.SchemeGroupVersion, networkingv1.AddToScheme},
	{coordinationv1.SchemeGroupVersion, coordinationv1.AddToScheme},
	{gatewayapi.V1, gatewayapi.AddToScheme(gatewayapi.V1)},
	{gatewayapi.V1Beta1, gatewayapi.AddToScheme(gatewayapi.V1Beta1)},
	{gatewayapi.V1Alpha2, gatewayapi.AddToScheme(gatewayapi.V1Alpha2)},
}

// anyServer is a placeholder in requests. The transport replaces it by the server that is
// configured at that time.
const anyServer = "https://kubernetes.invalid"

// New returns a client. It does not connect, and does not need the kubeconfig yet. Requests fail
// while the file is missing or invalid (see Check). The error names an invalid part of the
// configuration.
func New(c Config) (*Client, error) {
	if c.Kubeconfig == "" && c.Context != "" {
		return nil, fmt.Errorf("kubernetes context %q: contexts are those of a kubeconfig file, and none is given", c.Context)
	}
	return through(&transport{config: c})
}

// NewThrough returns a client that passes its requests to next unchanged, with a placeholder as the
// server. It is for tests with a server in this process.
func NewThrough(next http.RoundTripper) (*Client, error) { return through(direct{next}) }

// server is a transport to a server.
type server interface {
	http.RoundTripper
	server() string
	closeIdle()
}

// direct is a server in this process.
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
	client := &http.Client{Transport: bounding{to},
		// Credentials must not be sent to another server.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	for _, group := range groups {
		root := "/apis"
		if group.version.Group == "" {
			root = "/api"
		}
		made, err := rest.RESTClientForConfigAndClient(&rest.Config{Host: anyServer, APIPath: root, QPS: -1,
			WarningHandler: rest.NoWarnings{}, // a deprecation concerns the developers, not the user
			ContentConfig: rest.ContentConfig{GroupVersion: &group.version, NegotiatedSerializer: weighing{serializer.NewCodecFactory(scheme).WithoutConversion()},
				// Protobuf takes half as many bytes as JSON and a third of the work.
				ContentType:        runtime.ContentTypeProtobuf,
				AcceptContentTypes: runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON}}, client)
		if err != nil {
			return nil, err
		}
		out.clients[group.version] = made
	}
	return out, nil
}

// Quiet discards client-go's log. Its relevant messages are also errors that its callers receive. Call it at
// the program's start, because client-go has one log for the whole program.
func Quiet() { klog.SetSlogLogger(slog.New(slog.DiscardHandler)) }

// Check reads the configuration and its files and returns an error if they are invalid. It does not
// connect.
func Check(c Config) error {
	if _, err := New(c); err != nil {
		return err
	}
	_, err := load(c)
	return err
}

// REST returns the client of one API group in one version: core, discovery.k8s.io, networking.k8s.io and
// coordination.k8s.io in v1, and gateway.networking.k8s.io in each of gatewayapi.Versions. It panics for
// other groups, which is a programming error. Objects are sent as protobuf unless the request sets another format.
func (c *Client) REST(gv schema.GroupVersion) rest.Interface {
	client, known := c.clients[gv]
	if !known {
		panic(fmt.Sprintf("kubeclient: %s is not among what it knows", gv))
	}
	return client
}

// Params returns the codec that converts metav1's options to request parameters.
func (c *Client) Params() runtime.ParameterCodec { return c.params }

// Server returns the server's name for messages: its URL, or the kubeconfig if that can't be read.
func (c *Client) Server() string { return c.transport.server() }

// CloseIdle closes idle connections.
func (c *Client) CloseIdle() { c.transport.closeIdle() }

// Cause returns the cause of a failed request. It omits the URL, because that contains anyServer.
func Cause(err error) error {
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		return wrapped.Err
	}
	return err
}
