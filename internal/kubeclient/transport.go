package kubeclient

import (
	"bytes"
	"cmp"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientgo "k8s.io/client-go/transport"

	"github.com/ironvip/ironvip/internal/answer"
)

// These timeouts detect a peer that disappeared without closing the connection, or a stopped
// process. client-go's own 45 s can be changed only by the environment.
const (
	dialTimeout  = 5 * time.Second
	tlsTimeout   = 10 * time.Second
	probeIdle    = 10 * time.Second
	probeAnswer  = 10 * time.Second
	idleConnLife = 90 * time.Second
	// freshFor is how long files count as unchanged before they are checked again.
	freshFor = time.Second
)

// MaxAnswer bounds an answer, and all events of a watch, in bytes. A page of 500 large Nodes takes a
// fifth of it.
const MaxAnswer = 128 << 20

// maxJSONWatch bounds the events of a watch in JSON, in bytes: client-go reads an event without a limit of its own. Servers
// that know protobuf send none.
const maxJSONWatch = 32 << 20

// bounding limits the size of every answer.
type bounding struct{ http.RoundTripper }

func (t bounding) RoundTrip(r *http.Request) (*http.Response, error) {
	received, err := t.RoundTripper.RoundTrip(r)
	if err == nil {
		limit := int64(MaxAnswer)
		if r.URL.Query().Has("watch") && strings.HasPrefix(received.Header.Get("Content-Type"), runtime.ContentTypeJSON) {
			limit = maxJSONWatch
		}
		answer.Bound(received, limit, false)
	}
	return received, err
}

// weighing decodes no message that would take too much memory.
type weighing struct{ runtime.NegotiatedSerializer }

func (w weighing) DecoderToVersion(d runtime.Decoder, of runtime.GroupVersioner) runtime.Decoder {
	return weighingDecoder{w.NegotiatedSerializer.DecoderToVersion(d, of)}
}

type weighingDecoder struct{ runtime.Decoder }

// Decode implements runtime.Decoder.
func (d weighingDecoder) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	var err error
	if message, is := bytes.CutPrefix(data, []byte("k8s\x00")); is {
		err = answer.CheckProtobuf(message, 1, answer.MaxDecoded) // an envelope with a list
	} else {
		err = answer.CheckJSON(data, answer.MaxDecoded)
	}
	if err != nil {
		return nil, nil, err
	}
	return d.Decoder.Decode(data, defaults, into)
}

// loaded is the configuration from the files.
type loaded struct {
	server *url.URL
	next   http.RoundTripper // adds the credentials
	inner  *http.Transport
	files  []string // the files that were read
	stamp  string   // their state before they were read
}

// load reads the configuration.
func load(c Config) (*loaded, error) {
	files := []string{c.Kubeconfig}
	before := stamp(files)
	config, err := read(c)
	if err != nil {
		return nil, err
	}
	config.UserAgent = cmp.Or(c.UserAgent, "ironvip")
	dialer := &net.Dialer{Timeout: dialTimeout,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: probeIdle, Interval: probeAnswer / 2, Count: 2}}
	config.Dial = dialer.DialContext
	if config.ExecProvider != nil {
		config.ExecProvider.StdinUnavailable = true // an agent has no terminal
	}
	if config.CAFile != "" { // client-go reads changed certificates and tokens itself
		files = append(files, config.CAFile)
		before += stamp(files[1:])
	}
	server, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, err
	}
	wrapped, err := config.TransportConfig()
	if err != nil {
		return nil, err
	}
	tls, err := clientgo.TLSConfigFor(wrapped)
	if err != nil {
		return nil, err
	}
	inner := &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         wrapped.DialHolder.Dial,
		TLSClientConfig:     tls,
		TLSHandshakeTimeout: tlsTimeout,
		IdleConnTimeout:     idleConnLife,
		MaxIdleConnsPerHost: 32,
		ForceAttemptHTTP2:   true,
		HTTP2:               &http.HTTP2Config{SendPingTimeout: probeIdle, PingTimeout: probeAnswer},
		DisableCompression:  wrapped.DisableCompression,
	}
	if wrapped.Proxy != nil {
		inner.Proxy = wrapped.Proxy
	}
	next, err := clientgo.HTTPWrappersForConfig(wrapped, inner)
	if err != nil {
		return nil, err
	}
	server.Path = strings.TrimSuffix(server.Path, "/")
	return &loaded{server: server, next: next, inner: inner, files: files, stamp: before}, nil
}

// read returns the configuration of the selected context of the kubeconfig.
func read(c Config) (*rest.Config, error) {
	if c.Kubeconfig == "" {
		config, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("no kubeconfig is given, and this is not in a pod: %w", err)
		}
		return config, nil
	}
	all, err := clientcmd.LoadFromFile(c.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", c.Kubeconfig, err)
	}
	if err := clientcmd.ResolveLocalPaths(all); err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", c.Kubeconfig, err)
	}
	config, err := clientcmd.NewNonInteractiveClientConfig(*all, cmp.Or(c.Context, all.CurrentContext), &clientcmd.ConfigOverrides{}, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", c.Kubeconfig, err)
	}
	return config, nil
}

// stamp returns a text that changes when one of the files changes.
func stamp(files []string) string {
	var out strings.Builder
	for _, path := range files {
		if info, err := os.Stat(path); err == nil {
			fmt.Fprintf(&out, "%d %d;", info.ModTime().UnixNano(), info.Size())
		} else {
			out.WriteString("none;")
		}
	}
	return out.String()
}

// transport sends each request to the server that is configured at that time, with the credentials
// of that time.
type transport struct {
	config Config

	mu      sync.Mutex
	loaded  *loaded
	err     error // why loaded is nil
	checked time.Time
}

// current returns the configuration and reads it again if files have changed. If the new one is
// invalid, for example a file that is half written, the previous one stays in effect.
func (t *transport) current() (*loaded, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now := time.Now(); now.Sub(t.checked) >= freshFor {
		t.checked = now
		if t.loaded == nil || stamp(t.loaded.files) != t.loaded.stamp {
			next, err := load(t.config)
			if t.err = err; err == nil {
				if t.loaded != nil {
					t.loaded.inner.CloseIdleConnections()
				}
				t.loaded = next
			}
		}
	}
	if t.loaded == nil {
		return nil, t.err
	}
	return t.loaded, nil
}

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	to, err := t.current()
	if err != nil {
		if r.Body != nil {
			_ = r.Body.Close()
		}
		return nil, err
	}
	r = r.Clone(r.Context())
	r.Host = ""
	r.URL.Scheme, r.URL.Host = to.server.Scheme, to.server.Host
	r.URL.Path = to.server.Path + r.URL.Path
	if r.URL.RawPath != "" {
		r.URL.RawPath = to.server.EscapedPath() + r.URL.RawPath
	}
	return to.next.RoundTrip(r)
}

func (t *transport) server() string {
	to, err := t.current()
	if err != nil {
		return cmp.Or(t.config.Kubeconfig, "the pod's environment")
	}
	return to.server.String()
}

func (t *transport) closeIdle() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.loaded != nil {
		t.loaded.inner.CloseIdleConnections()
	}
}
