// Package http is the source of services in a document of an HTTP server.
//
// Its input is a URL whose answer is {"services": [...]}, the body of the API's services:apply. Its output is the services, and
// all problems with the URL and the place in the document. It asks again at an interval; an answer without a change, which is
// 304 or the same body, publishes nothing. A refused service keeps its last good version, also that of the last run of the
// agent. While the server does not answer as it should, all services stay unchanged and the source is stale. A later large
// removal is held back by the shrink guard. The package sends its token to the host of the URL only.
package http

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"mime"
	"net"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"time"

	"github.com/ironvip/ironvip/internal/answer"
	"github.com/ironvip/ironvip/internal/backoff"
	"github.com/ironvip/ironvip/internal/tlsfile"
	"github.com/ironvip/ironvip/sources"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// Bounds of a request.
const (
	timeout      = 30 * time.Second // of the whole answer
	dialTimeout  = 5 * time.Second
	maxHeader    = 64 << 10
	maxRedirects = 5
	// The backoff after failures grows from minBackoff to maxBackoff.
	minBackoff = time.Second
	maxBackoff = 10 * time.Second
)

// Options are the dependencies of a Source. URL is required.
type Options struct {
	Config
	Name    string // the source's name
	Version string // of this binary
	// Pools returns the pools to check services against. If they change, the document is read again.
	Pools func() []spec.Pool
	// Prior returns the services in effect of the last run of the agent. It is called at most once.
	Prior func() []vip.Service

	transport http.RoundTripper // changed by tests; nil: a real server
}

// Source implements sources.Source.
type Source struct {
	o      Options
	place  string // the URL without its query, which may have a secret
	client *http.Client
	last   map[vip.ServiceKey]vip.Service // in effect; nil: those of the last run of the agent
	// The answer that was published.
	etag   string
	digest [sha256.Size]byte
	pools  []spec.Pool
}

// New returns a source that sends no request before Run.
func New(o Options) *Source {
	place, _, _ := strings.Cut(o.URL, "?")
	s := &Source{o: o, place: place}
	if s.o.transport == nil {
		dialer := &net.Dialer{Timeout: dialTimeout}
		s.o.transport = &http.Transport{DialContext: dialer.DialContext, MaxResponseHeaderBytes: maxHeader, IdleConnTimeout: 90 * time.Second,
			DialTLSContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				host, _, err := net.SplitHostPort(address)
				if err != nil {
					return nil, err
				}
				config, err := o.Client.Config(host) // the files may have changed
				if err != nil {
					return nil, err
				}
				return (&tls.Dialer{NetDialer: dialer, Config: config}).DialContext(ctx, network, address)
			}}
	}
	s.client = &http.Client{Transport: s.o.transport, CheckRedirect: checkRedirect}
	return s
}

// checkRedirect refuses to ask another host, which could have any services.
func checkRedirect(to *http.Request, via []*http.Request) error {
	switch from := via[0].URL; {
	case to.URL.Scheme != from.Scheme || to.URL.Host != from.Host:
		return fmt.Errorf("redirects to another server, %s://%s: write its address as url if that is meant", to.URL.Scheme, strict.Name(to.URL.Host))
	case len(via) > maxRedirects:
		return fmt.Errorf("redirects more than %d times", maxRedirects)
	}
	return nil
}

// ShrinkGuard implements sources.Guarded.
func (s *Source) ShrinkGuard() time.Duration { return time.Duration(s.o.ShrinkGuard) }

// Run implements sources.Source. A server that can't be read is not an error: the source is stale until it can.
func (s *Source) Run(ctx context.Context, out sources.Sink) error {
	defer s.client.CloseIdleConnections()
	s.etag, s.digest = "", [sha256.Size]byte{} // each run begins with the full list
	wait := backoff.Backoff{Lo: minBackoff, Hi: maxBackoff}
	stale := false
	for {
		interval := time.Duration(s.o.Interval)
		pause := interval - interval/10 + rand.N(interval/5+1)
		switch services, problems, err := s.read(ctx); {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			stale = true
			out.Stale(fmt.Errorf("%s: %w", s.place, err))
			pause = wait.Next()
		case services != nil:
			wait.Reset()
			stale = false
			out.Replace(services, problems)
		default:
			wait.Reset()
			if stale {
				stale = false
				out.Fresh()
			}
		}
		if !backoff.Sleep(ctx, pause) {
			return ctx.Err()
		}
	}
}

// read returns the services of the newest document; nil if it is the published one. On an error the state is unchanged.
func (s *Source) read(ctx context.Context) ([]vip.Service, []vip.Problem, error) {
	pools := s.o.Pools()
	if !reflect.DeepEqual(pools, s.pools) {
		s.etag, s.digest = "", [sha256.Size]byte{}
	}
	body, etag, err := s.get(ctx)
	if body == nil || err != nil {
		return nil, nil, err
	}
	digest := sha256.Sum256(body)
	if digest == s.digest {
		s.etag = etag
		return nil, nil, nil
	}
	services, problems, err := s.services(body, pools)
	if err != nil {
		return nil, nil, err
	}
	s.etag, s.digest, s.pools = etag, digest, pools
	return services, problems, nil
}

// get returns the body of the document, and its tag; nil if it is the published one.
func (s *Source) get(ctx context.Context) (body []byte, etag string, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	defer func() {
		if err != nil && ctx.Err() != nil {
			err = fmt.Errorf("no complete answer within %s", timeout)
		} else if call, is := errors.AsType[*net.OpError](err); is {
			err = call.Err // without the port of this host, which changes
		} else if request, is := errors.AsType[*url.Error](err); is {
			err = request.Err
		}
	}()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.o.URL, nil)
	if err != nil {
		return nil, "", err
	}
	r.Header.Set("Accept", "application/json")
	r.Header.Set("User-Agent", "ironvip/"+s.o.Version)
	if s.etag != "" {
		r.Header.Set("If-None-Match", s.etag)
	}
	switch token, err := tlsfile.Token(s.o.TokenFile); {
	case err != nil:
		return nil, "", err
	case token != "":
		r.Header.Set("Authorization", "Bearer "+token)
	}
	received, err := s.client.Do(r)
	if err != nil {
		return nil, "", err
	}
	defer received.Body.Close()
	switch {
	case received.StatusCode == http.StatusNotModified && s.etag != "":
		return nil, "", nil
	case received.StatusCode != http.StatusOK:
		return nil, "", fmt.Errorf("answers %s", strict.Name(received.Status))
	case !isJSON(received.Header.Get("Content-Type")):
		return nil, "", fmt.Errorf("answers with the content type %s: services are application/json", strict.Quote(received.Header.Get("Content-Type")))
	}
	answer.Bound(received, spec.MaxList, true)
	body, err = io.ReadAll(received.Body)
	return body, received.Header.Get("Etag"), err
}

// isJSON reports whether a content type is JSON in UTF-8.
func isJSON(contentType string) bool {
	kind, params, err := mime.ParseMediaType(contentType)
	set := strings.ToLower(params["charset"])
	return err == nil && (kind == "application/json" || strings.HasSuffix(kind, "+json")) && (set == "" || set == "utf-8" || set == "us-ascii")
}
