// Package client calls an agent's REST API over its unix socket or TCP.
//
// Its input is calls with the types of api/v1. Its output is their responses; every refused call
// returns an *Error with the agent's problem document. The package doesn't retry, keeps no state
// except idle connections, and logs nothing. A Client may be used concurrently.
package client

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	json2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	v1 "github.com/ironvip/ironvip/api/v1"
)

// DefaultAddr is the default address of an agent.
const DefaultAddr = "unix://" + v1.DefaultSocket

// DefaultTimeout bounds a call that doesn't wait.
const DefaultTimeout = 10 * time.Second

// maxAnswer bounds the size of a response. The largest is a page of 1,000 services with several
// hundred backends each.
const maxAnswer = 256 << 20

// Options are a Client's settings; the zero value is the default.
type Options struct {
	// Timeout bounds every call, including connecting, in addition to the call's own waiting time.
	// 0 means DefaultTimeout.
	Timeout time.Duration
	// Token identifies the caller; "": none. It is sent to a unix socket, to a loopback address, or
	// with TLS.
	Token string
	// Authorities are those of the agent's certificate. Nil: the host's.
	Authorities *x509.CertPool
	// UserAgent is for the agent's log. "" means "ironvip-client".
	UserAgent string
}

// Client calls one agent.
type Client struct {
	addr      string
	base      url.URL
	http      *http.Client
	timeout   time.Duration
	userAgent string
	token     string
}

// New returns a client of the agent at addr: "unix:///run/ironvip/ironvip.sock" (or a bare absolute
// path), "http://127.0.0.1:7480" (or a bare host:port), "https://lb1.example:7480". "" means DefaultAddr. New does not connect.
func New(addr string, o Options) (*Client, error) {
	if addr == "" {
		addr = DefaultAddr
	}
	if filepath.IsAbs(addr) {
		addr = "unix://" + addr
	}
	if !strings.Contains(addr, "://") {
		if _, port, err := net.SplitHostPort(addr); err != nil || port == "" {
			return nil, fmt.Errorf("agent address %q is neither a socket's absolute path nor HOST:PORT", addr)
		}
		addr = "http://" + addr
	}
	u, err := url.Parse(addr)
	if err != nil {
		return nil, fmt.Errorf("agent address %q: %w", addr, err)
	}
	c := &Client{addr: addr, timeout: o.Timeout, userAgent: o.UserAgent, token: o.Token}
	if c.timeout <= 0 {
		c.timeout = DefaultTimeout
	}
	if c.userAgent == "" {
		c.userAgent = "ironvip-client"
	}
	transport := &http.Transport{
		MaxIdleConnsPerHost:   4,
		IdleConnTimeout:       90 * time.Second,
		TLSHandshakeTimeout:   10 * time.Second,
		ExpectContinueTimeout: time.Second,
	}
	switch u.Scheme {
	case "unix":
		path := u.Path
		if path == "" || u.Host != "" {
			return nil, fmt.Errorf("agent address %q: a unix socket is named by its absolute path, as unix://%s", addr, v1.DefaultSocket)
		}
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		}
		c.base = url.URL{Scheme: "http", Host: "localhost"}
	case "http", "https":
		if u.Host == "" || u.RawQuery != "" || strings.Trim(u.Path, "/") != "" {
			return nil, fmt.Errorf("agent address %q: give scheme and host:port only, as http://%s", addr, v1.DefaultListen)
		}
		if o.Token != "" && u.Scheme == "http" && !isLoopback(u.Hostname()) {
			return nil, fmt.Errorf("agent address %q: a token is sent with TLS only: use https", addr)
		}
		transport.Proxy = http.ProxyFromEnvironment
		transport.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: o.Authorities}
		c.base = url.URL{Scheme: u.Scheme, Host: u.Host}
	default:
		return nil, fmt.Errorf("agent address %q: use unix://PATH or http://HOST:PORT", addr)
	}
	c.http = &http.Client{Transport: transport}
	return c, nil
}

// isLoopback reports whether a host is this one.
func isLoopback(host string) bool {
	a, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && a.IsLoopback()
}

// Addr returns the client's address in its full form.
func (c *Client) Addr() string { return c.addr }

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// call is one request.
type call struct {
	method string
	path   string // escaped
	query  url.Values
	header http.Header
	body   any
	wait   time.Duration // how long the server may wait for the caller
}

// fetch sends the request, a GET unless it has another method, and decodes its response.
func fetch[T any](ctx context.Context, c *Client, q call) (out T, err error) {
	q.method = cmp.Or(q.method, http.MethodGet)
	err = c.do(ctx, q, &out)
	return out, err
}

// do sends the request and decodes its response into out, which may be nil. A nil error means a
// status below 300.
func (c *Client) do(ctx context.Context, q call, out any) error {
	ctx, cancel := context.WithTimeoutCause(ctx, c.timeout+q.wait, errTimeout)
	defer cancel()
	resp, err := c.send(ctx, q)
	if err != nil {
		return err
	}
	return c.decode(ctx, q, resp, out)
}

// lenient are the options for documents of an agent. By default, the decoder refuses some text that
// encoding/json accepts. Checking for duplicate names costs time, and an agent writes none.
var lenient = json2.JoinOptions(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))

// decode decodes the response to q into out, which may be nil, and closes its body.
func (c *Client) decode(ctx context.Context, q call, resp *http.Response, out any) (err error) {
	defer resp.Body.Close()
	body := io.LimitReader(resp.Body, maxAnswer)
	if out == nil {
		_, err = io.Copy(io.Discard, body)
	} else {
		err = json2.UnmarshalRead(body, out, lenient)
	}
	if err != nil {
		return c.unreachable(ctx, fmt.Errorf("%s %s: read the answer: %w", q.method, q.path, err))
	}
	return nil
}

// send sends the request and returns a response with a status below 300. The caller closes its
// body.
func (c *Client) send(ctx context.Context, q call) (*http.Response, error) {
	target := c.base.String() + q.path
	if len(q.query) > 0 {
		target += "?" + q.query.Encode()
	}
	var body io.Reader
	if q.body != nil {
		b, err := json.Marshal(q.body)
		if err != nil {
			return nil, fmt.Errorf("%s %s: encode the request: %w", q.method, q.path, err)
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, q.method, target, body)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", q.method, q.path, err)
	}
	for k, v := range q.header {
		req.Header[k] = v
	}
	if body != nil && req.Header.Get("Content-Type") == "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if req.Header.Get("Accept") == "" {
		req.Header.Set("Accept", "application/json")
	}
	req.Header.Set("User-Agent", c.userAgent)
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.unreachable(ctx, err)
	}
	if resp.StatusCode >= 300 {
		defer resp.Body.Close()
		return nil, refusal(resp)
	}
	return resp, nil
}

// RoundTrip implements http.RoundTripper: it sends a request to the agent, whatever its host is, with the
// token of the client. It has no timeout but that of the request's context.
func (c *Client) RoundTrip(r *http.Request) (*http.Response, error) {
	out := r.Clone(r.Context())
	out.URL.Scheme, out.URL.Host, out.Host = c.base.Scheme, c.base.Host, ""
	if c.token != "" {
		out.Header.Set("Authorization", "Bearer "+c.token)
	}
	return c.http.Transport.RoundTrip(out)
}

var errTimeout = errors.New("no answer in time")
